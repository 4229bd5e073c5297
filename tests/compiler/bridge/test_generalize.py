"""Which dims come out free, within which range and why; and that the graph is right at sizes that were
never traced."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from captured_programs import Program, assert_agrees, captured, source
from torch import Tensor, nn

from dlcb.compiler.bridge import capture
from dlcb.compiler.bridge.captured import Captured
from dlcb.compiler.bridge.generalize import generalize
from dlcb.compiler.bridge.record import Trace
from dlcb.compiler.bridge.scope import Scope
from dlcb.compiler.bridge.search import Search
from dlcb.compiler.bridge.stand_ins import Home
from dlcb.compiler.errors import CaptureError, ShapeError
from dlcb.compiler.expr.node import evaluate
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.source import InputDeclaration


def sizes_of(program: object) -> list[str | int]:
    return [verdict.size for verdict in program.verdicts]


# ---- free, pinned, limited -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(x.shape[0], 2, -1).transpose(1, 2).reshape(x.shape[0], -1),
        lambda x: x / x.shape[0] + x * x.shape[1] ** -0.5,
        lambda x: torch.arange(x.shape[1]) + x,
        lambda x: torch.arange(x.shape[1], 0, -1.0) + x,
        lambda x: torch.cat([x, x[:, :1]], 1)[:, 1:],
        lambda x: x.unsqueeze(0).expand(3, -1, -1).sum(0),
        lambda x: nn.functional.pad(x, (1, -x.shape[1] % 8)),
        lambda x: x[:, : x.shape[1] // 10 * 10],
        lambda x: torch.zeros(x.shape[1], x.shape[0]).t() + x,
        lambda x: x * ((x.shape[0] - 9) // 2),
        lambda x: x * (x.shape[1] // 64) + x * (x.shape[1] // 50),
        lambda x: x * round(x.shape[1] / 10) + x * (x.shape[0] / 3) ** 0.5,
        lambda x: x[:, : math.ceil(x.shape[1] / 2)] + torch.full((1,), x.shape[1]),
        lambda x: x[:, : torch.sym_min(x.shape[1], 18)] * 2,
    ],
)
def test_sizes_that_stand_as_literals_stay_free(function: object) -> None:
    program = captured(function, ("n", "m"))
    assert sizes_of(program) == ["n", "m"]
    assert all(verdict.high is None and verdict.certainty == "proven" for verdict in program.verdicts)
    for shape in ((1, 16), (9, 20), (4, 66), (12, 196)):
        assert_agrees(program, Program(function), {"x0": torch.randn(shape)})


def test_a_view_with_a_fixed_side_makes_the_length_a_multiple() -> None:
    program = captured(lambda x: x.view(100, -1) * 2, ("n",))
    (verdict,) = program.verdicts
    assert (verdict.size, verdict.multiple) == ("n", 100)
    assert_agrees(program, Program(lambda x: x.view(100, -1) * 2), {"x0": torch.randn(2100)})


def test_a_dim_declared_free_that_the_program_pins_is_an_error_with_operator_and_line() -> None:
    class Pinned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(8, 4) * 2

    with pytest.raises(ShapeError, match=r"declared free.*32.*reshape") as raised:
        captured(Pinned(), ("a", "b"))
    assert "test_generalize.py" in raised.value.source_line


def test_a_width_tied_to_a_weight_is_pinned_and_the_rest_is_free() -> None:
    weight = torch.randn(5)
    program = captured(
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight, ("rows", "?")
    )
    rows, width = program.verdicts
    assert (rows.size, rows.high, width.size, width.beyond) == ("rows", None, 5, "refused")
    assert "5" in width.reason


def test_a_loop_over_a_size_holds_it_and_says_so() -> None:
    def summed(x: torch.Tensor) -> torch.Tensor:
        y = x[:, 0]
        for step in range(1, x.shape[1]):
            y = y.relu() + x[:, step]
        return y

    rows, steps = captured(summed, ("rows", "steps")).verdicts
    assert rows.size == "rows"
    assert isinstance(steps.size, int)
    assert "makes a plain number of it, as a loop over it does" in steps.reason
    assert "test_generalize.py" in steps.source


class Packed(nn.Module):
    """A recurrence over sequences that are packed by their lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = x[:, :, 0].ge(0).sum(1).clamp(min=1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.steps(packed)[1][0]


def positive(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if bool((x > 0).any()) else x.cumsum(1)


def conditional(x: torch.Tensor) -> torch.Tensor:
    return torch.cond((x > 0).any(), lambda x: x * 2, lambda x: x.cumsum(1), (x,))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (Packed(), "sequences are packed by lengths that are values"),
        (positive, "what it does next depends on values of tensors"),
        (conditional, r"depends on values of tensors \(torch.cond\)"),
    ],
)
def test_what_goes_by_values_says_so(function: Callable[..., object], why: str) -> None:
    with pytest.raises(CaptureError, match=why) as raised:
        captured(function, ("rows", "steps", 4))
    assert "test_generalize.py" in raised.value.source_line


