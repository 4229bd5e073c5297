"""What a binary is found by: named ingredients, of which any that differs makes another key
(`kernel_cache.explain`)."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from dlcb.compiler import kgen
from dlcb.compiler.build.toolchain import toolchain
from dlcb.compiler.options import CompileOptions, Target
from dlcb.kernel_cache import Key


def unit_key(text: str, target: Target, options: CompileOptions) -> Key:
    """The key of the binary that a translation unit's text becomes. Raises ToolchainError without a
    compiler."""
    tools = toolchain(target, options)
    return Key(
        {
            "text": hashlib.sha256(text.encode()).hexdigest(),
            "target": f"{target.kind} {target.architecture}",
            "machine": tools.machine,
            "compiler": tools.version,
            "options": " ".join(tools.options),
            "static": str(options.static),
            "generator": generator_digest(),
        }
    )


@cache
def generator_digest() -> str:
    """A digest of the sources that generate kernels: when they change, no kernel made before is used."""
    state = hashlib.sha256()
    folder = Path(kgen.__file__).parent
    for source in sorted(folder.glob("*.py")):
        state.update(f"{source.name}\n".encode())
        state.update(source.read_bytes())
    return state.hexdigest()
