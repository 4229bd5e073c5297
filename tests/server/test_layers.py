"""The front stays light: it serves without torch, and starts without it."""

from __future__ import annotations

import subprocess
import sys


def test_the_front_loads_no_torch() -> None:
    code = (
        "import sys, dlcb.server.serve, dlcb.server.cli, dlcb.server.screen;"
        "print([name for name in ('torch', 'cupy', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