def test_a_branch_on_a_size_bounds_the_graph_to_its_side() -> None:
    program = captured(lambda x: x + 1 if x.shape[0] < 10 else x * 2, ("n",))
    (verdict,) = program.verdicts
    assert (verdict.low, verdict.high) == (10, None)
    assert verdict.beyond == "eager"
    assert "a branch" in verdict.reason and "test_generalize.py" in verdict.source
    (other,) = program.others
    assert [(each.low, each.high) for each in other.verdicts] == [(0, 9)]


def test_two_programs_with_equal_graphs_keep_their_own_ranges() -> None:
    guarded = captured(lambda x: x * 2 if x.shape[0] >= 10 else x + 1, ("n",), dims={"n": (10, 64)})
    free = captured(lambda x: x * 2, ("n",))
    assert guarded.verdicts[0].high == 64
    assert free.verdicts[0].high is None


def stepwise(x: Tensor) -> Tensor:
    if x.shape[0] < 16:
        return x + 1
    return x * 2 if x.shape[0] < 100 else x.cos()


def summed(x: Tensor) -> Tensor:
    return x.sum(0) if x.shape[0] > 1 and x.shape[1] % 3 else x.sum(1)


def with_constants(x: Tensor) -> Tensor:
    return x + torch.tensor([1.0, 2.0]) if x.shape[0] % 2 else x * torch.tensor([3.0, 4.0])


@pytest.mark.parametrize(
    ("function", "shape", "graphs"),
    [
        (lambda x: x + 1 if x.shape[0] % 2 else x * 2, ("n", 2), ["n % 2 != 0", "n % 2 == 0"]),
        (stepwise, ("n", 2), ["n < 16", "16 <= n and n < 100", "16 <= n and 100 <= n"]),
        (lambda x: (x * 2).squeeze() + 1, ("n", "m"), None),
        (lambda x: x.squeeze(0) + 1, ("n", 2), ["n != 1", "n == 1"]),
        (summed, ("n", "m"), None),
        (with_constants, ("n", 2), ["n % 2 != 0", "n % 2 == 0"]),
    ],
    ids=["parity", "steps", "squeeze", "squeeze of an axis", "both", "constants"],
)
def test_each_size_has_a_graph_where_the_program_changes(
    function: object, shape: tuple[str | int, ...], graphs: list[str] | None
) -> None:
    program = captured(function, shape)
    every = (program, *program.others)
    if graphs is not None:
        assert {" and ".join(repr(b.condition) for b in each.within) for each in every} == set(graphs)
    assert program.serves_all({})
    for sizes in itertools.product((0, 1, 2, 3, 15, 16, 99, 100), (1, 2, 3)):
        given = dict(zip(shape, sizes, strict=True))
        if isinstance(shape[1], int) and sizes[1] != shape[1]:
            continue
        serving = [each for each in every if served(each, given)]
        assert serving
        for each in serving:
            assert_agrees(each, Program(function), {"x0": torch.randn(sizes)})


def served(program: Captured, sizes: dict[str, int]) -> bool:
    return all(evaluate(guard.condition, sizes) for guard in program.graph.system.solve().guards)


def test_of_more_graphs_than_are_made_it_is_said_where_none_serves() -> None:
    def function(x: Tensor) -> Tensor:
        for power in (6, 5, 4, 3, 2):
            if x.shape[0] > 2**power:
                return x * power
        return x - 1

    program = captured(function, ("n",))
    every = (program, *program.others)
    assert len(every) == 4 and program.elsewhere
    for words in program.elsewhere:
        assert words.startswith("where ") and words.endswith("more than 4 graphs are not made")
        found = re.search(r"and no graph serves, as at n = (\d+), PyTorch", words)
        assert found and not any(served(each, {"n": int(found[1])}) for each in every)


def test_a_loop_over_a_size_has_one_graph_and_leaves_the_rest() -> None:
    program = captured(lambda x: sum(x[k] for k in range(x.shape[0])), ("n", "m"))
    assert not program.others
    assert not program.serves_all({})


