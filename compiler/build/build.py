"""From kernels to binaries in the kernel store. Kernels come in as they are generated and are compiled side
by side, a few to a unit; the units' keys go out. A unit is looked up, else compiled once among all processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from dlcb.compiler.build.key import unit_key
from dlcb.compiler.build.toolchain import toolchain
from dlcb.compiler.kgen import Kernel, KernelSet, translation_unit
from dlcb.compiler.options import CompileOptions, Target
from dlcb.kernel_cache import Store, single_flight

# Characters of kernels in a C++ unit, which takes 0.35 s to read its headers, and as much for its kernels.
UNIT_CHARACTERS = 16_000
# The same for NVRTC: 0.3 s of its time, beside the 0.02 s that every unit costs, in which it lets no other
# thread in. Its first units are smaller, and grow with what came before: where kernels are few, the largest
# unit is what is waited for; where they are many, the front end is.
LEAST_CHARACTERS, MOST_CHARACTERS = 4_000, 10_000


class Builder:
    """Compiles kernels on `options.threads` threads while further ones are generated.

    How kernels are shared out over units depends on their texts and order alone, so that any machine finds
    what another one built. Leaving the `with` block waits for what has begun, and drops the rest."""

    def __init__(self, target: Target, options: CompileOptions, store: Store) -> None:
        self._target, self._options, self._store = target, options, store
        self._pool = ThreadPoolExecutor(max(1, options.threads), thread_name_prefix="build")
        self._units: dict[str, Future[str]] = {}
        self._waiting: dict[str, Kernel] = {}
        self._known: set[str] = set()
        self._characters = self._submitted = 0  # of all kernels, and of those in units

    def __enter__(self) -> Builder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, kernels: KernelSet) -> KernelSet:
        """Compile what of `kernels` was not there before; gives them back."""
        for kernel in kernels.kernels:
            if kernel.name not in self._known:
                self._known.add(kernel.name)
                self._waiting[kernel.name] = kernel
                self._characters += len(kernel.body)
                if self._characters - self._submitted >= self._enough():
                    self._submit()
        return kernels

    def _enough(self) -> int:
        """Characters of a unit that begins now."""
        if self._target.kind != "cuda":
            return UNIT_CHARACTERS
        return min(max(self._submitted // 4, LEAST_CHARACTERS), MOST_CHARACTERS)

    def keys(self) -> tuple[str, ...]:
        """The store's keys of the binaries that hold, or will hold, all kernels added."""
        if self._waiting:
            self._submit()
        return tuple(self._units)

    def wait(self) -> None:
        """Until all binaries are in the store.

        Raises ToolchainError without a compiler, RefusedCode when the compiler refuses a text."""
        for unit in self._units.values():
            unit.result()

    def _submit(self) -> None:
        text = translation_unit([KernelSet("", tuple(self._waiting.values()))], self._target)
        names = list(self._waiting)
        self._waiting.clear()
        self._submitted = self._characters
        key = unit_key(text, self._target, self._options).digest
        self._units[key] = self._pool.submit(
            build_unit, text, names, self._target, self._options, self._store
        )


def build_unit(
    text: str, kernel_names: Sequence[str], target: Target, options: CompileOptions, store: Store
) -> str:
    """The store's key of the binary of `text`, which defines the kernels named. It is compiled only where
    the store lacks it.

    Raises ToolchainError without a compiler, RefusedCode when the compiler refuses the text."""
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
