"""From a translation unit's text to its binary in the kernel store: look up, else compile once among all
processes, publish."""

from __future__ import annotations

from collections.abc import Sequence

from dlcb.compiler.build.key import unit_key
from dlcb.compiler.build.toolchain import toolchain
from dlcb.compiler.options import CompileOptions, Target
from dlcb.kernel_cache import Store, single_flight


def build_unit(
    text: str, kernel_names: Sequence[str], target: Target, options: CompileOptions, store: Store
) -> str:
    """The store's key of the binary of `text`, which defines the kernels named. It is compiled only where
    the store lacks it.

    Raises ToolchainError without a compiler, or when the compiler refuses the text."""
    key = unit_key(text, target, options).digest
    if store.get(key) is not None:
        return key
    with single_flight(store.folder, key):
        if store.get(key) is None:  # another process may have published it while this one waited
            binary = toolchain(target, options).compile(text)
            store.put(key, binary, kind="kernel", label=_label(kernel_names))
    return key


def _label(names: Sequence[str]) -> str:
    return (
        names[0] if len(names) == 1 else f"{len(names)} kernels, first {names[0]}" if names else "no kernels"
    )
