"""Numbers that the user's code makes of sizes follow them. This module does nothing with `int` and `float`
but call them, which is where they can be followed."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable
from math import sqrt

import pytest
import torch
from captured_programs import Program, assert_agrees, captured, source
from torch import Tensor

from dlcb.compiler.bridge import conversions
from dlcb.compiler.bridge.generalize import generalize
from dlcb.compiler.bridge.guards import collect
from dlcb.compiler.expr.node import size
from dlcb.compiler.source import InputDeclaration


def function_of(text: str) -> types.CodeType:
    return compile(text, "text", "exec").co_consts[0]


@pytest.mark.parametrize(
    ("body", "only_called"),
    [
        ("return int(x) + int('7', 8)", True),
        ("return int(x) if isinstance(x, int) else x", True),
        ("return isinstance(x, (int, float)) and int(x)", True),
        ("return isinstance(len(x), int)", True),
        ("return isinstance(x.to(int), float)", False),
        ("return type(x) is int", False),
        ("return list(map(int, x))", False),
        ("return x.to(int)", False),
        ("return torch.zeros(isinstance(x, str), dtype=int)", False),
    ],
)
def test_a_type_is_replaced_only_where_it_is_called(body: str, only_called: bool) -> None:
    assert conversions._calls_only(function_of(f"def f(x): {body}"), "int") is only_called


def test_all_is_as_before_after_a_forward() -> None:
    names = vars(sys.modules[__name__])
    before = {name: names.get(name) for name in ("int", "float", "len")}, math.sqrt, math.log
    program = Program(lambda x: x / float(x.shape[0]) + math.sqrt(int(x.shape[0])) + len(x))
    found = collect(program, {"x": torch.randn(5)}, {"x": (size("n"),)}, 10.0)
    assert not found.missing
    assert before == ({name: names.get(name) for name in ("int", "float", "len")}, math.sqrt, math.log)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / math.sqrt(x.shape[1]) + math.log(x.shape[0] + 1),
        lambda x: x / sqrt(x.shape[1]) + math.log(x.shape[0] + 1, 10),
        lambda x: x.sum() / float(x.shape[1]) + x,
        lambda x: x[:, : int(x.shape[1] * 0.5)],
        lambda x: x.reshape(int(x.shape[0]) * int(x.shape[1])) * math.log2(x.shape[1] + 2),
        lambda x: torch.zeros(len(x), 1) + x,
        lambda x: x * 2 if isinstance(len(x), int) and not isinstance(x.shape[1], (str, float)) else x[0],
    ],
)
def test_a_number_that_is_made_of_a_size_follows_it(function: object) -> None:
    program = captured(function, ("n", "m"))
    assert [verdict.size for verdict in program.verdicts] == ["n", "m"]
    assert all((verdict.low, verdict.certainty) == (0, "proven") for verdict in program.verdicts)
    for shape in ((1, 16), (9, 20), (4, 66)):
        assert_agrees(program, Program(function), {"x0": torch.randn(shape)})


@pytest.mark.parametrize(
    ("function", "edge"),
    [
        (lambda x: x * 2 if x.shape[0] / 2 > 10.5 else x + 1, 22),
        (lambda x: x * 2 if math.sqrt(x.shape[0]) > 3.2 else x + 1, 11),
        (lambda x: x * 2 if int(x.shape[0] * 0.5) > 3 else x + 1, 8),
    ],
)
def test_a_branch_on_such_a_number_has_its_edge_where_the_program_has_it(function: object, edge: int) -> None:
    first = captured(function, ("n",))
    ranges = {(each.verdicts[0].low, each.verdicts[0].high) for each in (first, *first.others)}
    assert ranges == {(0, edge - 1), (edge, None)}


def test_what_a_function_of_math_refuses_bounds_the_size() -> None:
    (verdict,) = captured(lambda x: x * math.sqrt(x.shape[0] - 3), ("n",)).verdicts
    assert (verdict.low, verdict.certainty) == (3, "proven")


WHOLE = torch.tensor([3, -2, 0, 7])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: torch.full((2,), float(x.shape[0])),
        lambda x, i: torch.full((2,), math.sqrt(x.shape[0])),
        lambda x, i: torch.full((2,), x.shape[0] * 1.0),
        lambda x, i: i * float(x.shape[0]) + (i > 0) * float(x.shape[1]),
        lambda x, i: torch.where(i > 0, i, float(x.shape[0])),
        lambda x, i: float(x.shape[0]) - i.clamp(max=float(x.shape[1])),
    ],
)
def test_a_whole_number_that_is_a_float_makes_floats(function: Callable[..., Tensor]) -> None:
    inputs = (InputDeclaration("x", "float32", ("n", "m")), InputDeclaration("i", "int64", ("k",), (-9, 9)))
    program = generalize(source(*inputs), Program(function).eval())
    assert program.graph.outputs[0].dtype.name == "float32" and not program.notes
    for shape in ((1, 2), (5, 3)):
        assert_agrees(program, Program(function), {"x": torch.randn(shape), "i": WHOLE})


def test_steps_up_to_a_float_are_floats_in_a_call_of_pytorchs() -> None:
    program = captured(lambda x: torch.arange(float(x.shape[0])), ("n",))
    (node,) = program.graph.nodes
    assert node.attributes["arguments"][0].dtype.is_float and node.results[0].dtype.name == "float32"
