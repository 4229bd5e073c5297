"""Along which axes a call that PyTorch runs by name keeps its rows apart, or reads none that come later: what
stands for coordinates in the proofs of batching and padding. Rows are those of all tensors that a line names;
the others, such as weights, have none. A call that refuses some values, as an inverse does, is not here: one
request would fail those that it is stacked with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dlcb.compiler.expr.node import ONE
from dlcb.compiler.ir.graph import Node


@dataclass(frozen=True)
class RowAxes:
    """The axis of rows in each operand that has them, by its place among the node's inputs, and in each
    result; None for one that is made of all rows."""

    operands: dict[int, int]
    results: tuple[int | None, ...]


def row_axes(node: Node) -> Iterator[RowAxes]:
    """Every way in which a node that PyTorch runs keeps rows apart."""
    rule = _RULES.get(node.attributes.get("target", ""))
    if rule is not None:
        yield from rule(node)


def growing_axes(node: Node) -> Iterator[RowAxes]:
    """Every way in which rows that are added at the end leave what was there before as it is."""
    yield from row_axes(node)
    rule = _PREFIXES.get(node.attributes.get("target", ""))
    if rule is not None:
        yield from rule(node)


_Rule = Callable[[Node], Iterator[RowAxes]]


def _same(node: Node, tensors: Sequence[int], axes: Sequence[int]) -> Iterator[RowAxes]:
    """One of `axes`, the same in the tensors at these arguments and in all results."""
    places = [place for argument in tensors for place in _tensors(node.attributes["arguments"], argument)]
    for axis in axes:
        yield RowAxes(dict.fromkeys(places, axis), (axis,) * len(node.results))


def _tensors(arguments: Sequence[Any], position: int) -> list[int]:
    """The tensors of an argument by their places among the node's inputs; none where it is left out."""
    given = arguments[position] if position < len(arguments) else None
    each = given if isinstance(given, tuple) else (given,)
    return [int(one[1:]) for one in each if isinstance(one, str) and one.startswith("$")]


def _image(node: Node, rank: int, tensors: Sequence[int] = (0,)) -> Iterator[RowAxes]:
    """Images, or windows of images, one after the other; without a first axis for them there is one."""
    if node.inputs[0].rank == rank:
        yield from _same(node, tensors, (0,))


def _along(
    node: Node, tensors: Sequence[int] = (0,), argument: int = 1, otherwise: int = -1
) -> Iterator[RowAxes]:
    """An operator along the axis that an argument names: the others are apart."""
    arguments, rank = node.attributes["arguments"], node.inputs[0].rank
    axis = arguments[argument] if argument < len(arguments) else otherwise
    yield from _apart_from(node, axis, rank, tensors)


def _along_named(node: Node) -> Iterator[RowAxes]:
    """An operator along the axis that its keyword `dim` names, the last one otherwise."""
    given = [
        each for each in node.attributes["arguments"] if isinstance(each, tuple) and each[:1] == ("dim=",)
    ]
    yield from _apart_from(node, given[0][1] if given else -1, node.inputs[0].rank, (0,))


def _apart_from(node: Node, axis: Any, rank: int, tensors: Sequence[int]) -> Iterator[RowAxes]:
    if isinstance(axis, int) and rank:
        yield from _same(node, tensors, [each for each in range(rank) if each != axis % rank])


def _recurrent(node: Node) -> Iterator[RowAxes]:
    """f(x, states, weights, biases, layers, dropout, train, both ways, batch first) -> (y, states ...)."""
    arguments = node.attributes["arguments"]
    if node.inputs[0].rank != 3 or len(arguments) != 9:  # without an axis of rows, or packed
        return
    first = 0 if arguments[8] else 1
    (x,) = _tensors(arguments, 0)
    states = _tensors(arguments, 1)
    yield RowAxes({x: first, **dict.fromkeys(states, 1)}, (first, *(1 for _ in node.results[1:])))


