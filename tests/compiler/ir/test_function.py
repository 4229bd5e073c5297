"""Functions and loops in the text form: one definition at many ranks, dims decided by joining programs,
contradictions."""

from __future__ import annotations

import numpy as np
import pytest

from dlcb.compiler.errors import CompilerError, ShapeError
from dlcb.compiler.expr.node import const
from dlcb.compiler.expr.node import evaluate as number
from dlcb.compiler.ir.reference import evaluate
from dlcb.compiler.ir.text import parse, show

PRODUCT = """
func product(x: float32[*batch, n, k], y: float32[*batch, k, m])
  %z = matmul(%x, %y) : float32[*batch, n, m]
  return %z
end
"""


def test_a_leading_list_of_sizes_serves_ranks_two_three_and_four() -> None:
    graph = parse(
        f"""program ranks
        {PRODUCT}
        input a: float32[n, k]
        input b: float32[k, m]
        input c: float32[p, n, k]
        input d: float32[p, k, m]
        input e: float32[q, p, n, k]
        input f: float32[q, p, k, m]
        %two = call product(%a, %b)
        %three = call product(%c, %d)
        %four = call product(%e, %f)
        return %two, %three, %four
        """
    )
    random = np.random.default_rng(1)
    shapes = {"a": (2, 3), "b": (3, 4), "c": (5, 2, 3), "d": (5, 3, 4), "e": (6, 5, 2, 3), "f": (6, 5, 3, 4)}
    arrays = {name: random.normal(size=shape) for name, shape in shapes.items()}
    expected = [arrays["a"] @ arrays["b"], arrays["c"] @ arrays["d"], arrays["e"] @ arrays["f"]]
    for found, right in zip(evaluate(graph, arrays), expected, strict=True):
        np.testing.assert_allclose(found, right)
    assert [value.name for value in graph.outputs] == ["two.z", "three.z", "four.z"]
    assert show(parse(show(graph))) == show(graph)


def test_attention_from_its_parts() -> None:
    graph = parse(
        """program attention
        func attend(q: float32[*heads, n, d], k: float32[*heads, m, d], v: float32[*heads, m, e])
          %keys = permute(%k; order=(0, 2, 1))
          %scores = matmul(%q, %keys)
          %scale = full(; shape=(), value={d}, dtype=float32)
          %root = rsqrt(%scale)
          %scaled = mul(%scores, %root)
          %weights = softmax(%scaled; axis=2)
          %result = matmul(%weights, %v) : float32[*heads, n, e]
          return %result
        end
        input q: float32[h, n, 4]
        input k: float32[h, m, 4]
        input v: float32[h, m, 6]
        %parts = call attend(%q, %k, %v)
        %whole = attention(%q, %k, %v)
        return %parts, %whole
        """
    )
    random = np.random.default_rng(2)
    arrays = {
        name: random.normal(size=s) for name, s in (("q", (2, 3, 4)), ("k", (2, 5, 4)), ("v", (2, 5, 6)))
    }
    parts, whole = evaluate(graph, arrays)
    np.testing.assert_allclose(parts, whole)


SIZES = """program sizes
size n in 0..
size m in 0..
size h in 7..
input x: float32[n, 12]
input y: float32[m, 12]
input image: float32[n, 3, h, h]
parameter w: float32[5, 3, 3, 3]
%joined = concat(%x, %y; axis=0) : float32[n + m, 12]
%split = reshape(%joined; shape=[n + m, ?, 4])
%conv = convolution(%image, %w; stride=(2, 1), padding=(1, 0), dilation=(1, 3))
return %joined, %split, %conv
"""


def test_sizes_of_concat_reshape_and_convolution() -> None:
    joined, split, conv = parse(SIZES).outputs
    sizes = {"n": 2, "m": 5, "h": 9}
    assert [number(extent, sizes) for extent in joined.shape] == [7, 12]
    assert split.shape[1] is const(3)
    assert [number(extent, sizes) for extent in conv.shape] == [2, 5, 5, 3]


STEP = """
func step(state: float32[n, k], w: float32[k, k])
  %moved = linear(%state, %w)
  %next = tanh(%moved)
  return %next
end
"""


def test_a_loop_keeps_the_type_of_its_state() -> None:
    graph = parse(
        f"""program recurrent
        {STEP}
        input x: float32[n, 3]
        parameter w: float32[3, 3]
        %y = loop step(%x, %w; count=3)
        return %y
        """
    )
    random = np.random.default_rng(3)
    x, w = random.normal(size=(2, 3)), random.normal(size=(3, 3))
    expected = x
    for _ in range(3):
        expected = np.tanh(expected @ w.T)
    np.testing.assert_allclose(evaluate(graph, {"x": x}, {"w": w})[0], expected)
    assert [node.result.name for node in graph.nodes][:3] == ["y.0.moved", "y.0.next", "y.1.moved"]


