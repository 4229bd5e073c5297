"""A host program and its parts travel as JSON and come back equal; anything else is an ArtifactError."""

import json
import math

import handmade
import pytest

from dlcb.compiler.dtype import FLOAT16
from dlcb.compiler.errors import ArtifactError
from dlcb.compiler.expr.node import as_expr, size
from dlcb.compiler.host.codec import decode_plain, encode_plain
from dlcb.compiler.host.program import EagerCall, Guard, LibraryCall, Program

n, m = size("n"), size("m")


def through_json(data: object) -> object:
    return json.loads(json.dumps(data))


def test_programs_come_back_equal() -> None:
    call = LibraryCall("convolution", ("x", "w"), {"stride": (1, 2), "size": n * 2, "scale": 0.1}, "t", ())
    eager = EagerCall("aten.repeat.default", ("t",), ("$0", (n, 2)), ("out",), ())
    guard = Guard(as_expr(3) <= n, True, "declared")
    made = handmade.program(
        [handmade.given("x", n, m, 3)],
        [handmade.buffer("t", n * m, "arena", 0, 1)],
        [call, eager],
        [handmade.tensor("x", n, m, 3)],
        [],
        "0" * 64,
        guards=[guard],
    )
    for program in (made, handmade.chain("1" * 64, 3), handmade.lookup("2" * 64)):
        assert Program.from_json(through_json(program.to_json())) == program


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -0.0, math.inf, 0.1, "text", (1, (2, None)), [1], {"a": (n + 1,)}, n * m - 1, FLOAT16],
    ids=repr,
)
def test_attributes_keep_their_kind(value: object) -> None:
    back = decode_plain(through_json(encode_plain(value)))
    assert repr(back) == repr(value)
    assert type(back) is type(value)


def test_an_attribute_that_is_no_plain_data_is_refused() -> None:
    with pytest.raises(ArtifactError, match="plain data"):
        encode_plain(object())


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("units"),
        lambda data: data.update(extra=1),
        lambda data: data.update(units=7),
        lambda data: data["inputs"][0]["dims"].append("__import__('os')"),
        lambda data: data["segments"][0]["steps"].append({"variants": 3}),
        lambda data: data["segments"][0]["steps"].append({"nothing": 3}),
    ],
)
def test_foreign_data_are_an_artifact_error(change) -> None:
    data = handmade.chain("1" * 64, 2).to_json()
    change(data)
    with pytest.raises(ArtifactError):
        Program.from_json(data)
