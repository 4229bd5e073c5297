"""Traces without writes against eager PyTorch with them: each is run call by call on real tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from captured_programs import Program, captured, graph_outputs
from torch import Tensor, nn
from torch.fx.node import Node, map_arg

from dlcb.compiler.bridge.fake_calls import Unrecordable
from dlcb.compiler.bridge.functional import functional
from dlcb.compiler.bridge.indexing import ExplicitSlices
from dlcb.compiler.bridge.record import Trace, record
from dlcb.compiler.bridge.symbolic import holds
from dlcb.compiler.kgen import generate
from dlcb.compiler.options import Target
from dlcb.compiler.passes.pipeline import run_passes, schedule


def recorded(function: Callable[[Tensor], Any]) -> Trace:
    with torch.no_grad(), ExplicitSlices():
        return record(Program(function).eval(), (torch.zeros(5, 6),), {}, ("x",))


def run(trace: Trace, x: Tensor) -> list[Tensor]:
    values: dict[Node, Any] = {}
    for node in trace.nodes:
        if node.op == "placeholder":
            name = trace.parameters.names.get(node.name)
            values[node] = x if name is None else trace.parameters.tensors[name]
        elif node.op == "call_function":
            assert node.target is operator.getitem or not node.target._schema.is_mutable
            arguments = map_arg(node.args, values.__getitem__)
            values[node] = node.target(*arguments, **map_arg(node.kwargs, values.__getitem__))
            if isinstance(values[node], Tensor):
                assert tuple(values[node].shape) == node.meta["val"].shape
                assert values[node].dtype is node.meta["val"].dtype
    return [values[node] for node in trace.outputs]


def marked(x: Tensor) -> Tensor:
    mask = x.new_zeros(x.shape)
    for k, rows in enumerate((slice(0, -3), slice(-3, -1), slice(-1, None))):
        for columns in (slice(0, 2), slice(2, None)):
            mask[rows, columns] = k
    return mask + x


def views_before_and_after(x: Tensor) -> tuple[Tensor, ...]:
    whole = x * 2
    row, part = whole[1], whole[1:4]
    before = row + 0
    part[:, 2:] = x[1:4, 2:] - 7
    whole[0] = 5.0
    row.add_(1)
    return before, row, part, whole, whole[:2, 3]


def of_another_type(x: Tensor) -> Tensor:
    counts = torch.zeros(5, dtype=torch.int64)
    counts[1:3] = 2.0
    counts[0] = x[0, 0].sum() > 100
    return counts


def on_fresh_results_too(x: Tensor) -> Tensor:
    y = (x + 1).relu_()
    y[2:].mul_(3)
    return y.masked_fill_(x > 0, 2.0)


def two_memories(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x + 1, x + 2
    a[1:], b[:2] = b[1:], a[:2]
    return a, b


def on_what_may_be_a_copy(x: Tensor) -> Tensor:
    y = (x + 1).transpose(0, 1).contiguous()
    y[:, 0] += 2.0
    y[1] = y[0] * 3
    return y.reshape(-1)


def on_results_of_products(x: Tensor) -> Tensor:
    y = torch.nn.functional.linear(x, x).relu_()
    z = torch.einsum("ij,kj->ik", x + 1, x + 2)
    z *= 3
    y[0] = z[1] + y[1]
    return torch.stack([y, z])


def dropped_out(x: Tensor) -> tuple[Tensor, ...]:
    y = x + 1
    same = torch.dropout(y, 0.5, False)
    same[0] = 0.0
    torch.feature_dropout(y[1:], 0.5, False).mul_(2)
    return y, same


def turned(x: Tensor) -> tuple[Tensor, ...]:
    y = x + 1
    y.t()[1] = 5.0
    y.transpose(0, 1)[2:].mul_(3)
    y.view(2, 5, 3).permute(2, 0, 1)[0, :, 1:].add_(4)
    y.view(-1)[::1][3:7] = 0.0
    y.unsqueeze(1)[2, 0] = -1.0
    return y, y.t()


def increased(x: Tensor) -> Tensor:
    y = x + 1
    y[1:][:, 2:] += 3
    y[:, 1] *= 2
    return y


def on_diagonals(x: Tensor) -> tuple[Tensor, ...]:
    y = x + 1
    y.diagonal(1).fill_(3.0)
    y.t().diagonal().mul_(2)
    y.fill_diagonal_(5.0)
    return y, y.diagonal(-1)


def at_indices(x: Tensor) -> Tensor:
    y, places = x + 1, torch.arange(3)
    y[1:].index_add_(0, places, x[:3])
    y.index_fill_(1, places, 0.5)
    y[:, 3:].scatter_(1, places[None], 7.0)
    y[places] = x[2:]
    return y


def on_one_of_several(x: Tensor) -> tuple[Tensor, ...]:
    """Shares of the greatest, as a router of experts makes them."""
    best, places = (x * 2).exp().topk(3)
    best /= best.sum(-1, keepdim=True)
    order = torch.empty_like(places[0])
    order[places[0].argsort()] = torch.arange(3)
    return best, places, order


def under_masks(x: Tensor) -> Tensor:
    y = x + 1
    y[y < 0] = 0
    y[:, 1:][x[:, 1:] > 0] = float("-inf")
    y[x[:, 0] > 0] = 2.0
    return y


def on_its_input(x: Tensor) -> tuple[Tensor, ...]:
    columns = x.t()
    before = x * 2
    x -= x.mean(-1, keepdim=True)
    x[x > 1] = 0.0
    columns[0].add_(before[:, 1])
    return before, x, columns, x[1:]


def through_other_names(x: Tensor) -> tuple[Tensor, ...]:
    """Of one memory, without a call that says so."""
    y = x + 1
    y.data[:, ::2].mul_(3)
    y.detach()[0] = 2.0
    y.t().data.add_(x.data[:, :1].t())
    with torch.no_grad():
        y[1:].data.relu_()
    x.data.add_(1)
    return y, x, y.data


@pytest.mark.parametrize(
    "function",
    [
        *(marked, views_before_and_after, of_another_type, on_fresh_results_too, two_memories),
        *(on_what_may_be_a_copy, on_results_of_products, lambda x: (x + 1).transpose(0, 1).fill_(1)),
        *(dropped_out, turned, increased, on_diagonals, at_indices, under_masks, on_one_of_several),
        *(on_its_input, through_other_names, lambda x: x.contiguous().fill_(1)),
        lambda x: torch.dropout(x, 0.5, False)[0].fill_(1),
    ],
)
def test_gives_what_eager_gives(function: Callable[[Tensor], Any]) -> None:
    x = torch.randn(5, 6)
    expected = function(x.clone())
    found = run(functional(recorded(function)), x)
    for ours, theirs in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def reshaped(x: Tensor) -> Tensor:
    y = x + 1
    flat = y.reshape(-1)
    y[0] = 0.0
    return flat


def split(x: Tensor) -> Tensor:
    y = x + 1
    first, _ = y.split([2, 3])
    y[0] = 0.0
    return first


WEIGHT = torch.ones(5, 6)


def viewed_before(x: Tensor) -> Tensor:
    y = (x + 1).transpose(0, 1).contiguous()
    row = y.reshape(-1)[:3]
    y[0] = 0.0
    return row


@pytest.mark.parametrize(
    "function",
    [
        reshaped,
        split,
        viewed_before,
        lambda x: WEIGHT.fill_(1) + x,
        lambda x: WEIGHT.contiguous().fill_(1) + x,
        lambda x: WEIGHT.data[0].fill_(1) + x,
        lambda x: (x > 0).to(torch.int64)[0].eq_(1),
        lambda x: (x + 1)[0].copy_(x[1]).resize_(2),
    ],
    ids=[
        "reshape",
        "split",
        "viewed",
        "weight",
        "weight's copy",
        "weight's data",
        "type",
        "shape",
    ],
)
def test_what_might_be_seen_otherwise_is_refused(function: Callable[[Tensor], Any]) -> None:
    with pytest.raises(Unrecordable):
        functional(recorded(function))


def test_what_nobody_reads_later_may_have_been_seen() -> None:
    def function(x: Tensor) -> Tensor:
        y = x + 1
        total = y.reshape(-1).sum()
        y[0] = 0.0
        return y + total

    x = torch.randn(5, 6)
    torch.testing.assert_close(run(functional(recorded(function)), x)[0], function(x))


class Halves(nn.Module):
    """Writes where only the size says, in a place that is constant at small sizes."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        y[:, x.shape[1] // 40 :] = 3.0
        y[:, : x.shape[1] // 30] += x.shape[1]
        return y


class Exported(Halves):
    """The same, and a write that only torch.export follows."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        y.reshape(-1).add_(1)
        return y


def two_views_of_one_row(x: Tensor) -> tuple[Tensor, ...]:
    y = x + 1
    a, b = y[0], y[0]
    a.add_(1)
    b.mul_(2)
    return y, a, b


def rows_exchanged(x: Tensor) -> Tensor:
    y = x + 0
    y[0], y[-1] = y[-1], y[0]
    return y


def whole_and_part(x: Tensor) -> tuple[Tensor, ...]:
    y = x + 0
    row = y[0]
    rest = row[1:]
    y.mul_(2)
    rest.add_(1)
    return row, rest, y


@pytest.mark.parametrize("function", [on_diagonals, under_masks])
def test_writes_to_diagonals_and_under_masks_are_at_all_sizes(function: Callable[[Tensor], Any]) -> None:
    program = captured(function, ("rows", "columns"), dims={"columns": (1, None)})
    assert not program.unproven
    assert {node.op.kind for node in program.graph.nodes} <= {"create", "move", "pointwise"}
    for shape in ((0, 1), (1, 1), (1, 5), (2, 9), (7, 3)):
        x = torch.randn(shape)
        expected = function(x)
        found = graph_outputs(program, {"x0": x})
        for ours, theirs in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
            torch.testing.assert_close(torch.from_numpy(ours).float(), theirs)


@pytest.mark.parametrize("function", [two_views_of_one_row, rows_exchanged, whole_and_part])
def test_views_that_only_writes_read_are_captured(function: Callable[[Tensor], Any]) -> None:
    program = captured(function, ("rows", "columns"), dims={"rows": (2, 400), "columns": (2, 400)})
    for shape in ((2, 5), (7, 3), (4, 4)):
        x = torch.randn(shape)
        expected = function(x.clone())
        found = graph_outputs(program, {"x0": x})
        for ours, theirs in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
            torch.testing.assert_close(torch.from_numpy(ours).float(), theirs)


def test_writes_to_one_of_several_results_are_at_all_sizes() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return on_one_of_several(x)[:2]

    program = captured(function, ("rows", "columns"), dims={"columns": (3, None)})
    assert not program.unproven
    for shape in ((1, 3), (2, 9), (7, 5)):
        x = torch.randn(shape)
        found = graph_outputs(program, {"x0": x})
        for ours, theirs in zip(found, function(x), strict=True):
            torch.testing.assert_close(torch.from_numpy(ours).float(), theirs.float())


def test_an_increased_part_is_written_once() -> None:
    nodes = functional(recorded(increased)).nodes
    written = [str(node.target) for node in nodes if "scatter" in str(node.target)]
    assert written == ["aten.slice_scatter.default"] * 2 + ["aten.select_scatter.default"]


def one_row_is_seen(x: Tensor) -> Tensor:
    y = x + 1
    row = y.t().reshape(-1)
    row[0] = 9.0
    return y


def a_part_is_squeezed(x: Tensor) -> Tensor:
    y = x + 1
    y.squeeze(0).select(-1, 0).fill_(9.0)
    return y


def odd_parts(x: Tensor) -> Tensor:
    y = x + 1
    y.tensor_split(2)[0].mul_(3)
    return y


@pytest.mark.parametrize("function", [one_row_is_seen, a_part_is_squeezed, odd_parts])
def test_memory_that_lies_otherwise_at_other_sizes_is_not_proven(function: Callable[[Tensor], Any]) -> None:
    assert "in place" in captured(function, ("rows", 4)).unproven


def test_a_result_that_is_its_operand_is_not_fresh() -> None:
    def function(x: Tensor) -> Tensor:
        y = x + 1
        part = torch.dropout(y[1:], 0.5, False)
        part.mul_(2)
        return y

    program = captured(function, ("rows", 4))
    for rows in (1, 2, 7):
        x = torch.randn(rows, 4)
        (found,) = graph_outputs(program, {"x0": x})
        torch.testing.assert_close(torch.from_numpy(found).float(), function(x))


@pytest.mark.parametrize("rows", [7, 60, 130])
def test_a_step_that_is_one_where_it_was_traced(rows: int) -> None:
    """PyTorch leaves such a step out of its calls."""

    def function(x: Tensor) -> Tensor:
        return x[:: max(x.shape[0] // 50, 1)]

    program, x = captured(function, ("rows", 4)), torch.randn(rows, 4)
    for each in (program, *program.others):
        guards = [guard.condition for guard in each.graph.system.solve().guards]
        within = [branch.condition for branch in each.within]
        if all(holds(condition, {"rows": rows}) for condition in (*guards, *within)):
            (found,) = graph_outputs(each, {"x0": x})
            torch.testing.assert_close(torch.from_numpy(found).float(), function(x))


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 9])
def test_a_write_from_the_end_of_few_rows(rows: int) -> None:
    def function(x: Tensor) -> Tensor:
        y = x + 1
        y[-3:] = 0.0
        y[1:5] *= 2
        return y

    program = captured(function, ("rows", 4))
    serving = next(
        each
        for each in (program, *program.others)
        if all(holds(guard.condition, {"rows": rows}) for guard in each.graph.system.solve().guards)
        and each.verdicts[0].size in ("rows", rows)
    )
    x = torch.randn(rows, 4)
    (found,) = graph_outputs(serving, {"x0": x})
    torch.testing.assert_close(torch.from_numpy(found).float(), function(x))


@pytest.mark.parametrize("module", [Halves(), Exported()], ids=["recorded", "exported"])
def test_where_a_write_goes_is_known_as_the_program_says_it(module: nn.Module) -> None:
    program = captured(module.eval(), ("batch", "length"))
    for drawn in ((2, 7), (3, 100), (1, 1000)):
        verdicts = zip(program.verdicts, drawn, strict=True)
        x = torch.randn(
            [verdict.size if isinstance(verdict.size, int) else size for verdict, size in verdicts]
        )
        torch.testing.assert_close(torch.from_numpy(graph_outputs(program, {"x0": x})[0]).float(), module(x))


class Written(nn.Module):
    """Writes into parts of one tensor, one after the other."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for k in range(self.times):
            y[k:, k:-1] = x[k:, k:-1] * k
        return y


class Increased(Written):
    """Writes into parts of parts, which may lie beyond the end of a small tensor."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        for k in range(self.times):
            y[k % 5 :][:, k % 3 + 1 :] += k
        return y


class Shifted(Written):
    """Each write reads neighbours that the one before it wrote."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        for _ in range(self.times):
            y[1:] = y[:-1] * 0.5 + y[1:]
        return y


@pytest.mark.parametrize(
    ("kind", "least", "sizes"), [(Written, 16, (17, 20)), (Increased, 0, (3, 2)), (Shifted, 0, (4, 1))]
)
def test_kernels_grow_with_writes_and_do_not_double(
    kind: type[Written], least: int, sizes: tuple[int, int]
) -> None:
    lengths = []
    for times in (4, 8):
        dims = {"rows": (least, 400), "columns": (least, 400)}
        program = captured(kind(times).eval(), ("rows", "columns"), dims=dims)
        x = torch.randn(sizes)
        found = torch.from_numpy(graph_outputs(program, {"x0": x})[0]).float()
        torch.testing.assert_close(found, kind(times)(x))
        plan = schedule(run_passes(program.graph))
        kernels = [generate(group, plan.layouts, plan.graph.system, Target.cpp()) for group in plan.groups]
        lengths.append(sum(len(kernel.body) for made in kernels for kernel in made.kernels))
    assert lengths[1] < 3 * lengths[0], lengths  # it was 6 times as long, or more
