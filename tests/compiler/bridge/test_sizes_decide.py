"""Random programs whose Python asks their size: at every size either the graph that serves it gives what the
program gives, or the graph says that it is not proven there."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from captured_programs import as_array, captured, graph_outputs
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dlcb.compiler.bridge.captured import Captured
from dlcb.compiler.bridge.symbolic import holds
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import evaluate

Question = Callable[[int], object]
SIZES = (0, 1, 2, 3, 5, 7, 8, 13, 16, 17, 40, 64, 129)

_numbers = st.integers(0, 20)


def _questions() -> st.SearchStrategy[Question]:
    """Of a size; the answer is true or false."""
    return st.one_of(
        _numbers.map(lambda k: lambda n: n < k),
        _numbers.map(lambda k: lambda n: n == k),
        st.integers(1, 5).map(lambda k: lambda n: n % k),
        st.integers(1, 9).map(lambda k: lambda n: divmod(n, k)[0] > 1),
        st.sets(_numbers).map(lambda keys: lambda n: n in keys),
        st.sets(_numbers).map(lambda keys: lambda n: n in list(keys)),
        st.dictionaries(_numbers, st.booleans()).map(lambda table: table.get),
        st.integers(0, 9).map(lambda digit: lambda n: str(n).endswith(str(digit))),
        st.integers(0, 9).map(lambda digit: lambda n: f"{n:03d}"[1] == str(digit)),
        st.integers(2, 9).map(lambda k: lambda n: int(n / k) == 1),
        st.integers(2, 9).map(lambda k: lambda n: hash(n) % k == 1),
        st.integers(1, 9).map(lambda k: lambda n: bool(torch.tensor(n) > k)),
        st.just(lambda n: not n),
    )


@settings(max_examples=20, deadline=None)
@given(st.lists(_questions(), min_size=1, max_size=2))
def test_no_size_is_answered_otherwise_unsaid(questions: list[Question]) -> None:
    def program(x: Tensor) -> Tensor:
        for place, question in enumerate(questions):
            x = x * (place + 2) if question(x.shape[0]) else x + 1
        return x

    found = captured(program, ("n", 3))
    graphs = (found, *found.others)
    if any(graph.unproven for graph in graphs):
        return
    for n in SIZES:
        x = torch.randn(n, 3)
        sizes = {"n": n}
        for graph in graphs:
            guards = graph.graph.system.solve().guards
            if all(evaluate(guard.condition, sizes) for guard in guards) and _fits(graph, n):
                (ours,) = graph_outputs(graph, {"x0": x})
                torch.testing.assert_close(torch.from_numpy(ours), torch.from_numpy(as_array(program(x))))
                break


def _fits(graph: Captured, n: int) -> bool:
    verdict = graph.verdicts[0]
    return verdict.low <= n and (verdict.high is None or n <= verdict.high)


def _of_ratios(x: Tensor) -> Tensor:
    if x.shape[1] / x.shape[0] < 0.5:
        return x * 2
    return x - 1 if x.shape[1] // x.shape[0] > 4 else x + 1


def _guarded_division(x: Tensor) -> Tensor:
    if x.shape[0] < 4:
        return x + 1
    return x * 2 if 100 // (x.shape[0] - 2) > x.shape[1] else x - 1


def _asks_more(x: Tensor) -> Tensor:
    if x.shape[1] / x.shape[0] > 3:
        x = x + 1
    return x.view(x.shape[0], -1, 4).sum(-1)  # refuses the sizes next to the branch


@pytest.mark.parametrize("program", [_of_ratios, _guarded_division, _asks_more])
def test_a_branch_is_no_refusal_because_the_program_fails_beyond_it_for_another_reason(
    program: Callable[[Tensor], Tensor],
) -> None:
    found = captured(program, ("n", "m"))
    for graph in (found, *found.others):
        guards = [guard.condition for guard in graph.graph.system.solve().guards]
        for n, m in itertools.product(range(1, 12), repeat=2):
            sizes = {"n": n, "m": m}
            try:
                program(torch.ones(n, m))
            except RuntimeError:
                continue
            if _hold([branch.condition for branch in graph.within], sizes):
                assert _hold(guards, sizes), sizes


def _hold(conditions: list[Expr], sizes: dict[str, int]) -> bool:
    return all(holds(condition, sizes) for condition in conditions)