def _in_time(node: Node) -> Iterator[RowAxes]:
    """The steps of a recurrence that goes one way; the states are those after the last."""
    arguments = node.attributes["arguments"]
    if node.inputs[0].rank == 3 and len(arguments) == 9 and not arguments[7]:
        steps = 1 if arguments[8] else 0
        yield RowAxes(
            {place: steps for place in _tensors(arguments, 0)}, (steps, *(None for _ in node.results[1:]))
        )


def _running(node: Node) -> Iterator[RowAxes]:
    axis = node.attributes["arguments"][1]
    if isinstance(axis, int) and node.inputs[0].rank:
        yield from _same(node, (0,), (axis % node.inputs[0].rank,))


def _cell(node: Node) -> Iterator[RowAxes]:
    if node.inputs[0].rank == 2:
        yield from _same(node, (0, 1), (0,))


def _pointwise(node: Node) -> Iterator[RowAxes]:
    """Element by element; what is broadcast along an axis has no rows on it."""
    rank = node.results[0].rank
    for axis in range(rank):
        own = {k: axis - rank + value.rank for k, value in enumerate(node.inputs)}
        rows = {k: at for k, at in own.items() if at >= 0 and node.inputs[k].shape[at] is not ONE}
        yield RowAxes(rows, (axis,))


def _each_matrix(node: Node) -> Iterator[RowAxes]:
    yield from _same(node, (0,), range(node.inputs[0].rank - 2))


def _looked_up(node: Node) -> Iterator[RowAxes]:
    """f(x, bounds): each element of x by itself, where the bounds are one list."""
    if node.inputs[-1].rank == 1:
        yield from _same(node, (0,), range(node.inputs[0].rank))


def _contracted(node: Node) -> Iterator[RowAxes]:
    """An einsum has rows along each label that the result has, and operands have once: those that lack it,
    such as weights, have no rows."""
    equation, operands = node.attributes["arguments"][:2]
    terms, arrow, made = equation.replace(" ", "").partition("->")
    labels = terms.split(",")
    if not arrow or "." in equation:
        return
    for axis, label in enumerate(made):
        if made.count(label) == 1 and all(term.count(label) <= 1 for term in labels):
            # an operand that comes twice has its rows on one axis, each time
            places = {(int(one[1:]), term.find(label)) for one, term in zip(operands, labels, strict=True)}
            if len(places) == len(dict(places)):
                places = {(place, at) for place, at in places if at >= 0}
                yield RowAxes(dict(places), (axis,))


def _distances(node: Node) -> Iterator[RowAxes]:
    if node.inputs[0].rank == node.inputs[-1].rank:
        yield from _same(node, (0, 1), range(node.inputs[0].rank - 2))


def _transformed(node: Node, otherwise: tuple[int, ...] | None) -> Iterator[RowAxes]:
    """A Fourier transform f(x, sizes, axes) over several axes, the others apart."""
    arguments, rank = node.attributes["arguments"], node.inputs[0].rank
    axes = arguments[2] if len(arguments) > 2 else otherwise
    if isinstance(axes, tuple) and all(isinstance(axis, int) for axis in axes):
        over = {axis % rank for axis in axes}
        yield from _same(node, (0,), [axis for axis in range(rank) if axis not in over])


def _transposed(node: Node) -> Iterator[RowAxes]:
    rank = node.inputs[0].rank
    first, second = (axis % rank for axis in node.attributes["arguments"][1:3])
    places = {first: second, second: first}
    for axis in range(rank):
        yield RowAxes({0: axis}, (places.get(axis, axis),))


def _selected(node: Node) -> Iterator[RowAxes]:
    """One place of an axis, which is gone then."""
    rank = node.inputs[0].rank
    gone = node.attributes["arguments"][1] % rank
    for axis in range(rank):
        if axis != gone:
            yield RowAxes({0: axis}, (axis - (axis > gone),))


def _elements(node: Node) -> Iterator[RowAxes]:
    """Each complex element with its two parts on a further last axis, or the other way round."""
    yield from _same(node, (0,), range(min(node.inputs[0].rank, node.results[0].rank)))


