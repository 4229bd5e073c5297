"""The arithmetic of a batch, and nothing else: which requests may be stacked, where their bytes lie in a
slot, and how outputs are cut into each request's own rows. Pure functions over shapes and buffers; the clock
is in `batcher`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from dlcb.compiler.signature import BatchAxes, Dim, Signature, TensorSpec
from dlcb.server.datatypes import BY_DTYPE
from dlcb.server.errors import ModelFailed
from dlcb.server.padding import Padding
from dlcb.server.slots import aligned
from dlcb.server.types import Buffer, InferRequest, Tensor

NOTHING_LONGER: Mapping[str, int] = {}
LARGEST_SHARED = 4096  # bytes of an input without rows that are compared to let requests share it


class Placed(NamedTuple):
    """One stacked input in a slot: `shape` has the rows of all requests along the batch axis."""

    name: str
    array: str
    offset: int
    shape: tuple[int, ...]
    size: int


def group_of(
    request: InferRequest, batch: BatchAxes | None, padding: Padding | None = None
) -> Hashable | None:
    """Requests with equal groups may be stacked: the dims beside the batch axis and the padded axes agree,
    and so does every input that has no rows. None for a request that must run alone."""
    if batch is None:
        return None
    padded = {} if padding is None else padding.input_axes
    group: list[tuple[Any, ...]] = []
    for name, tensor in request.inputs.items():
        axis = batch.input_axes.get(name)
        if axis is not None:
            free = (axis, *padded.get(name, ()))
            group.append((name, *(size for at, size in enumerate(tensor.shape) if at not in free)))
        elif len(tensor.data) <= LARGEST_SHARED:
            group.append((name, tensor.shape, bytes(tensor.data)))
        else:
            return None
    return tuple(sorted(group))


def rows_of(request: InferRequest, batch: BatchAxes | None) -> int:
    """The request's rows, 1 where the model has no batch axis."""
    if batch is None:
        return 1
    name, axis = next(iter(batch.input_axes.items()))
    return request.inputs[name].shape[axis]


def place(
    requests: Sequence[InferRequest],
    signature: Signature,
    padding: Padding | None = None,
    lengths: Mapping[str, int] = NOTHING_LONGER,
) -> tuple[list[Placed], int]:
    """Where each input of the stacked requests goes, and the bytes that takes. Sizes are padded to those of
    the longest request, or to `lengths`, by symbol, where that is more."""
    batch = signature.batch
    placed, offset = [], 0
    for spec in signature.inputs:
        tensors = [request.inputs[spec.name] for request in requests]
        shape, datatype = tensors[0].shape, tensors[0].datatype
        axis = None if batch is None or len(requests) == 1 else batch.input_axes.get(spec.name)
        if axis is not None:
            sizes = list(shape)
            sizes[axis] = sum(tensor.shape[axis] for tensor in tensors)
            for filled in () if padding is None else padding.input_axes.get(spec.name, ()):
                longest = max(tensor.shape[filled] for tensor in tensors)
                sizes[filled] = max(longest, lengths.get(_symbol(spec, filled), 0))
            shape = tuple(sizes)
        size = math.prod(shape) * datatype.size
        placed.append(Placed(spec.name, datatype.array, offset, shape, size))
        offset = aligned(offset + size)
    return placed, offset


def _symbol(spec: TensorSpec, axis: int) -> str:
    dim = None if spec.dims is None else spec.dims[axis]
    return dim.symbol if isinstance(dim, Dim) else ""


def stack(
    requests: Sequence[InferRequest],
    placed: Sequence[Placed],
    batch: BatchAxes | None,
    slot: memoryview,
    padding: Padding | None = None,
) -> None:
    """Copy every request's rows to their place, and fill shorter ones up."""
    for entry in placed:
        tensors = [request.inputs[entry.name] for request in requests]
        axis = None if batch is None or len(requests) == 1 else batch.input_axes.get(entry.name)
        if axis is None:
            slot[entry.offset : entry.offset + entry.size] = tensors[0].data
            continue
        filled = () if padding is None else padding.input_axes.get(entry.name, ())
        if padding is not None and any(
            tensor.shape[at] != entry.shape[at] for tensor in tensors for at in filled
        ):
            _stack_padded(tensors, entry, axis, padding.values[entry.name], slot)
        elif axis == 0:
            offset = entry.offset
            for tensor in tensors:
                end = offset + len(tensor.data)
                slot[offset:end] = tensor.data
                offset = end
        else:
            _stack_along(tensors, entry, axis, slot)


