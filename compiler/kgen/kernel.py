"""What kernel generation hands to the host: kernels as data. A kernel is a body of text together with
everything that a launch needs to know: buffers, parameters over sizes, assumptions, grid, and the index
checks it may report."""

from __future__ import annotations

from dataclasses import dataclass

from dlcb.compiler.dtype import DType
from dlcb.compiler.expr.dag import Expr


@dataclass(frozen=True)
class Parameter:
    """An integer that the host computes from the sizes and passes by value.

    `kind` is "int64", "int32", "magic" (the host passes a multiplier and a shift for dividing dividends
    below 2^31 by `value`) or "magic64" (the same for any dividend below 2^63)."""

    name: str
    value: Expr
    kind: str


@dataclass(frozen=True)
class BufferArgument:
    """A tensor's memory, by the name of its value. `mode` is "in" or "out"."""

    value_name: str
    dtype: DType
    mode: str


@dataclass(frozen=True)
class IndexCheck:
    """A range that index values are held to. A kernel that meets one outside reports the check's number."""

    label: str
    value_name: str
    low: Expr
    high: Expr


@dataclass(frozen=True)
class Kernel:
    """One variant: its text and how to launch it. It may be launched when all `guards` hold and every
    buffer's address is a multiple of `alignment` bytes. Nothing is launched when `domain` (elements of the
    iteration space) is zero."""

    name: str
    body: str
    buffers: tuple[BufferArgument, ...]
    parameters: tuple[Parameter, ...]
    guards: tuple[Expr, ...]
    alignment: int
    grid: tuple[Expr, Expr, Expr]
    block: tuple[int, int, int]
    shared_bytes: Expr
    checks: tuple[IndexCheck, ...]
    domain: Expr


@dataclass(frozen=True)
class Workspace:
    """Memory of `elements` that a kernel set's first launch writes and its second one reads."""

    name: str
    dtype: DType
    elements: Expr


@dataclass(frozen=True)
class KernelSet:
    """The variants of one group's kernel, most specialised first; the last one always may be launched.

    Where `before` has variants, one of them is launched first (its domain is zero at sizes that do not need
    it): it writes the workspaces, which some of `variants` read."""

    group: str
    variants: tuple[Kernel, ...]
    before: tuple[Kernel, ...] = ()
    workspaces: tuple[Workspace, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return (*self.before, *self.variants)
