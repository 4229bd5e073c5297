"""Which values are strided views of others:
found by running the operators' own coordinate rules, not from a list.

A chain of movements is a view when it reads one value, unguarded,
at an offset that is linear in the output coordinates."""

from __future__ import annotations

from dataclasses import dataclass

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, TRUE, ZERO, substitute
from dlcb.compiler.ir.graph import Value
from dlcb.compiler.passes.access import read
from dlcb.compiler.passes.layout import declared_layout
from dlcb.compiler.passes.steps import Layout
from dlcb.compiler.shapes.system import System


@dataclass(frozen=True)
class _Chain:
    """Movements on movements: the element at `indices` lies at `offset` of `base`, which is no movement."""

    base: Value
    offset: Expr
    indices: tuple[Expr, ...]


class Views:
    """Answers, and remembers, what a value is a view of."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._known: dict[Value, tuple[Value, Layout] | None] = {}
        self._chains: dict[Value, _Chain | None] = {}
        self._layouts: dict[tuple[Expr, tuple[Expr, ...]], Layout | None] = {}  # equal layers have equal ones

    def of(self, value: Value) -> tuple[Value, Layout] | None:
        """(base, layout) where `value` is a view of `base`, which is not itself a movement, or is one that is
        no view; None where it is no view."""
        if value not in self._known:
            self._known[value] = self._find(value)
        return self._known[value]

    def _find(self, value: Value) -> tuple[Value, Layout] | None:
        # Not each movement has to be a view: heads split from a merged axis are one, the merging is none.
        chain = self._chain(value)
        if chain is None:
            return None
        if (layout := self._layout(chain)) is not None:
            return chain.base, layout
        link = self._last_link(value)
        if link is None or self.of(link.base) is not None or (layout := self._layout(link)) is None:
            return None
        return link.base, layout

    def _chain(self, value: Value) -> _Chain | None:
        if value not in self._chains:
            last = self._last_link(value)
            before = self._chain(last.base) if last is not None else None
            if last is not None and before is not None:
                read_at = dict(zip(before.indices, read(value.made_by).accesses[0].coordinates, strict=True))
                last = _Chain(before.base, substitute(before.offset, read_at), last.indices)
            self._chains[value] = last
        return self._chains[value]

    def _last_link(self, value: Value) -> _Chain | None:
        """`value` over its node's operand, where the node is an unguarded movement of one value."""
        node = value.producer
        if node is None or node.op.kind != "move" or node.op.at is None or len(node.inputs) != 1:
            return None
        reading = read(node)
        if len(reading.accesses) != 1 or reading.accesses[0].guard is not TRUE:
            return None
        layout = declared_layout(node.inputs[0])
        offset = layout.offset
        for coordinate, stride in zip(reading.accesses[0].coordinates, layout.strides, strict=True):
            offset = offset + coordinate * stride
        return _Chain(node.inputs[0], offset, reading.out)

    def _layout(self, chain: _Chain) -> Layout | None:
        key = (chain.offset, chain.indices)
        if key not in self._layouts:
            self._layouts[key] = self._linear(*key)
        return self._layouts[key]

    def _linear(self, offset: Expr, indices: tuple[Expr, ...]) -> Layout | None:
        linear = linear_in(self._system.simplify(offset), indices, self._system)
        if linear is None or any(self._system.known(stride >= 0) is not True for stride in linear[0]):
            return None  # PyTorch has no negative strides, so no output or library operand may have them
        return Layout(*linear)


def linear_in(
    offset: Expr, indices: tuple[Expr, ...], system: System
) -> tuple[tuple[Expr, ...], Expr] | None:
    """(coefficients, constant) where `offset` is their linear form over `indices`;
    None where it is not linear."""
    nothing = {i: ZERO for i in indices}
    constant = substitute(offset, nothing)
    coefficients = []
    for i in indices:
        coefficients.append(system.simplify(substitute(offset, {**nothing, i: ONE}) - constant))
    rebuilt = constant
    for i, coefficient in zip(indices, coefficients, strict=True):
        rebuilt = rebuilt + i * coefficient
    if system.simplify(offset - rebuilt) is not ZERO:
        return None
    if any(set(indices) & c.free for c in (*coefficients, constant)):
        return None
    return tuple(coefficients), system.simplify(constant)
