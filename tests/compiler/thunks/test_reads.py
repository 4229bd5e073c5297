"""Bad indices in PyTorch's own forwards: no operator reads through one, and the error names input, position
and range, as that of a compiled program does."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dlcb.compiler.errors import GuardError, IndexRangeError
from dlcb.compiler.thunks.eager import EagerThunk

TABLE = torch.arange(20.0).view(5, 4)
IDS = torch.tensor([[0, 4, 1], [2, 3, 0]])
WHOLE = {  # what reads through ids of 0 to 4, or writes through them
    "embedding": lambda ids: F.embedding(ids, TABLE),
    "embedding_bag": lambda ids: F.embedding_bag(ids, TABLE, mode="sum"),
    "bag_of_offsets": lambda ids: F.embedding_bag(ids.flatten(), TABLE, torch.tensor([0, 2]), mode="max"),
    "index": lambda ids: TABLE[ids],
    "columns": lambda ids: TABLE.t()[:, ids],
    "index_select": lambda ids: TABLE.index_select(0, ids.flatten()),
    "gather": lambda ids: TABLE.t().contiguous().gather(1, ids),
    "take": lambda ids: TABLE[:, 0].contiguous().take(ids),
    "scatter": lambda ids: torch.zeros(2, 5).scatter(1, ids, 1.0),
    "scatter_add": lambda ids: torch.zeros(2, 5).scatter_add_(1, ids, torch.ones(2, 3)),
    "scatter_reduce": lambda ids: torch.zeros(2, 5).scatter_reduce(1, ids, torch.ones(2, 3), "amax"),
    "index_add": lambda ids: torch.zeros(5, 4).index_add(0, ids.flatten(), torch.ones(6, 4)),
    "index_put": lambda ids: torch.zeros(5, 4).index_put((ids,), torch.tensor(1.0)),
    "setitem": lambda ids: _written(torch.zeros(5, 4), ids),
    "one_hot": lambda ids: F.one_hot(ids, 5),
    "nll_loss": lambda ids: F.nll_loss(torch.zeros(6, 5), ids.flatten()),
    "cross_entropy": lambda ids: F.cross_entropy(torch.zeros(2, 5, 3), ids),
}


def _written(x: Tensor, ids: Tensor) -> Tensor:
    x[ids] = 1.0
    return x


class Through(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return self.function(ids) * x


class Asserts(TorchDispatchMode):
    """Stands for a GPU, where nobody may run an operator with a bad index: what PyTorch refuses ends this."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        try:
            return func(*args, **(kwargs or {}))
        except (IndexError, RuntimeError) as error:
            raise SystemExit(f"device-side assert: {error}") from error


def thunk_of(function: Callable[[Tensor], Tensor], watched: bool) -> EagerThunk:
    return EagerThunk(lambda: Through(function).eval(), ("x", "ids"), torch.device("cpu"), watched=watched)


@pytest.mark.parametrize("watched", [False, True], ids=["cpu", "as_on_cuda"])
@pytest.mark.parametrize("bad", [5, -6])
@pytest.mark.parametrize("name", WHOLE)
def test_a_bad_index_is_named(name: str, bad: int, watched: bool) -> None:
    function, x = WHOLE[name], torch.ones(1)
    thunk = thunk_of(function, watched)
    torch.testing.assert_close(thunk.run((x, IDS)).outputs[0], function(IDS) * x)
    ids = IDS.clone()
    ids[1, 1] = bad
    if name == "one_hot":
        with pytest.raises(
            GuardError, match="Class values must be"
        ):  # PyTorch looks for these itself on a CPU
            thunk.run((x, ids))
        return
    with pytest.raises(IndexRangeError) as caught:
        if watched:
            with Asserts():
                thunk.run((x, ids))
        else:
            thunk.run((x, ids))
    assert (caught.value.input, caught.value.position, caught.value.value) == ("ids", (1, 1), bad)
    assert caught.value.high == 5
    torch.testing.assert_close(thunk.run((x, IDS)).outputs[0], function(IDS) * x)


