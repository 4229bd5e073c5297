"""A large body means what the same body means where it is small."""

from __future__ import annotations

from typing import Any

import numpy
import orjson
import pytest

from dlcb.server import codec, large_json
from dlcb.server.errors import BadRequest

BODY = '{"id": %s, "inputs": [{"name": "x", "shape": %s, "datatype": "%s", "data": %s}]}'


def decoded(body: bytes, loads: Any) -> Any:
    """The tensors that a body holds, or the words in which it is refused."""
    try:
        request = codec.decode(body, None, loads)
    except BadRequest as error:
        return str(error)
    return request.id, [(t.name, t.datatype, t.shape, bytes(t.data)) for t in request.inputs.values()]


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        ("[1, 2, 3, 4]", "[4]"),
        ("[[1, 2], [3, 4]]", "[2, 2]"),
        ("[[[1], [2]], [[3], [4]]]", "[2, 2, 1]"),
        ("[1, 2, 3, 4]", "[2, 2]"),
        ("[[1, 2], [3, [4]]]", "[2, 2]"),
        ("[[[1]], 2, 3, 4]", "[2, 2]"),
        ("[1, [2], 3]", "[3]"),
        ("[[], [1, 2]]", "[2, 1]"),
        ("[[], []]", "[2, 0]"),
        ("[[1, 2], [3]]", "[2, 2]"),
        ("[]", "[0, 3]"),
        ("[1000000000000000000000000000000, 1]", "[2]"),
        ("[18446744073709551616, 1]", "[2]"),
        ("[-9223372036854775809, 1]", "[2]"),
        ("[9223372036854775808, 1]", "[2]"),
        ("[1e400, 1]", "[2]"),
        ("[1, 2,]", "[2]"),
        ("[01, 2]", "[2]"),
        ("[true, 1]", "[2]"),
        ("[1.5, 2]", "[2]"),
        ("[null, 1]", "[2]"),
        ('["1", 1]', "[2]"),
        ('{"a": 1}', "[1]"),
        ("null", "[1]"),
    ],
)
@pytest.mark.parametrize("datatype", ["FP32", "INT64", "UINT64", "UINT8"])
@pytest.mark.parametrize("name", ['"a"', '"[["', '"\\u005b"', '"a", "inputs": 3'])
def test_a_large_body_is_read_as_a_small_one(data: str, shape: str, datatype: str, name: str) -> None:
    body = (BODY % (name, shape, datatype, data)).encode()
    assert decoded(body, large_json.loads) == decoded(body, orjson.loads)


def test_regular_numbers_are_one_array() -> None:
    body = (BODY % ('"12"', "[2, 3]", "FP32", "[[1, 2, 3], [4, 5, 6]]")).encode()
    (entry,) = large_json.loads(body)["inputs"]
    assert isinstance(entry["data"], numpy.ndarray)
