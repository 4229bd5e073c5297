"""Runs of a freshly loaded model that decide whether it may serve, and how: one at a small legal shape, and,
where requests may be padded, padded batches against the same rows unpadded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from dlcb.compiler import ModelSource, RequestError, Signature
from dlcb.compiler.signature import Dim, Shape, TensorSpec
from dlcb.server.datatypes import BY_DTYPE
from dlcb.server.padding import Padding, PaddingError

PROBE_SIZE = 2
PROBE_SIZES = (PROBE_SIZE, 3, 8, 32, 64)  # until one is served: convolutions need room for their windows
PADDED_LENGTHS = (3, 17, 1, 9)
TOLERANCES = {
    "float64": 1e-8,
    "float32": 1e-4,
    "float16": 2e-2,
    "bfloat16": 5e-2,
}  # of the largest value; integers are equal


def probe(model: Any, source: ModelSource, shapes: Sequence[Sequence[int]] = ()) -> None:
    """Run the model at a small legal shape with legal values, rather one that its program serves than one
    that is PyTorch's; what the model refuses is passed over. One with inputs of any rank is run at each of
    `shapes`, which those inputs then have: without any there is nothing that is sure to be legal."""
    signature: Signature = model.signature
    if any(spec.dims is None for spec in signature.inputs):
        for shape in shapes:
            _answers(model, source, _shapes_at(signature, PROBE_SIZE, shape))
        return
    sizes = [_shapes_at(signature, size) for size in PROBE_SIZES]
    legal = [(tier == "eager", given) for given in sizes if (tier := _tier(model, given))]
    for _, given in sorted(legal, key=lambda one: one[0]):
        if _answers(model, source, given):
            return


def _shapes_at(signature: Signature, size: int, of_any_rank: Sequence[int] = ()) -> dict[str, Shape]:
    return {
        spec.name: _shape(spec, size) if spec.dims is not None else tuple(of_any_rank)
        for spec in signature.inputs
    }


def _tier(model: Any, shapes: dict[str, Shape]) -> str:
    """What would serve these shapes; "" where the model refuses them, as guards that tie dims together do."""
    try:
        model.signature.check(shapes, {spec.name: spec.dtype for spec in model.signature.inputs})
        return str(model.plan(shapes).tier)
    except RequestError:
        return ""


def _answers(model: Any, source: ModelSource, shapes: dict[str, Shape]) -> bool:
    """Whether the model takes inputs of these shapes: it is run on them."""
    least = {entry.name: entry.values[0] for entry in source.inputs if entry.values}
    arrays = {
        spec.name: numpy.full(shapes[spec.name], least.get(spec.name, 0), BY_DTYPE[spec.dtype].array)
        for spec in model.signature.inputs
    }
    try:
        model.run(arrays)
    except RequestError:
        return False
    return True


def _shape(spec: TensorSpec, size: int) -> Shape:
    return tuple(dim if isinstance(dim, int) else dim.nearest(size) for dim in spec.dims or ())


def check_padding(model: Any, source: ModelSource, padding: Padding) -> None:
    """PaddingError when rows padded to the longest, with random legal values behind a mask, else with
    what requests are padded with, give other results than each row alone."""
    signature: Signature = model.signature
    assert signature.batch is not None
    draw = numpy.random.default_rng(0)
    drawn = [_row(signature, source, padding, number, draw) for number in range(_requests(signature))]
    alone = [row for row in drawn if row is not None]
    if len(alone) < 2:
        return  # guards that tie dims together leave nothing to pad here
    for name in alone[0].keys() - signature.batch.input_axes.keys():
        for row in alone:
            row[name] = alone[0][name]
    longest = {name: tuple(map(max, *(row[name].shape for row in alone))) for name in padding.input_axes}
    padded = [_lengthened(signature, source, padding, row, longest, draw) for row in alone]
    together = {
        spec.name: numpy.concatenate(
            [row[spec.name] for row in padded], axis=signature.batch.input_axes[spec.name]
        )
        if spec.name in signature.batch.input_axes
        else padded[0][spec.name]
        for spec in signature.inputs
    }
    stacked = model.run(together).outputs
    for number, row in enumerate(alone):
        outputs = model.run(row).outputs
        for spec in signature.outputs:
            name, expected = spec.name, outputs[spec.name]
            axis = signature.batch.output_axes[name]
            rows = expected.shape[axis]
            place = [slice(size) for size in expected.shape]
            place[axis] = slice(number * rows, (number + 1) * rows)
            got = stacked[name][tuple(place)]
            difference, allowed = _difference(got, expected, spec.dtype)
            if not difference <= allowed:
                how = f"mask '{padding.mask}' does not hide padding" if padding.mask else "padding shows"
                own = {given: list(array.shape) for given, array in row.items()}
                raise PaddingError(
                    f"{how}: output '{name}' for {own} is off by {difference:.3g} when padded to "
                    f"{ {given: list(shape) for given, shape in longest.items()} }, at most {allowed:.3g} is "
                    "allowed"
                )


def _requests(signature: Signature) -> int:
    """How many requests of the fewest rows the model takes at once, up to one of each length."""
    assert signature.batch is not None
    dims = [dim for spec in signature.inputs for dim in spec.dims or () if isinstance(dim, Dim)]
    batch = next(dim for dim in dims if dim.symbol == signature.batch.symbol)
    most = len(PADDED_LENGTHS)
    return most if batch.high is None else min(most, batch.high // max(batch.nearest(1), 1))


def _row(
    signature: Signature, source: ModelSource, padding: Padding, number: int, draw: numpy.random.Generator
) -> dict[str, numpy.ndarray] | None:
    """One row with random legal values, which a mask all shows; None where its sizes do not go together."""
    assert signature.batch is not None
    arrays = {}
    for spec in signature.inputs:
        shape = []
        for dim in spec.dims or ():
            if not isinstance(dim, Dim):
                shape.append(dim)
            elif dim.symbol in padding.symbols:
                turn = number + list(padding.symbols).index(dim.symbol)
                shape.append(dim.nearest(PADDED_LENGTHS[turn % len(PADDED_LENGTHS)]))
            else:
                shape.append(dim.nearest(1 if dim.symbol == signature.batch.symbol else PROBE_SIZE))
        mask = spec.name == padding.mask
        arrays[spec.name] = (
            numpy.full(shape, 1 - padding.values[spec.name], BY_DTYPE[spec.dtype].array)
            if mask
            else _values(spec, source, shape, draw)
        )
    try:
        signature.check(_shapes(arrays), {spec.name: spec.dtype for spec in signature.inputs})
    except RequestError:
        return None
    return arrays


def _shapes(arrays: dict[str, numpy.ndarray]) -> dict[str, Shape]:
    return {name: array.shape for name, array in arrays.items()}


def _lengthened(
    signature: Signature,
    source: ModelSource,
    padding: Padding,
    row: dict[str, numpy.ndarray],
    longest: dict[str, tuple[int, ...]],
    draw: numpy.random.Generator,
) -> dict[str, numpy.ndarray]:
    longer = dict(row)
    for spec in signature.inputs:
        if spec.name not in padding.input_axes:
            continue
        own, shape = row[spec.name], longest[spec.name]
        if padding.mask and spec.name != padding.mask:
            longer[spec.name] = _values(spec, source, list(shape), draw)
        else:
            longer[spec.name] = numpy.full(shape, padding.values[spec.name], own.dtype)
        longer[spec.name][tuple(map(slice, own.shape))] = own
    return longer


def _values(
    spec: TensorSpec, source: ModelSource, shape: list[int], draw: numpy.random.Generator
) -> numpy.ndarray:
    declared = next((entry.values for entry in source.inputs if entry.name == spec.name), None)
    low, high = declared or ((0, 2) if BY_DTYPE[spec.dtype].array[1] in "iub" else (-1, 1))
    if spec.dtype == "bfloat16":
        return (draw.uniform(low, high, shape).astype("<f4").view("<u4") >> 16).astype("<u2")
    if BY_DTYPE[spec.dtype].array[1] in "iub":
        return draw.integers(int(low), int(high), shape).astype(BY_DTYPE[spec.dtype].array)
    return draw.uniform(low, high, shape).astype(BY_DTYPE[spec.dtype].array)


def _difference(got: numpy.ndarray, expected: numpy.ndarray, dtype: str) -> tuple[float, float]:
    """The largest difference of two arrays, and the largest that is allowed."""
    if not expected.size:
        return 0.0, 0.0
    wide, true = _wide(got, dtype), _wide(expected, dtype)
    same = (wide == true) | (numpy.isnan(wide) & numpy.isnan(true))  # an infinity has no difference to itself
    largest = float(numpy.abs(true[numpy.isfinite(true)]).max(initial=1.0))
    return float(numpy.abs(wide[~same] - true[~same]).max(initial=0.0)), TOLERANCES.get(dtype, 0.0) * largest


def _wide(array: numpy.ndarray, dtype: str) -> numpy.ndarray:
    if dtype == "bfloat16":
        array = (array.astype("<u4") << 16).view("<f4")
    return array.astype("f8")
