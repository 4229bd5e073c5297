"""Runs of a freshly loaded model that decide whether it may serve:
one at a small legal shape, and, where a mask is declared, padded batches against the same rows unpadded.
"""

from __future__ import annotations

from typing import Any

import numpy

from dlcb.compiler import ModelSource, RequestError, Signature
from dlcb.compiler.signature import Dim, TensorSpec
from dlcb.server.datatypes import BY_DTYPE
from dlcb.server.padding import Padding, PaddingError

PROBE_SIZE = 2
PADDED_LENGTHS = (3, 17, 1, 9)
TOLERANCES = {
    "float64": 1e-8,
    "float32": 1e-4,
    "float16": 2e-2,
    "bfloat16": 5e-2,
}  # of the largest value; integers are equal


def probe(model: Any, source: ModelSource) -> None:
    """Run the model once at a small legal shape with legal values. A model with an input of any rank has no
    shape to probe before the first request."""
    signature: Signature = model.signature
    declared = {entry.name: entry for entry in source.inputs}
    arrays = {}
    for spec in signature.inputs:
        if spec.dims is None:
            return
        shape = [dim if isinstance(dim, int) else dim.nearest(PROBE_SIZE) for dim in spec.dims]
        entry = declared.get(spec.name)
        value = entry.values[0] if entry is not None and entry.values else 0
        arrays[spec.name] = numpy.full(shape, value, BY_DTYPE[spec.dtype].array)
    try:
        signature.check(
            {name: array.shape for name, array in arrays.items()}, {s.name: s.dtype for s in signature.inputs}
        )
    except RequestError:
        return  # guards that tie dims together: the compiler's own load check has run legal shapes
    model.run(arrays)


def check_padding(model: Any, source: ModelSource, padding: Padding) -> None:
    """PaddingError when rows padded to the longest, with random legal values under a mask of 0, give other
    results than each row alone."""
    signature: Signature = model.signature
    draw = numpy.random.default_rng(0)
    lengths = [_legal(signature, padding, length) for length in PADDED_LENGTHS]
    alone = [_row(signature, source, padding, length, draw) for length in lengths]
    longest = max(lengths)
    padded = [_lengthened(signature, source, padding, row, longest, draw) for row in alone]
    assert signature.batch is not None
    together = {
        spec.name: numpy.concatenate(
            [row[spec.name] for row in padded], axis=signature.batch.input_axes[spec.name]
        )
        if spec.name in signature.batch.input_axes
        else padded[0][spec.name]
        for spec in signature.inputs
    }
    stacked = model.run(together).outputs
    for number, (row, length) in enumerate(zip(alone, lengths, strict=True)):
        outputs = model.run(row).outputs
        for spec in signature.outputs:
            name, expected = spec.name, outputs[spec.name]
            axis = signature.batch.output_axes[name]
            rows = expected.shape[axis]
            got = stacked[name].take(range(number * rows, (number + 1) * rows), axis=axis)
            if name in padding.output_axes:
                got = got.take(range(length), axis=padding.output_axes[name])
            difference, allowed = _difference(got, expected, spec.dtype)
            if not difference <= allowed:
                raise PaddingError(
                    f"mask '{padding.mask}' does not hide padding: output '{name}' of length {length} is off "
                    f"by {difference:.3g} when padded to {longest}, at most {allowed:.3g} is allowed"
                )


def _legal(signature: Signature, padding: Padding, length: int) -> int:
    for spec in signature.inputs:
        for dim in spec.dims or ():
            if isinstance(dim, Dim) and dim.symbol == padding.symbol:
                return dim.nearest(length)
    raise PaddingError(f"no input has the dim '{padding.symbol}'")


def _row(
    signature: Signature, source: ModelSource, padding: Padding, length: int, draw: numpy.random.Generator
) -> dict[str, numpy.ndarray]:
    """One row with random legal values, all of it under the mask."""
    assert signature.batch is not None
    arrays = {}
    for spec in signature.inputs:
        shape = []
        for dim in spec.dims or ():
            if not isinstance(dim, Dim):
                shape.append(dim)
            elif dim.symbol == signature.batch.symbol:
                shape.append(dim.nearest(1))
            else:
                shape.append(length if dim.symbol == padding.symbol else dim.nearest(PROBE_SIZE))
        mask = spec.name == padding.mask
        arrays[spec.name] = (
            numpy.ones(shape, BY_DTYPE[spec.dtype].array) if mask else _values(spec, source, shape, draw)
        )
    return arrays


def _lengthened(
    signature: Signature,
    source: ModelSource,
    padding: Padding,
    row: dict[str, numpy.ndarray],
    longest: int,
    draw: numpy.random.Generator,
) -> dict[str, numpy.ndarray]:
    longer = dict(row)
    for spec in signature.inputs:
        axis = padding.input_axes.get(spec.name)
        if axis is None:
            continue
        shape = list(row[spec.name].shape)
        shape[axis] = longest - shape[axis]
        if spec.name == padding.mask:
            tail = numpy.zeros(shape, row[spec.name].dtype)
        else:
            tail = _values(spec, source, shape, draw)
        longer[spec.name] = numpy.concatenate([row[spec.name], tail], axis=axis)
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
    allowed = TOLERANCES.get(dtype, 0.0) * max(float(numpy.abs(true).max()), 1.0)
    return float(numpy.abs(wide - true).max()), allowed


def _wide(array: numpy.ndarray, dtype: str) -> numpy.ndarray:
    if dtype == "bfloat16":
        array = (array.astype("<u4") << 16).view("<f4")
    return array.astype("f8")
