"""Cases of the group Indices: a bad index is an error that names input, position and range, and reads
nothing."""

import pytest
import torch
from case_running import compiled, random

from dlcb.compiler import IndexRangeError


@pytest.mark.parametrize(("bad", "value"), [(10, 10), (-1, -1)], ids=["vocabulary", "negative"])
def test_I1_an_id_outside_the_vocabulary(store, bad, value):
    case = compiled(store, "lookup", {"ids": ("b", "s")}, types={"ids": "int64"}, values={"ids": (0, 10)})
    ids = torch.randint(0, 10, (3, 4))
    case.agrees(ids)
    ids[1, 2] = bad
    with pytest.raises(IndexRangeError) as caught:
        case.model.call(ids)
    error = caught.value
    assert (error.input, tuple(error.position), error.value, error.low, error.high) == (
        "ids",
        (1, 2),
        value,
        0,
        10,
    )
    ids[1, 2] = 9
    case.agrees(ids)


@pytest.mark.parametrize("factory", ["gather", "index_select", "take_along"])
def test_I2_an_index_equal_to_a_free_size(store, factory):
    shape = ("k",) if factory == "index_select" else ("n", "k")
    case = compiled(
        store, factory, {"x": ("n", "m"), "index": shape}, types={"index": "int64"}, values={"index": (0, 2)}
    )
    for m in (5, 9, 1):
        index = torch.randint(0, m, (4,) if factory == "index_select" else (3, 4))
        case.agrees(random(3, m), index)
        place = (2,) if factory == "index_select" else (1, 2)
        index[place] = m
        with pytest.raises(IndexRangeError) as caught:
            case.model.call(random(3, m), index)
        assert (caught.value.input, tuple(caught.value.position), caught.value.value) == ("index", place, m)
        assert caught.value.high == m


def test_I3_the_row_of_a_bad_index_is_known(store):
    case = compiled(store, "lookup", {"ids": ("b", "s")}, types={"ids": "int64"}, values={"ids": (0, 10)})
    ids = torch.randint(0, 10, (4, 5))
    ids[2, 3] = 77
    with pytest.raises(IndexRangeError) as caught:
        case.model.call(ids)
    assert caught.value.position[0] == 2
    assert case.signature.batch is not None and case.signature.batch.input_axes == {"ids": 0}
    case.agrees(ids[[0, 1, 3]])  # the neighbours get their answers


@pytest.mark.parametrize(
    ("factory", "index", "good", "bad"),
    [
        ("means_of_bags", ("k", "l"), [[0, 4], [1, 1]], (5, -1)),
        ("losses_by_class", ("n",), [0, 2, 1, 1, -100], (3, -1, 100)),
        ("losses_but_of_one_class", ("n",), [0, 2, 1, 1, 7], (3, -1, -100)),
        ("filled", ("k",), [0, 4, -5], (5, -6)),
        ("put", ("k",), [0, 14, -15], (15, -16)),
    ],
)
def test_I4_whatever_an_eager_operator_reads_through(store, factory, index, good, bad):
    """On a GPU each of these would end the process."""
    shapes = {"x": ("n", "m"), "index": index}
    case = compiled(store, factory, shapes, types={"index": "int64"}, values={"index": (0, 1)})
    x = random(5, 3)
    assert case.report.eager_nodes
    case.agrees(x, torch.tensor(good))
    for value in bad:
        wrong = torch.tensor(good)
        wrong.view(-1)[1] = value
        with pytest.raises(IndexRangeError) as caught:
            case.model.call(x, wrong)
        assert (caught.value.input, caught.value.value) == ("index", value)
        assert wrong[tuple(caught.value.position)] == value
    case.agrees(x, torch.tensor(good))


def test_I4_indices_of_an_eager_operator(store):
    case = compiled(
        store,
        "index_add",
        {"x": ("n", 3), "index": ("k",), "source": ("k", 3)},
        types={"index": "int64"},
        values={"index": (0, 2)},
    )
    x, source = random(5, 3), random(2, 3)
    case.agrees(x, torch.tensor([4, 0]), source)
    with pytest.raises(IndexRangeError) as caught:
        case.model.call(x, torch.tensor([1, 5]), source)
    assert (caught.value.input, tuple(caught.value.position), caught.value.value) == ("index", (1,), 5)
