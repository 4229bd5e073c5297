"""Signatures: what is bound, what is refused and in which words, and that they survive the way through
JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcb.compiler import ArtifactError, BatchAxes, ContractError, Dim, Signature, TensorSpec
from dlcb.compiler.signature import Guard, compile_expression

BATCH = Dim("b", 2, 64)
WHOLE = Signature(
    inputs=(
        TensorSpec("x", "float32", (BATCH, 3)),
        TensorSpec("y", "int64", (BATCH, Dim("n", 100, None, 100))),
    ),
    outputs=(TensorSpec("o", "float32", None), TensorSpec("p", "float32", None)),
    output_dims={"o": ("b", "n // 100"), "p": ("b", None)},
    guards=(Guard("b * n <= 10000 or n == 5000", "a table ends there"),),
    batch=BatchAxes("b", {"x": 0, "y": 0}, {"o": 0}),
)
DTYPES = {"x": "float32", "y": "int64"}


def test_symbols_are_bound_and_outputs_known() -> None:
    shapes = {"x": (4, 3), "y": (4, 2100)}
    assert WHOLE.check(shapes, DTYPES) == {"b": 4, "n": 2100}
    assert WHOLE.output_shapes(shapes) == {"o": (4, 21), "p": None}


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ((200, 3), (200, 100), ("input 'x'", "axis 0", "200", "2 to 64", "[64, 3]")),
        ((1, 3), (1, 100), ("input 'x'", "axis 0", "[2, 3]")),
        ((4, 5), (4, 100), ("input 'x'", "axis 1", "5", "3", "[4, 3]")),
        ((4, 3), (7, 100), ("input 'y'", "7", "'b' is 4", "input 'x'", "[4, 100]")),
        ((4, 3), (4, 2099), ("input 'y'", "2099", "multiple of 100", "[4, 2100]")),
        ((4, 3, 1), (4, 100), ("input 'x'", "rank 3", "rank 2", "[b, 3]")),
        ((60, 3), (60, 200), ("b * n <= 10000", "a table ends there", "b = 60", "n = 200")),
    ],
)
def test_a_refusal_names_both_sides(x: tuple[int, ...], y: tuple[int, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(ContractError) as caught:
        WHOLE.check({"x": x, "y": y}, DTYPES)
    assert [word for word in words if word not in caught.value.message] == [], caught.value.message


def test_names_and_dtypes_are_checked() -> None:
    with pytest.raises(ContractError, match="missing input 'y'"):
        WHOLE.check({"x": (2, 3)}, {"x": "float32"})
    near = r"unexpected input 'yy', did you mean 'y'\? the model takes 'x', 'y'"
    with pytest.raises(ContractError, match=near):
        WHOLE.check({"x": (2, 3), "yy": (2, 100)}, {"x": "float32", "yy": "int64"})
    with pytest.raises(ContractError, match="unexpected input 'z'; the model takes 'x', 'y'"):
        WHOLE.check({"x": (2, 3), "y": (2, 100), "z": (1,)}, {**DTYPES, "z": "bool"})
    with pytest.raises(ContractError, match="input 'x' is float64, expected float32"):
        WHOLE.check({"x": (2, 3), "y": (2, 100)}, {**DTYPES, "x": "float64"})


def test_json_and_back() -> None:
    assert Signature.from_json(json.loads(json.dumps(WHOLE.to_json()))) == WHOLE
    with pytest.raises(ArtifactError):
        Signature.from_json({"inputs": [{"name": "x"}]})


@settings(deadline=None)  # a busy machine is no failure
@given(
    low=st.integers(0, 50),
    span=st.integers(0, 50) | st.none(),
    multiple=st.integers(1, 9),
    size=st.integers(0, 200),
)
def test_the_nearest_size_is_legal_and_nearest(low: int, span: int | None, multiple: int, size: int) -> None:
    high = None if span is None else low + span
    legal = [n for n in range(low, (400 if high is None else high) + 1) if n % multiple == 0]
    if legal:
        found = Dim("s", low, high, multiple).nearest(size)
        assert found in legal
        assert abs(found - size) == min(abs(n - size) for n in legal)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "x.real",
        "[1][0]",
        "1.5j",
        "'1'",
        "lambda: 1",
        "open(x)",
        "floor(x=1)",
        "x if y else z",
        "x ** 2",
        "(",
        "max",
    ],
)
def test_only_arithmetic_is_an_expression(text: str) -> None:
    with pytest.raises(ArtifactError):
        compile_expression(text)


def test_division_and_modulo_are_python_s() -> None:
    assert compile_expression("-7 // 2 + x")({"x": 0}) == -4
    assert compile_expression("-7 % 2")({}) == 1
    assert compile_expression("max(x, min(y, 3)) - -x")({"x": 1, "y": 9}) == 4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("int64(trunc(float64(h) * float64(0.75)))", 6),
        ("max(1, int64(round(sqrt(float64(h)) / 2.0)))", 2),
        ("int64(floor(float64(h) * 0.5)) * (h // 2) + h % 4", 17),
        ("where(h > 2 and not h == 9, 1, int64(ceil(log2(float64(h)))))", 4),
        ("h // 0 + h % (h - 9) + int64(float64(h) / float64(0))", 0),  # as in a host program
    ],
)
def test_numbers_made_of_sizes_are_what_the_host_program_s_are(text: str, value: int) -> None:
    assert compile_expression(text)({"h": 9}) == value


def test_each_side_of_a_range_has_its_own_reason() -> None:
    length = Dim("length", 1, 512, reason="512 positions", reason_of_low="an empty text")
    signature = Signature((TensorSpec("ids", "int64", (length,)),), ())
    for size, reason in ((0, "an empty text"), (513, "512 positions")):
        with pytest.raises(ContractError, match=rf"1 to 512 \({reason}\)"):
            signature.check({"ids": (size,)}, {"ids": "int64"})
    assert Signature.from_json(signature.to_json()) == signature