def test_a_slice_that_cuts_nothing_in_any_trace_still_cuts() -> None:
    program = captured(lambda x: x[:, :100, None] * 2, ("n", "m"))
    for length in (5, 100, 250):
        assert_agrees(program, Program(lambda x: x[:, :100, None] * 2), {"x0": torch.randn(2, length)})


def test_a_slice_that_is_written_to_cuts_too() -> None:
    def function(x: Tensor) -> Tensor:
        y = x + 1
        y[:, 2:100] = 0
        return y

    program = captured(function, ("n", "m"))
    for length in (5, 100, 250):
        assert_agrees(program, Program(function), {"x0": torch.randn(2, length)})


def test_sizes_that_a_rule_refuses_and_the_program_takes_are_left_to_eager() -> None:
    (verdict,) = captured(lambda x: x[1:] * 2, ("n",)).verdicts
    assert (verdict.low, verdict.beyond) == (1, "eager")


def test_a_branch_without_effect_bounds_nothing() -> None:
    def function(x: Tensor) -> Tensor:
        scale = [2.0, 1.0 + 1.0][x.shape[0] > 1]
        return x * scale

    assert captured(function, ("n",)).verdicts[0].low == 0


def test_an_unrolled_loop_holds_its_dim_and_leaves_others_to_eager() -> None:
    def function(x: Tensor) -> Tensor:
        for step in range(x.shape[0]):
            x = x + step
        return x

    program = captured(function, ("n", "m"))
    held, free = program.verdicts
    assert isinstance(held.size, int) and held.beyond == "eager"
    assert free.size == "m"


def test_the_greatest_length_is_read_off_a_position_table() -> None:
    table = nn.Embedding(48, 4)
    by_slice = captured(lambda x: x + table.weight[: x.shape[1]], ("b", "s", 4))
    by_lookup = captured(lambda x: x + table(torch.arange(x.shape[1])), ("b", "s", 4))
    for program in (by_slice, by_lookup):
        assert [(v.low, v.high) for v in program.verdicts[:2]] == [(0, None), (0, 48)]


def test_sizes_from_a_chain_of_windows() -> None:
    chain = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.MaxPool2d(2, 2, ceil_mode=True), nn.Conv2d(4, 2, 3, stride=2)
    )
    program = captured(chain, ("b", 3, "h", "w"))
    assert [verdict.low for verdict in program.verdicts] == [0, 3, 7, 7]
    assert_agrees(program, chain, {"x0": torch.randn(2, 3, 7, 12)})
    with pytest.raises(RuntimeError):
        chain(torch.randn(1, 3, 6, 7))


def test_images_that_a_program_makes_smaller_are_traced_at_two_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, traced = [], capture.trace

    def noted(module: nn.Module, inputs: dict[str, Tensor], home: Home) -> Trace:
        shapes.append(tuple(inputs["x0"].shape))
        return traced(module, inputs, home)

    monkeypatch.setattr(capture, "trace", noted)
    halves = nn.Sequential(*(nn.Conv2d(3, 3, 3, 2, 1) for _ in range(4)))
    captured(halves, ("b", 3, "h", "w"))
    assert len(shapes) == 2
    assert all(halves(torch.zeros(shape)).shape[2:].numel() > 4 for shape in shapes)


def test_equal_names_are_one_size_and_different_names_never_merge() -> None:
    program = captured(lambda x, y: (x @ y).relu(), ("n", "m"), ("m", "k"))
    assert sizes_of(program) == ["n", "m", "m", "k"]
    assert [repr(size) for size in program.graph.outputs[0].shape] == ["n", "k"]


def test_dims_that_are_only_accepted_when_equal_are_tied_and_stay_free() -> None:
    program = captured(lambda x: x + x.transpose(1, 2), ("b", "n", "m"))
    assert [verdict.high for verdict in program.verdicts] == [None, None, None]
    assert "m == n" in program.verdicts[1].reason
    assert_agrees(program, Program(lambda x: x + x.transpose(1, 2)), {"x0": torch.randn(2, 5, 5)})