_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_CUMULATIVE = ("cumprod", "logcumsumexp", "cummax", "cummin")
_OF_ELEMENTS = (
    *(
        "softshrink",
        "hardshrink",
        "erfinv",
        "sinc",
        "hypot",
        "heaviside",
        "lgamma",
        "digamma",
        "i0",
        "copysign",
    ),
    *("special_erfcx", "special_ndtr", "special_ndtri", "nextafter", "ldexp", "xlogy", "frac", "deg2rad"),
)
_IMAGE, _IMAGE_AND_PLACES = partial(_image, rank=4), partial(_image, rank=4, tensors=(0, 1))
_RULES: dict[str, _Rule] = {
    "aten.conv_transpose1d.default": partial(_image, rank=3),
    "aten.conv_transpose2d.input": _IMAGE,
    "aten.conv_transpose3d.input": partial(_image, rank=5),
    "aten.col2im.default": partial(_image, rank=3),
    "aten.upsample_linear1d.vec": partial(_image, rank=3),
    "aten.upsample_trilinear3d.vec": partial(_image, rank=5),
    **{
        f"aten.{name}2d{kind}.vec": _IMAGE
        for name, kind in (
            ("upsample_bicubic", ""),
            ("_upsample_bicubic", "_aa"),
            ("_upsample_bilinear", "_aa"),
            ("_upsample_nearest_exact", ""),
        )
    },
    "aten.max_pool2d_with_indices.default": _IMAGE,
    "aten.adaptive_max_pool2d.default": _IMAGE,
    "aten.max_unpool2d.default": _IMAGE_AND_PLACES,
    "aten.grid_sampler.default": _IMAGE_AND_PLACES,
    **{f"aten.{name}.input": _recurrent for name in _RECURRENT},
    **{f"aten.{name}_cell.default": _cell for name in _RECURRENT},
    "aten.sort.default": _along,
    "aten.argsort.default": _along,
    **{f"aten.{name}.stable": _along_named for name in ("sort", "argsort")},
    "aten.topk.default": partial(_along, argument=2),
    **{f"aten.{name}.default": _along for name in _CUMULATIVE},
    "aten.cdist.default": _distances,
    **{f"aten.{name}.dim": _along for name in ("median", "nanmedian")},
    "aten.mode.default": _along,
    "aten.kthvalue.default": partial(_along, argument=2),
    "aten.linalg_det.default": _each_matrix,
    **{f"aten.{name}.default": _pointwise for name in _OF_ELEMENTS},
    "aten.bucketize.Tensor": _looked_up,
    "aten.einsum.default": _contracted,
    **{f"aten.scatter.{each}": partial(_along, tensors=(0, 2, 3)) for each in ("src", "value")},
    "aten.scatter_add.default": partial(_along, tensors=(0, 2, 3)),
    "aten.index_add.default": partial(_along, tensors=(0, 3)),
    "aten.index_copy.default": partial(_along, tensors=(0, 3)),
    "aten.index_fill.int_Scalar": _along,
    **{
        f"aten.fft_{name}.default": partial(_along, argument=2)
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    },
    **{
        f"aten.fft_{name}{axes}.default": partial(_transformed, otherwise=otherwise)
        for name in ("fft", "ifft", "rfft", "irfft")
        for axes, otherwise in (("n", None), ("2", (-2, -1)))
    },
    # of complex numbers alone
    **{f"aten.{name}.Tensor": _pointwise for name in ("add", "sub", "mul", "div")},
    **{
        f"aten.{name}.default": _pointwise
        for name in (
            *("complex", "polar", "real", "imag", "abs", "angle", "sgn"),
            *("conj", "_conj", "conj_physical", "neg", "exp"),
        )
    },
    "aten.view_as_complex.default": _elements,
    "aten.view_as_real.default": _elements,
    "aten.slice.Tensor": partial(_along, otherwise=0),
    "aten.select.int": _selected,
    "aten.transpose.int": _transposed,
}
_PREFIXES: dict[str, _Rule] = {
    **{f"aten.{name}.input": _in_time for name in _RECURRENT},
    **{f"aten.{name}.default": _running for name in _CUMULATIVE},
}
