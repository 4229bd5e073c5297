"""The slow, obvious oracle: a graph and its inputs as NumPy arrays come in, the outputs come out.

Each node's coordinate rule is evaluated over the whole grid of its coordinates; composites go through their
definitions. Floats are float64 throughout. It shares nothing with kernel generation, and every read is
checked to be in range."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dlcb.compiler.dtype import DType
from dlcb.compiler.errors import IndexRangeError, ShapeError, UnsupportedOperator
from dlcb.compiler.expr import node as expr
from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import ONE, TRUE, ZERO
from dlcb.compiler.expr.ops import FOLDS
from dlcb.compiler.ir.graph import Graph, GraphBuilder, Node, Value
from dlcb.compiler.ir.op import Type

Array = np.ndarray
Opaque = Callable[[Node, Sequence[Array]], Sequence[Array]]
Rule = Callable[..., Any]

_KEPT = 1024  # nodes whose rules are kept applied: a graph is mostly evaluated at several sizes


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Array],
    parameters: Mapping[str, Array] | None = None,
    opaque: Opaque | None = None,
) -> list[Array]:
    """The outputs of `graph`, by input and parameter names. `opaque(node, arrays)` runs nodes that have no
    rule.

    Raises ShapeError where an array does not fit its declared type, IndexRangeError for an index out of
    range and UnsupportedOperator for an opaque node without `opaque`."""
    given = {**(parameters or {}), **inputs}
    values = {value: _array(given[value.name], value.dtype) for value in (*graph.inputs, *graph.parameters)}
    sizes: dict[str, int] = {}
    for value, array in values.items():
        _bind(sizes, value, array)
    for value, array in values.items():
        _agree(sizes, value, array)
    with np.errstate(all="ignore"):
        _run(graph.nodes, values, sizes, opaque)
    return [values[value] for value in graph.outputs]


def _run(
    nodes: Sequence[Node], values: dict[Value, Array], sizes: dict[str, int], opaque: Opaque | None
) -> None:
    for node in nodes:
        arrays = [values[value] for value in node.inputs]
        if node.op.at is not None:
            results: Sequence[Array] = [_elements(node, arrays, sizes)]
        elif node.op.expand is not None:
            results = [_expansion(node, arrays, sizes, opaque)]
        elif opaque is not None:
            results = [
                _array(array, r.dtype) for array, r in zip(opaque(node, arrays), node.results, strict=True)
            ]
        else:
            raise UnsupportedOperator(
                f"operator {node.op.name} has no coordinate rule", node=node.result.name
            )
        for value, array in zip(node.results, results, strict=True):
            _bind(sizes, value, array)  # sizes that only run time knows
            values[value] = array


def _expansion(node: Node, arrays: Sequence[Array], sizes: dict[str, int], opaque: Opaque | None) -> Array:
    stand_ins, graph = _definition(node)
    values = {stand_ins[value]: array for value, array in zip(node.inputs, arrays, strict=True)}
    _run(graph.nodes, values, dict(sizes), opaque)
    return values[graph.outputs[0]]


@lru_cache(_KEPT)
def _definition(node: Node) -> tuple[Mapping[Value, Value], Graph]:
    """What a composite is made of, over stand-ins for its inputs."""
    rule: Rule = node.op.expand  # type: ignore[assignment]
    build = GraphBuilder(node.op.name)  # its own system: evaluating must not add to what is known
    stand_ins = {value: build.input(value.name, value.shape, value.dtype) for value in node.inputs}
    result = rule(build, *(stand_ins[value] for value in node.inputs), **node.attributes)
    return stand_ins, build.build(result)


# ---- sizes


def _bind(sizes: dict[str, int], value: Value, array: Array) -> None:
    if array.ndim != value.rank:
        raise ShapeError(f"'{value.name}' has the shape {array.shape}, where {value.type!r} is declared")
    for extent, actual in zip(value.shape, array.shape, strict=True):
        if extent.op == "size":
            sizes.setdefault(extent.value, actual)


def _agree(sizes: Mapping[str, int], value: Value, array: Array) -> None:
    for axis, (extent, actual) in enumerate(zip(value.shape, array.shape, strict=True)):
        expected = expr.evaluate(extent, sizes)
        if expected != actual:
            raise ShapeError(
                f"'{value.name}' has {actual} along axis {axis}, where {extent!r} = {expected} is declared"
            )


# ---- one node


class _Operand:
    """An input as a rule sees it: loads from a buffer that bears its value's name."""

    def __init__(self, value: Value) -> None:
        self.type: Type = value.type
        self.name = value.name
        self.shape, self.dtype = value.type.shape, value.type.dtype

    def __getitem__(self, coordinates: Sequence[Expr]) -> Expr:
        return self.inside(coordinates, TRUE, ZERO)

    def along(self, i: Sequence[Expr]) -> Expr:
        trailing = list(i)[len(i) - len(self.shape) :]
        return self[
            [
                ZERO if extent is ONE else expr.where(expr.equal(extent, 1), 0, coordinate)
                for coordinate, extent in zip(trailing, self.shape, strict=True)
            ]
        ]

    def inside(self, coordinates: Sequence[Expr], guard: Expr, otherwise: Expr) -> Expr:
        # each coordinate rides along, so that every one is seen to be in range, not only their sum
        offset: Expr = ZERO
        for coordinate, extent in zip(coordinates, self.shape, strict=True):
            bounded = expr.check(coordinate, 0, extent, _READ, 0, guard)
            offset = offset * extent + bounded
        loaded = expr.load(self.name, offset, self.dtype, guard)
        if self.dtype.is_float and self.dtype.bits == 16:
            loaded = expr.cast(loaded, self.dtype.accumulator)
        return loaded if guard is TRUE else expr.where(guard, loaded, otherwise)


