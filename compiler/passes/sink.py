"""Movements of rows sink below matrix products: a product treats each row alone, so rows may be put in
another order after it as well as before. What moved the operand was a copy, since products want rows in one
piece; what moves the result is arithmetic in the kernel that reads it, or meets the opposite and vanishes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr, equal, product
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Graph, GraphBuilder, Node, Value, rewrite

_Move = Callable[[Value], Value]


def sink_row_movements(graph: Graph) -> Graph:
    """linear(move(x)) -> move(linear(x)), for permutations and reshapes that leave the last axis alone, and
    for attention's way back from heads to rows."""

    def replace(build: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        if node.op is not ops.linear:
            return None
        x, moves = inputs[0], list[_Move]()
        while (above := _above(build, x)) is not None:
            x, move = above
            moves.append(move)
        if not moves:
            return None
        y = build.apply(ops.linear, x, *inputs[1:], **node.attributes)
        for move in reversed(moves):
            y = move(y)
        return (y,)

    return rewrite(graph, replace)


def _above(build: GraphBuilder, x: Value) -> tuple[Value, _Move] | None:
    """(y, move) with x == move(y), where `move` leaves the last axis alone; None where x is no such thing."""
    node = x.producer
    if node is None or node.op not in (ops.permute, ops.reshape):
        return None
    source = node.inputs[0]
    if node.op is ops.permute:
        order = node.attributes["order"]
        return (source, _permuting(build, order)) if order[-1] == x.rank - 1 else None
    if source.rank > 1 and x.rank > 1 and _same(build, (source.shape[-1],), (x.shape[-1],)):
        return source, _reshaping(build, x.shape[:-1])
    return _before_merging(build, source, x)


def _before_merging(build: GraphBuilder, source: Value, x: Value) -> tuple[Value, _Move] | None:
    """x merges the last axes of `source`, whose other axes were put out of order before: the same with those
    in order, as heads become rows."""
    node = source.producer
    if node is None or node.op is not ops.permute:
        return None
    order = node.attributes["order"]
    for merged in range(2, source.rank):
        rows, columns = order[:-merged], order[-merged:]
        if _same(build, source.shape[-merged:], (x.shape[-1],)):
            break
    else:
        return None
    in_order = sorted(rows)
    if list(rows) == in_order:
        return None
    y = build.apply(ops.permute, node.inputs[0], order=(*in_order, *columns))
    y = build.apply(ops.reshape, y, shape=(*y.shape[: len(rows)], x.shape[-1]))
    back = _permuting(build, (*(in_order.index(axis) for axis in rows), len(rows)))
    reshape = _reshaping(build, x.shape[:-1])
    return y, lambda value: reshape(back(value))


def _permuting(build: GraphBuilder, order: Sequence[int]) -> _Move:
    return lambda y: build.apply(ops.permute, y, order=tuple(order))


def _reshaping(build: GraphBuilder, rows: Sequence[Expr]) -> _Move:
    return lambda y: build.apply(ops.reshape, y, shape=(*rows, y.shape[-1]))


def _same(build: GraphBuilder, a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    left, right = as_expr(product(a)), as_expr(product(b))
    return left is right or build.system.known(equal(left, right)) is True