def test_inputs_that_must_agree_are_tied_without_names() -> None:
    program = captured(lambda x, y: (x * y).sum(1), ("?", "?"), ("?", "?"))
    assert all(isinstance(verdict.size, str) and verdict.high is None for verdict in program.verdicts)
    assert_agrees(
        program, Program(lambda x, y: (x * y).sum(1)), {"x0": torch.randn(3, 4), "x1": torch.randn(3, 4)}
    )


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x.view(-1, 2).sum(1) + y,
        lambda x, y: x[::2] + y,
        lambda x, y: torch.full(((x.shape[0] + 1) // 2 - 2,), 2.0) + y,
        lambda x, y: torch.arange(x.shape[0] // 3 - 2) + y,
        lambda x, y: nn.functional.avg_pool1d(x[None], 3)[0][2:] @ y,
        lambda x, y: torch.cat([nn.functional.avg_pool1d(x[None], 3)[0, 2:, None], y[:, None]], 1),
        lambda x, y: torch.stack([nn.functional.avg_pool1d(x[None], 3)[0, 2:], y]),
        lambda x, y: nn.functional.avg_pool1d(x[None], 7)[0][1:] * y,
        lambda x, y: y.view(x.shape[0] // 3 - 2, 1) * 2,
    ],
)
def test_a_size_and_a_part_of_it_are_free_in_whichever_order(function: Any, turned: bool) -> None:
    program = Program((lambda y, x: function(x, y)) if turned else function)
    found = captured(program, *((("part",), ("whole",)) if turned else (("whole",), ("part",))))
    assert sorted(map(str, sizes_of(found))) == ["part", "whole"]
    for lengths in ((36, 38), (37,), (53,)):  # also where the part is that of a shorter whole
        pairs = (
            (whole, part) for whole, part in itertools.product(lengths, range(30))
            if _is_taken(program, *((part, whole) if turned else (whole, part))) and part > 1
        )  # fmt: skip
        if (pair := next(pairs, None)) is None:
            continue  # an odd length, which has no half
        whole, part = pair
        guards = found.graph.system.solve().guards
        assert all(evaluate(each.condition, {"whole": whole, "part": part}) for each in guards)
        given = (torch.randn(part), torch.randn(whole)) if turned else (torch.randn(whole), torch.randn(part))
        assert_agrees(found, program, dict(zip(("x0", "x1"), given, strict=True)))


def _is_taken(program: nn.Module, *sizes: int) -> bool:
    try:
        program(*map(torch.zeros, sizes))
    except RuntimeError:
        return False
    return True


def test_an_output_dim_that_was_declared_free_stays_free() -> None:
    (size,) = captured(lambda x: x.flatten(), ("n", 3)).graph.outputs[0].shape
    assert size.free


def test_a_mask_gives_a_run_time_size_and_an_eager_node() -> None:
    program = captured(lambda x: (x[x > 0] * 2).sum(), ("n",))
    assert [node.op.name for node in program.graph.nodes].count("eager") == 1
    assert_agrees(program, Program(lambda x: (x[x > 0] * 2).sum()), {"x0": torch.randn(23)})


def test_an_unknown_operator_is_an_eager_node_between_two_regions() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.sort(torch.exp(x) + 1, dim=1)[0].softmax(-1)

    program = captured(function, ("n", "m"))
    names = [node.op.name for node in program.graph.nodes]
    assert names == ["exp", "full", "add", "eager", "softmax"]
    assert "aten.sort.default" in program.notes[0]
    assert_agrees(program, Program(function), {"x0": torch.randn(3, 7)})


@pytest.mark.parametrize("scale", [1.25, 0.7, (1.25, 2.0)])
def test_sizes_of_a_call_that_its_row_leaves_to_pytorch_are_those_of_the_symbolic_forward(scale: Any) -> None:
    def function(x: Tensor) -> Tensor:
        y = nn.functional.interpolate(x, scale_factor=scale, mode="bilinear", align_corners=True)
        return y.var((0, 2), keepdim=True, correction=0).reshape(-1, 1, 1, y.shape[3]).exp()

    program = captured(function, ("n", 2, "n", "n"))
    assert [size.value for size in program.graph.inputs[0].shape if size.op == "size"] == ["n"] * 3
    assert all(size.free <= set(program.graph.inputs[0].shape) for size in program.graph.outputs[0].shape)
    for n in (2, 3, 4, 5, 7, 8):
        assert_agrees(program, Program(function), {"x0": torch.randn(n, 2, n, n)})


@pytest.mark.parametrize("cut", [slice(None), slice(1, None)])
@pytest.mark.parametrize("name", ["avg_pool2d", "max_pool2d"])
def test_windows_that_may_hang_over_the_end_are_no_branch(name: str, cut: slice) -> None:
    pool = getattr(nn.functional, name)

    def function(x: Tensor) -> Tensor:
        rows = x[..., cut].flatten(0, 1)
        y = pool(pool(rows, 1, 2, ceil_mode=True), 2, 3, 1, ceil_mode=True)
        return y.reshape(*x.shape[:2], *y.shape[1:])

    program = captured(function, ("b", 3, "h", "w"))
    assert sizes_of(program) == ["b", 3, "h", "w"]
    assert not program.others and not program.within
    for height, width in itertools.product((2, 3, 4, 5, 9), (5, 6, 7, 8)):
        assert_agrees(program, Program(function), {"x0": torch.randn(2, 3, height, width)})


def test_sizes_that_models_are_cut_for_come_before_a_walk_from_branch_to_branch() -> None:
    def padded(x: Tensor) -> Tensor:
        for multiple in (2, 4, 8, 16, 32):  # six programs, of which four are kept
            x = x * 2 if x.shape[0] % multiple else x + 1
        return x

    inputs = source(InputDeclaration("x", "float32", ("n",)))
    search = Search(Scope(inputs, Program(padded).eval(), CompileOptions()))
    search.run()
    assert search.usual is not None and search.usual[1] == {"n": 256}
    found = search.beyond(*search.usual, 2).run()
    assert (found.verdicts[0].multiple, found.verdicts[0].high) == (32, None)


def test_a_size_that_is_written_into_a_tensor_stays_free() -> None:
    def numbered(x: Tensor) -> Tensor:
        places = torch.zeros(x.shape[0] + 1, 3)
        places[1:, 1:] = x.shape[0] * 2
        places[0] = x.shape[0] / 4
        counts = torch.zeros(4, dtype=torch.int64)
        counts[0], counts[2:] = x.shape[0] - 1, 5.0
        return places.sum() * x + counts.sum()

    program = captured(numbered, ("n", 4))
    assert sizes_of(program) == ["n", 4] and program.verdicts[0].certainty == "proven"
    for n in (1, 5, 40):
        assert_agrees(program, Program(numbered), {"x0": torch.randn(n, 4)})


def test_changes_in_place_through_views_become_functional() -> None:
    def function(x: Tensor) -> Tensor:
        y = x + 1
        y[:, 0].mul_(3)
        y.relu_()
        return y.add_(1)

    assert_agrees(captured(function, ("n", "m")), Program(function), {"x0": torch.randn(4, 5)})


# ---- what cannot be captured -----------------------------------------------------------------------


def test_a_failing_program_names_the_users_line() -> None:
    def function(x: Tensor) -> Tensor:
        raise ValueError("no such thing")

    with pytest.raises(CaptureError, match="ValueError: no such thing") as raised:
        captured(function, ("n",))
    assert "test_generalize.py" in raised.value.source_line


class Rescaled(nn.Module):
    """Changes a weight in its first forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.rescaled = nn.Linear(4, 4).requires_grad_(False), False

    def forward(self, x: Tensor) -> Tensor:
        if not self.rescaled:
            self.linear.weight.div_(2)
            self.rescaled = True
        return self.linear(x)


def test_a_program_that_rescales_a_weight_is_refused() -> None:
    sizes: list[int] = []
    module = Rescaled().eval()
    module.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].shape[0]))
    with pytest.raises(CaptureError, match=r"changes linear\.weight"):
        generalize(source(InputDeclaration("x", "float32", ("n", 4))), module)
    assert max(sizes) < 64  # it changes at larger sizes as well


def test_a_program_that_changes_its_weights_is_refused() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(1)
            return x + self.count

    with pytest.raises(CaptureError, match="changes count"):
        generalize(source(InputDeclaration("x", "float32", ("n",))), Counting().eval())


def test_an_input_without_rank_is_for_the_jit_tier() -> None:
    with pytest.raises(CaptureError, match="'x' has no rank"):
        generalize(source(InputDeclaration("x", "float32", None)), Program(lambda x: x).eval())


@pytest.mark.parametrize(
    "function",
    [lambda x: (x > 0).nonzero(), lambda x: x.masked_select(x > 0) * 2, lambda x: torch.unique(x.round())],
)
def test_sizes_that_data_decide_pin_no_others(function: Callable[[Tensor], Tensor]) -> None:
    """torch.export asserts that there are no more of them than the traced tensor has elements."""
    program = captured(function, ("batch", "rows", "columns"))
    assert sizes_of(program) == ["batch", "rows", "columns"]
    assert not program.unproven


def after(past: Tensor, x: Tensor) -> Tensor:
    """What a cache of keys does: a first call has none before it."""
    return torch.cat([past, x], 1) if past.numel() else x * 1


def test_an_empty_cache_has_a_graph_of_its_own() -> None:
    program = captured(after, ("b", "p", 4), ("b", "t", 4))
    (first,) = program.others
    assert first.verdicts[1].low == 0 and not program.elsewhere
    for graph, b, p in ((program, 2, 3), (program, 3, 1), (first, 2, 0)):
        assert_agrees(graph, Program(after), {"x0": torch.randn(b, p, 4), "x1": torch.randn(b, 5, 4)})