@pytest.mark.parametrize("watched", [False, True], ids=["cpu", "as_on_cuda"])
def test_what_is_computed_from_an_input_is_named_where_it_is_that_value(watched: bool) -> None:
    ids = IDS.clone()
    ids[0, 2] = 7
    with pytest.raises(IndexRangeError, match=r"'ids' holds 7 at position \[0, 2\], where 0 to 4"):
        thunk_of(lambda ids: F.embedding((ids.float() + 0.5).long(), TABLE), watched).run(
            (torch.ones(1), ids)
        )
    with pytest.raises(IndexRangeError, match=r"'ids' holds 7 at position \[0, 2\], where 0 to 4"):
        thunk_of(lambda ids: F.embedding(ids[:, 2:], TABLE), watched).run((torch.ones(1), ids))
    with pytest.raises(
        IndexRangeError, match=r"indices of aten.embedding.default' holds 5 at position \[0, 1\]"
    ):
        thunk_of(lambda ids: F.embedding(ids + 1, TABLE), watched).run((torch.ones(1), ids))


@pytest.mark.parametrize("watched", [False, True], ids=["cpu", "as_on_cuda"])
def test_negative_indices_masks_and_classes_that_mean_nothing_are_right(watched: bool) -> None:
    x, ids = torch.ones(1), torch.tensor([-5, 4, -1])
    for function in (
        lambda ids: TABLE[ids],
        lambda ids: TABLE[torch.tensor([True, False, True, True, False]), : len(ids)],
        lambda ids: F.cross_entropy(TABLE[:3], torch.where(ids < 0, -100, 3)),
        lambda ids: torch.zeros(3, 0)[:, ids[:0]],
    ):
        torch.testing.assert_close(thunk_of(function, watched).run((x, ids)).outputs[0], function(ids) * x)


@pytest.mark.parametrize("watched", [False, True], ids=["cpu", "as_on_cuda"])
def test_indices_beside_a_mask_are_of_the_axis_behind_all_that_it_spans(watched: bool) -> None:
    table, mask = torch.arange(30.0).view(2, 3, 5), torch.tensor([[True, False, True], [False, True, False]])
    for function in (
        lambda ids: table[mask, ids],
        lambda ids: table.permute(2, 0, 1)[ids, mask],
        lambda ids: torch.zeros(2, 3, 5).index_put((mask, ids), torch.tensor(1.0)),
    ):
        thunk, x = thunk_of(function, watched), torch.ones(1)
        for right in ([4], [-5], [4, 0, -1]):
            ids = torch.tensor(right)
            torch.testing.assert_close(thunk.run((x, ids)).outputs[0], function(ids) * x)
        for wrong in (5, -6):
            with pytest.raises(IndexRangeError, match=rf"'ids' holds {wrong} at .*, where -5 to 4"):
                thunk.run((x, torch.tensor([wrong])))


def test_of_an_axis_without_elements_nothing_is_read() -> None:
    with pytest.raises(IndexRangeError, match="holds 0 at position"):
        thunk_of(lambda ids: F.embedding(ids, torch.zeros(0, 4)), True).run((torch.ones(1), IDS))


def test_other_errors_keep_their_words() -> None:
    def fails(ids: Tensor) -> Tensor:
        raise ValueError("no such index page")

    for watched in (False, True):
        with pytest.raises(GuardError, match="no such index page"):
            thunk_of(fails, watched).run((torch.ones(1), IDS))


class Scripted(nn.Module):
    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return F.embedding(ids, torch.ones(5, 4)) * x.sum()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated")
@pytest.mark.parametrize("kind", ["scripted", "exported"])
def test_in_programs_that_others_have_made_as_well(kind: str) -> None:
    module = Scripted()
    sample = torch.ones(1), IDS
    made = torch.jit.script(module) if kind == "scripted" else torch.export.export(module, sample).module()
    thunk = EagerThunk(lambda: made, ("x", "ids"), torch.device("cpu"), watched=True)
    torch.testing.assert_close(thunk.run(sample).outputs[0], module(*sample))
    with pytest.raises(IndexRangeError, match=r"'ids' holds 8 at position \[0, 0\], where 0 to 4"), Asserts():
        thunk.run((torch.ones(1), IDS + 8))
