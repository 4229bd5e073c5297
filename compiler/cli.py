"""The compiler's own commands, which need no server: `bench`. The `dlcb` command joins them to its own."""

from __future__ import annotations

from dlcb.compiler.bench.cli import app

__all__ = ["app"]