_READ = "read"  # the label of a coordinate's own range check, which only a wrong rule can break


@dataclass(frozen=True)
class _Scalars:
    """A node's rule over the indices "i0", "i1" .. of `extents`: what is folded, and what is made of that."""

    extents: tuple[Expr, ...]
    body: Expr
    finished: Expr | None


@lru_cache(_KEPT)
def _scalars(node: Node) -> _Scalars:
    op, attributes, rank = node.op, node.attributes, node.result.rank
    rule: Rule = op.at  # type: ignore[assignment]
    operands = [_Operand(value) for value in node.inputs]
    types = [value.type for value in node.inputs]
    inner = op.over(*types, **attributes) if op.over is not None else ()
    extents = (*node.result.shape, *inner)
    indices = [expr.index(f"i{k}", extent) for k, extent in enumerate(extents)]
    i, r = indices[:rank], indices[rank:]
    finished = None
    if op.finish is not None:
        total = expr.load("folded", _position(i, node.result.shape), node.result.dtype)
        finished = op.finish(i, total, *operands, **attributes)
    return _Scalars(extents, rule(i, r, *operands, **attributes), finished)


def _elements(node: Node, arrays: Sequence[Array], sizes: Mapping[str, int]) -> Array:
    scalars, rank = _scalars(node), node.result.rank
    buffers = {value.name: array for value, array in zip(node.inputs, arrays, strict=True)}
    grid = tuple(expr.evaluate(extent, sizes) for extent in scalars.extents)
    body = _over_grid(scalars.body, grid, sizes, buffers)
    folded = body if node.op.fold is None else _fold(node.op.fold, body, rank)
    if scalars.finished is not None:
        folded = _over_grid(scalars.finished, grid[:rank], sizes, {**buffers, "folded": folded})
    return _array(folded, node.result.dtype)


def _position(coordinates: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
    position: Expr = ZERO
    for coordinate, extent in zip(coordinates, sizes, strict=True):
        position = position * extent + coordinate
    return position


def _fold(fold: str, body: Array, rank: int) -> Array:
    axes = tuple(range(rank, body.ndim))
    if not axes:
        return body
    function, identity = _FUNCTIONS[FOLDS[fold].join], FOLDS[fold].identity
    if fold in ("max", "min") and not np.issubdtype(body.dtype, np.floating):
        limits = np.iinfo(body.dtype) if body.dtype != np.bool_ else _BoolLimits
        identity = limits.min if fold == "max" else limits.max
    # nothing goes in when an axis is empty; prepending the identity makes every fold total
    flat = body.reshape(*body.shape[:rank], math.prod(body.shape[rank:]))
    first = np.full((*body.shape[:rank], 1), identity, body.dtype)
    return function.reduce(np.concatenate([first, flat], axis=-1), axis=-1)


class _BoolLimits:
    min, max = False, True


# ---- expressions over a grid


def _over_grid(
    root: Expr, grid: tuple[int, ...], sizes: Mapping[str, int], buffers: Mapping[str, Array]
) -> Array:
    """The value of `root` at every point of `grid`, whose k-th axis is the index named "ik"."""
    if math.prod(grid) == 0:
        return np.zeros(grid, _numpy(root.dtype))
    done: dict[Expr, Any] = {}
    for node in toposort([root]):
        args = [done[arg] for arg in node.args]
        if node.op == "const":
            done[node] = _numpy(node.dtype)(node.value)
        elif node.op == "size":
            done[node] = np.int64(sizes[node.value])
        elif node.op == "index":
            axis = int(node.value[1:])
            done[node] = np.arange(grid[axis]).reshape(-1, *(1,) * (len(grid) - axis - 1))
        elif node.op == "load":
            done[node] = _load(buffers[node.value].reshape(-1), *args)
        elif node.op == "check":
            done[node] = _check(node.value, buffers, *args)
        elif node.op == "cast":
            done[node] = np.asarray(args[0]).astype(_numpy(node.dtype))
        else:
            done[node] = np.asarray(_FUNCTIONS[node.op](*args)).astype(_numpy(node.dtype))
    return np.broadcast_to(done[root], grid)


def _load(buffer: Array, offset: Array, guard: Array) -> Array:
    guard, offset = np.broadcast_arrays(guard, offset)
    if not guard.any():
        return np.zeros(offset.shape, buffer.dtype)
    return np.where(guard, buffer[np.where(guard, offset, 0)], buffer.dtype.type(0))


def _check(
    label: str, buffers: Mapping[str, Array], x: Array, low: Array, high: Array, position: Array, guard: Array
) -> Array:
    x, low, high, position, guard = np.broadcast_arrays(x, low, high, position, guard)
    bad = guard & ~((low <= x) & (x < high))
    if not bad.any():
        return x
    where = np.unravel_index(bad.argmax(), bad.shape)
    if label == _READ:
        raise AssertionError(f"a rule reads coordinate {x[where]} of an axis of {high[where]}")
    place = tuple(int(k) for k in np.unravel_index(position[where], buffers[label].shape))
    raise IndexRangeError(label, place, int(x[where]), int(low[where]), int(high[where]))


def _numpy(dtype: DType) -> Any:
    return np.float64 if dtype.is_float else np.bool_ if dtype.kind == "bool" else getattr(np, dtype.name)


def _array(array: Any, dtype: DType) -> Array:
    return np.asarray(array).astype(_numpy(dtype))


_FUNCTIONS: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.logical_not,
    "where": np.where,
    "div": np.true_divide,
    "fmod": np.fmod,
    "pow": np.power,
    "atan2": np.arctan2,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.round,  # half to even
    "isnan": np.isnan,
    "isinf": np.isinf,
}