def split(
    outputs: dict[str, tuple[tuple[int, ...], memoryview]],
    rows: Sequence[int],
    signature: Signature,
    own_shapes: Sequence[Mapping[str, tuple[int, ...]]] = (),
) -> list[dict[str, Tensor]]:
    """Each request's own outputs, as views where rows are contiguous; where requests were padded, what fills
    their `own_shapes`. ModelFailed when an output is missing or has other rows than went in."""
    batch = signature.batch
    answers: list[dict[str, Tensor]] = [{} for _ in rows]
    for spec in signature.outputs:
        if spec.name not in outputs:
            raise ModelFailed(f"the model did not return its output '{spec.name}'")
        shape, data = outputs[spec.name]
        datatype = BY_DTYPE[spec.dtype]
        axis = None if batch is None or len(rows) == 1 else batch.output_axes.get(spec.name)
        if axis is None:
            for answer in answers:
                answer[spec.name] = Tensor(spec.name, datatype, shape, data)
            continue
        if shape[axis] != sum(rows):
            raise ModelFailed(f"output '{spec.name}' has {shape[axis]} rows, {sum(rows)} went in")
        before, after, start = shape[:axis], shape[axis + 1 :], 0
        row_bytes = len(data) // shape[0] if axis == 0 and shape[0] else 0
        for index, count in enumerate(rows):
            own = (*before, count, *after)
            known = own_shapes[index] if own_shapes else None
            if known and known.get(spec.name, own) != own:
                own = known[spec.name]
                part = _cut_padded(data, shape, axis, start, own, datatype.array)
            elif axis == 0:
                part = data[start * row_bytes : (start + count) * row_bytes]
            else:
                part = _cut(data, shape, axis, start, count, datatype.array)
            answers[index][spec.name] = Tensor(spec.name, datatype, own, part)
            start += count
    return answers


def owner_of_row(row: int, rows: Sequence[int]) -> tuple[int, int]:
    """Which request of a batch row `row` belongs to, and that row's number within the request."""
    for index, count in enumerate(rows):
        if row < count:
            return index, row
        row -= count
    raise ValueError(f"row {row} lies past the last request")


def _stack_along(tensors: Sequence[Tensor], entry: Placed, axis: int, slot: memoryview) -> None:
    target = numpy.frombuffer(slot[entry.offset : entry.offset + entry.size], entry.array).reshape(
        entry.shape
    )
    start = 0
    for tensor in tensors:
        count = tensor.shape[axis]
        own = numpy.frombuffer(tensor.data, entry.array).reshape(tensor.shape)
        target[(slice(None),) * axis + (slice(start, start + count),)] = own
        start += count


def _stack_padded(
    tensors: Sequence[Tensor], entry: Placed, axis: int, value: float, slot: memoryview
) -> None:
    target = numpy.frombuffer(slot[entry.offset : entry.offset + entry.size], entry.array).reshape(
        entry.shape
    )
    start = 0
    for tensor in tensors:
        rows = slice(start, start + tensor.shape[axis])
        target[(slice(None),) * axis + (rows,)] = value
        place = [slice(size) for size in tensor.shape]
        place[axis] = rows
        target[tuple(place)] = numpy.frombuffer(tensor.data, entry.array).reshape(tensor.shape)
        start += tensor.shape[axis]


def _cut_padded(
    data: memoryview, shape: tuple[int, ...], axis: int, start: int, own: tuple[int, ...], array: str
) -> Buffer:
    place = [slice(size) for size in own]
    place[axis] = slice(start, start + own[axis])
    part = numpy.frombuffer(data, array).reshape(shape)[tuple(place)]
    return numpy.ascontiguousarray(part).data.cast("B") if part.size else b""


def _cut(data: memoryview, shape: tuple[int, ...], axis: int, start: int, count: int, array: str) -> Buffer:
    whole = numpy.frombuffer(data, array).reshape(shape)
    part = whole[(slice(None),) * axis + (slice(start, start + count),)]
    return numpy.ascontiguousarray(part).data.cast("B") if part.size else b""
