"""What the line of a call tells of its numbers: written out, attributes, names, calculated, or not shown."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dlcb.compiler.bridge.held import named
from dlcb.compiler.bridge.written import Call, Origin, told

WRITTEN, NAMED, CALCULATED, SIZE, UNSEEN = (
    *(Origin.WRITTEN, Origin.NAMED, Origin.CALCULATED),
    *(Origin.SIZE, Origin.UNSEEN),
)
aten = torch.ops.aten
X = object()  # a tensor


def line(text: str, path: str = "model.py") -> str:
    return f'File "{path}", line 3, in forward\n    {text}\n'


def call(target: Any, *arguments: Any, times: int = 1, of_weight: bool = False) -> Call:
    given = named(target, arguments, {})
    left_out = frozenset(list(given)[len(arguments) :])
    return Call(str(target).split(".")[1], given, left_out, of_weight, times)


def origin(text: str, made: Call, name: str, place: int | None = None) -> Origin:
    return told(line(text), made, name, place).origin


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("return x * 0.5", 0.5, WRITTEN),
        ("return 0.5 * x * (1.0 + torch.tanh(x))", 0.5, WRITTEN),
        ("y *= 2", 2, WRITTEN),
        ("y = x * -2 ** 3", -8, WRITTEN),
        ("y = x * math.sqrt(2.0 / math.pi)", (2 / 3.141592653589793) ** 0.5, WRITTEN),
        ("y = x * self.scale", 3, WRITTEN),
        ("y = x * (self.config.scale / 2)", 3, WRITTEN),
        ("y = x * scale", 3, NAMED),
        ("y = x * x.shape[1]", 3, SIZE),
        ("y = x * (x.size(1) // 2)", 3, CALCULATED),
        ("y = x.mul(n)", 3, NAMED),
        ("y = x.mul(n + 1)", 3, CALCULATED),
        ("y = torch.mul(x, 3)", 3, WRITTEN),
        ("y = scaled(x)", 3, UNSEEN),
        ("y = (", 3, UNSEEN),
        ("not python", 3, UNSEEN),
        ("elif (x * 3).sum() > 0:", 3, WRITTEN),
    ],
)
def test_the_side_of_an_operator(text: str, value: float, expected: Origin) -> None:
    assert origin(text, call(aten.mul.Tensor, X, value, times=2), "other") is expected


def test_an_attribute_beside_a_weight_may_be_the_weight() -> None:
    assert origin("y = self.weight * n", call(aten.mul.Tensor, X, 3, of_weight=True), "other") is NAMED


def test_numbers_that_are_multiplied_in_the_same_line_settle_none() -> None:
    made = call(aten.div.Tensor, X, 2.0)
    assert origin("y = x / (n / 2)", made, "other") is CALCULATED
    assert told(line("y = x / (n / 2)"), made, "other").formula is None  # or the other 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("F.pad(x, (1, 2))", [WRITTEN, WRITTEN]),
        ("F.pad(x, (1, n))", [WRITTEN, NAMED]),
        ("F.pad(x, (p, 2 * n))", [NAMED, CALCULATED]),
        ("F.pad(x, self.padding)", [WRITTEN, WRITTEN]),
        ("nn.functional.pad(input=x, pad=[1, x.shape[1] // 4])", [WRITTEN, CALCULATED]),
        ("F.pad(x, pads)", [NAMED, NAMED]),
        ("F.pad(", [NAMED, NAMED]),
        ("x = F.pad(x,", [NAMED, NAMED]),
        ("F.pad(x, *pads)", [NAMED, NAMED]),
        ("F.pad(x, (1, 2)) + F.pad(y, (1, n))", [WRITTEN, NAMED]),
        ("F.pad(x, (1, 2)) + F.pad(y, (n, 3))", [WRITTEN, WRITTEN]),  # the second is another call
        ("padded(x, (1, 2))", [UNSEEN, UNSEEN]),
    ],
)
def test_the_entries_of_an_argument(text: str, expected: list[Origin]) -> None:
    made = call(aten.pad.default, X, [1, 2])
    assert [origin(text, made, "pad", place) for place in range(2)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x.repeat(1, n)", [WRITTEN, NAMED]),
        ("x.repeat((1, 3))", [WRITTEN, WRITTEN]),
        ("y = x.repeat(1, 3).view(-1)", [WRITTEN, WRITTEN]),
    ],
)
def test_a_list_may_stand_as_so_many_arguments(text: str, expected: list[Origin]) -> None:
    made = call(aten.repeat.default, X, [1, 3])
    assert [origin(text, made, "repeats", place) for place in range(2)] == expected


def test_what_the_call_leaves_out_is_no_number_of_the_line() -> None:
    assert origin("x.tril()", call(aten.tril.default, X), "diagonal") is WRITTEN
    assert origin("x.tril(n // 2)", call(aten.tril.default, X), "diagonal") is CALCULATED


@pytest.mark.parametrize(
    ("text", "axis", "expected"),
    [
        ("x[:, 1:]", 1, WRITTEN),
        ("x[:, n // 2 :]", 1, CALCULATED),
        ("x[:, 1:, n:]", 1, WRITTEN),
        ("x[:, 1:, n:]", 2, NAMED),
        ("[x[:, :-1], x[:, 1:]], 1)", 1, WRITTEN),
        ("x[..., self.half :]", 1, WRITTEN),
    ],
)
def test_the_bounds_of_a_slice(text: str, axis: int, expected: Origin) -> None:
    made = call(aten.slice.Tensor, X, axis, 1)
    found = {origin(text, made, "start")}
    assert expected in found


def test_positions_and_entries_between_brackets() -> None:
    assert origin("x[:, 1]", call(aten.select.int, X, 1, 1), "index") is WRITTEN
    assert origin("x[:, n]", call(aten.select.int, X, 1, 1), "index") is NAMED
    entries = Call("tensor", {"data": [0, 4]})
    assert [origin("x[:, [0, n // 2]]", entries, "data", k) for k in range(2)] == [WRITTEN, CALCULATED]
    assert origin("torch.tensor([0.0, 4.0])", entries, "data", 1) is WRITTEN


def test_pytorchs_own_modules_give_their_attributes() -> None:
    path = f"{torch.__path__[0]}/nn/modules/padding.py"
    trace = line("self.pad(x)") + line("return F.pad(input, self.padding, mode)", path)
    assert told(trace, call(aten.pad.default, X, [1, 2]), "pad", 0).origin is Origin.OF_PYTORCH


def test_a_function_of_a_family_is_called_without_its_name() -> None:
    made = call(aten.fft_rfft.default, X, 2)
    assert origin("torch.fft.rfft(x, n=x.shape[1])", made, "n") is SIZE
    assert origin("torch.fft.rfft(x, 2)", made, "n") is WRITTEN


def test_functions_of_pytorchs_own_are_known_by_what_they_call() -> None:
    made = call(aten.upsample_nearest2d.vec, X, None, [2.0, 2.0])
    assert origin("F.interpolate(x, scale_factor=2)", made, "scale_factors", 0) is WRITTEN
    assert origin("F.interpolate(x, scale_factor=k)", made, "scale_factors", 0) is NAMED
