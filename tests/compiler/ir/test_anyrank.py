"""Programs whose inputs have lists of sizes: what is known before any rank is, and one text at ranks 2, 3 and
4."""

from __future__ import annotations

import numpy as np
import pytest

from dlcb.compiler.errors import ShapeError
from dlcb.compiler.ir.anyrank import parse_any_rank
from dlcb.compiler.ir.reference import evaluate
from dlcb.compiler.ir.text import parse, show

LAYER = """program layer
func scaled(x: float32[*a, k], gain: float32[k])
  %y = mul(%x, %gain) : float32[*a, k]
  return %y
end
input x: float32[*s, n, 8]
input column: float32[*s, n, 1]
input w: float32[8, 5]
input bias: float32[5]
%product = matmul(%x, %w) : float32[*s, n, 5]
%moved = add(%product, %bias) : float32[*s, n, 5]
%weighted = mul(%column, %moved)
%gained = call scaled(%weighted, %bias)
%result = tanh(%gained)
return %result
"""
LEADS = [(), (3,), (2, 3)]


def test_the_rank_is_known_of_nothing_and_the_shape_of_everything() -> None:
    program = parse_any_rank(LAYER)
    assert [repr(each) for each in program.outputs] == ["float32[*s, n, 5]"]
    assert not program.shapes.residual


@pytest.mark.parametrize("lead", LEADS, ids=len)
def test_one_text_at_each_rank(lead: tuple[int, ...]) -> None:
    shapes = {"x": (*lead, 4, 8), "column": (*lead, 4, 1)}
    graph = parse_any_rank(LAYER).at(shapes)
    random = np.random.default_rng(1)
    arrays = {name: random.normal(size=s) for name, s in {**shapes, "w": (8, 5), "bias": (5,)}.items()}
    expected = np.tanh((arrays["x"] @ arrays["w"] + arrays["bias"]) * arrays["column"] * arrays["bias"])
    np.testing.assert_allclose(evaluate(graph, arrays)[0], expected)
    assert show(parse(show(graph))) == show(graph)


def test_a_size_may_stay_free_at_a_known_rank() -> None:
    program = parse_any_rank(LAYER)
    n = program.outputs[0].shape[1]
    assert program.at({"x": (2, n, 8), "column": (2, n, 1)}).outputs[0].shape[1].op == "size"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "bias: float32[5]",
            "bias: float32[6]",
            r"add: 5 does not broadcast with 6, for %product: .*, %bias",
        ),
        ("w: float32[8, 5]", "w: float32[7, 5]", r"matmul: 8 must equal 7, for %x: float32\[\*s, n, 8\]"),
        ("%bias) : float32[*s, n, 5]", "%bias) : float32[*s, 5]", r"add: .* differ in rank.*written type"),
        ("scaled(%weighted, %bias)", "scaled(%weighted, %column)", r"call of scaled: .* differ in rank"),
    ],
)
def test_what_holds_at_no_rank_is_refused_before_any_is_known(old: str, new: str, message: str) -> None:
    assert old in LAYER
    with pytest.raises(ShapeError, match=message):
        parse_any_rank(LAYER.replace(old, new))


@pytest.mark.parametrize(
    ("x", "column", "message"),
    [
        ((3, 4, 8), (2, 4, 1), r"input column: 3 must equal 2, for \*s in column"),
        ((3, 4, 8), (3, 5, 1), r"input column: 4 must equal 5"),
        ((3, 4, 8), (4, 1), r"\*s stands for \[3\] and for \[\]"),
        ((8,), (1,), r"does not fit the rank of %x"),
    ],
)
def test_inputs_that_do_not_fit(x: tuple[int, ...], column: tuple[int, ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        parse_any_rank(LAYER).at({"x": x, "column": column})


UNDECIDED = """program undecided
input x: float32[*s, n]
input y: float32[*t, n]
%sum = add(%x, %y)  # model.py:4
%rows = sum(%sum; axes=(0,), keepdim=False)
return %sum, %rows
"""


def test_what_no_rank_decides_stays_symbolic_and_is_checked_where_it_is_known() -> None:
    program = parse_any_rank(UNDECIDED)
    total, rows = program.outputs
    assert repr(total.shape[-1]) == "n" and repr(total.shape[0]).startswith("*joined")
    assert repr(rows).startswith("float32[*sum")  # which axis the first one is depends on the rank
    assert [it.why.source for it in program.shapes.residual] == ["model.py:4"]
    for x, y in (((2, 5), (5,)), ((1, 5), (4, 5)), ((3, 1, 5), (2, 5)), ((5,), (4, 3, 2, 5))):
        arrays = {"x": np.ones(x), "y": np.full(y, 2.0)}
        found = evaluate(program.at({"x": x, "y": y}), arrays)
        np.testing.assert_allclose(found[0], arrays["x"] + arrays["y"])
        np.testing.assert_allclose(found[1], (arrays["x"] + arrays["y"]).sum(0))
    with pytest.raises(ShapeError, match=r"add: 2 does not broadcast with 3.*model.py:4"):
        program.at({"x": (2, 5), "y": (3, 5)})


def test_a_loop_keeps_its_state_at_every_rank() -> None:
    text = """program recurrent
        func step(state: float32[*s, k], w: float32[k, k])
          %moved = linear(%state, %w)
          %next = tanh(%moved)
          return %next
        end
        input x: float32[*s, 3]
        parameter w: float32[3, 3]
        %y = loop step(%x, %w; count=2)
        return %y
        """
    program = parse_any_rank(text)
    assert repr(program.outputs[0]) == "float32[*s, 3]"
    assert [repr(program.at({"x": (*lead, 3)}).outputs[0].type) for lead in LEADS] == [
        "float32[3]",
        "float32[3, 3]",
        "float32[2, 3, 3]",
    ]
    with pytest.raises(ShapeError, match=r"loop over step|call of step"):
        parse_any_rank(
            text.replace("%next = tanh(%moved)", "%next = matmul(%moved, %w)").replace("[3, 3]", "[4, 3]")
        )
