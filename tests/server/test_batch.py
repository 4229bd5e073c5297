"""The arithmetic of batches, held against numpy: stacked and split again, everything is where it was."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcb.compiler import BatchAxes, Signature, TensorSpec
from dlcb.server.batch import group_of, owner_of_row, place, split, stack
from dlcb.server.datatypes import DATATYPES
from dlcb.server.errors import ModelFailed
from dlcb.server.padding import Padding
from dlcb.server.types import InferRequest, Tensor

SPEC = TensorSpec("x", "float32", None)


def request(**arrays: numpy.ndarray) -> InferRequest:
    tensors = {
        name: Tensor(name, DATATYPES["FP32"], array.shape, array.astype("<f4").tobytes())
        for name, array in arrays.items()
    }
    return InferRequest(inputs=tensors)


@settings(deadline=None)  # a busy machine is no failure
@given(axis=st.integers(0, 2), rows=st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_stack_then_split_gives_each_its_own(axis: int, rows: list[int]) -> None:
    signature = Signature(
        (SPEC,), (TensorSpec("y", "float32", None),), batch=BatchAxes("b", {"x": axis}, {"y": axis})
    )
    shapes = [tuple(count if place == axis else place + 2 for place in range(3)) for count in rows]
    arrays = [
        numpy.random.default_rng(count).random(shape).astype("float32") for count, shape in enumerate(shapes)
    ]
    requests = [request(x=array) for array in arrays]
    placed, size = place(requests, signature)
    slot = memoryview(bytearray(max(size, 1)))
    stack(requests, placed, signature.batch, slot)
    (entry,) = placed
    data = slot[entry.offset : entry.offset + entry.size]
    together = numpy.frombuffer(data, "<f4").reshape(entry.shape)
    assert numpy.array_equal(together, numpy.concatenate(arrays, axis))
    for array, answer in zip(arrays, split({"y": (entry.shape, data)}, rows, signature), strict=True):
        tensor = answer["y"]
        assert tensor.shape == array.shape
        assert bytes(tensor.data) == array.tobytes()


@settings(deadline=None)  # a busy machine is no failure
@given(
    axes=st.sampled_from([(0, 1), (1, 0), (0, 2), (2, 1)]),
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=6),
)
def test_padded_and_cut_again_each_is_its_own(axes: tuple[int, int], sizes: list[tuple[int, int]]) -> None:
    axis, filled = axes
    signature = Signature(
        (SPEC,), (TensorSpec("y", "float32", None),), batch=BatchAxes("b", {"x": axis}, {"y": axis})
    )
    padding = Padding(["n"], "x", {"x": [filled]}, {"x": -7.0})
    rows = [count for count, _length in sizes]
    arrays = []
    for number, (count, length) in enumerate(sizes):
        shape = [2, 2, 2]
        shape[axis], shape[filled] = count, length
        arrays.append(numpy.random.default_rng(number).random(shape).astype("float32"))
    requests = [request(x=array) for array in arrays]
    assert len({group_of(one, signature.batch, padding) for one in requests}) == 1
    (entry,), size = place(requests, signature, padding)
    slot = memoryview(bytearray(max(size, 1)))
    stack(requests, [entry], signature.batch, slot, padding)
    data = slot[entry.offset : entry.offset + entry.size]
    together = numpy.frombuffer(data, "<f4").reshape(entry.shape)
    assert (together == -7.0).sum() == together.size - sum(array.size for array in arrays)
    own = [{"y": array.shape} for array in arrays]
    answers = split({"y": (entry.shape, data)}, rows, signature, own)
    for array, answer in zip(arrays, answers, strict=True):
        assert answer["y"].shape == array.shape
        assert bytes(answer["y"].data) == array.tobytes()


def test_groups_agree_on_everything_but_rows() -> None:
    batch = BatchAxes("b", {"x": 0}, {"y": 0})
    same = [group_of(request(x=numpy.zeros((rows, 3)), scale=numpy.ones(2)), batch) for rows in (1, 5)]
    assert same[0] == same[1] is not None
    assert group_of(request(x=numpy.zeros((1, 4)), scale=numpy.ones(2)), batch) != same[0]
    assert group_of(request(x=numpy.zeros((1, 3)), scale=numpy.zeros(2)), batch) != same[0]
    assert group_of(request(x=numpy.zeros((1, 3))), None) is None
    assert group_of(request(x=numpy.zeros((1, 3)), scale=numpy.zeros(5000)), batch) is None


def test_other_rows_out_than_in_is_the_model_s_failure() -> None:
    signature = Signature((SPEC,), (SPEC,), batch=BatchAxes("b", {"x": 0}, {"x": 0}))
    with pytest.raises(ModelFailed, match="5 rows, 3 went in"):
        split({"x": ((5, 1), memoryview(bytes(20)))}, [1, 2], signature)
    with pytest.raises(ModelFailed, match="did not return"):
        split({}, [1, 2], signature)


@settings(deadline=None)  # a busy machine is no failure
@given(rows=st.lists(st.integers(0, 5), min_size=1))
def test_every_row_has_one_owner(rows: list[int]) -> None:
    owners = [owner_of_row(row, rows) for row in range(sum(rows))]
    assert owners == [(index, row) for index, count in enumerate(rows) for row in range(count)]
    with pytest.raises(ValueError, match="past"):
        owner_of_row(sum(rows), rows)