def test_a_loop_whose_state_must_be_square_decides_a_size() -> None:
    # neither the loop's body nor the input alone says that n is 3
    graph = parse(
        f"""program square
        {STEP}
        input x: float32[2, n]
        parameter w: float32[3, 3]
        %y = loop step(%x, %w; count=2)
        return %y
        """
    )
    assert graph.outputs[0].shape[1] is const(3)
    assert graph.system.solve().verdicts["n"].kind == "literal"


def test_a_state_that_grows_is_refused() -> None:
    with pytest.raises(ShapeError, match="loop over grow"):
        parse(
            """program growing
            func grow(state: float32[n, k])
              %next = concat(%state, %state; axis=1)
              return %next
            end
            input x: float32[2, 3]
            %y = loop grow(%x; count=2)
            return %y
            """
        )


def test_programs_that_decide_a_size_together() -> None:
    graph = parse(
        """program joint
        func flatten(x: float32[p, 2])
          %flat = reshape(%x; shape=[p * 2])
          return %flat
        end
        func weigh(x: float32[m], w: float32[m])
          %y = mul(%x, %w)
          return %y
        end
        input x: float32[n, 2]
        input w: float32[k]
        parameter v: float32[8]
        %a = call flatten(%x)
        %b = call weigh(%a, %w)
        %c = call weigh(%w, %v)
        return %b, %c
        """
    )
    solution = graph.system.solve()
    assert solution.verdicts["n"].value is const(4)
    assert solution.verdicts["k"].value is const(8)


def test_programs_that_contradict_each_other() -> None:
    with pytest.raises(ShapeError, match=r"7.*8|8.*7"):
        parse(
            """program joint
            func weigh(x: float32[m], w: float32[m])
              %y = mul(%x, %w)
              return %y
            end
            input x: float32[n]
            parameter w: float32[7]
            parameter v: float32[8]
            %a = call weigh(%x, %w)
            %b = call weigh(%x, %v)
            return %a, %b
            """
        )


def test_every_constraint_says_where_it_comes_from() -> None:
    graph = parse(
        """program stated
        input x: float32[a, 3, b]
        input y: float32[c, 3, d]
        input z: float32[e, f]
        %sum = add(%x, %y)  # model.py:1
        %joined = concat(%x, %y; axis=2)  # model.py:2
        %split = reshape(%sum; shape=[a, ?, 4])  # model.py:3
        %product = matmul(%x, %z)  # model.py:4
        return %sum, %split, %product, %joined
        """
    )
    whys = [guard.why for guard in graph.system.solve().guards]
    places = {(why.operator, why.source) for why in whys}
    assert {("add", "model.py:1"), ("concat", "model.py:2"), ("matmul", "model.py:4")} <= places
    assert any(why.operator == "reshape" and "unknown size" in why.detail for why in whys)
    for why in whys:
        assert why.operator and "%" in why.detail, why
        assert "axis" in why.detail or "size" in why.detail, why


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("[k, m]", "[k + 1, m]", ShapeError, "k"),
        ("input b: float32[k, m]", "input b: float32[m]", ShapeError, "does not fit the rank"),
        ("input b: float32", "input b: int64", ShapeError, "does not take"),
        ("call product(%a, %b)", "call product(%a)", CompilerError, "takes 2 arguments"),
        ("call product(%a, %b)", "call missing(%a, %b)", CompilerError, "missing"),
        (
            "call product(%a, %b)",
            "loop product(%a, %b; count={k})",
            CompilerError,
            "a count that is a number",
        ),
        ("matmul(%x, %y)", "call product(%x, %y)", CompilerError, "calls itself"),
        ("end\n", "", CompilerError, "has no 'end'"),
        ("*batch, n, k]", "*batch, *others, k]", CompilerError, "one list of sizes"),
    ],
)
def test_what_is_refused(old: str, new: str, error: type[Exception], message: str) -> None:
    text = f"program refused\n{PRODUCT}\ninput a: float32[n, k]\ninput b: float32[k, m]\n"
    text += "%c = call product(%a, %b)\nreturn %c\n"
    parse(text)
    assert old in text
    with pytest.raises(error, match=message):
        parse(text.replace(old, new))
