"""What the client writes and reads: requests hold the tensors they were given, false answers are refused."""

import numpy as np
import orjson
import pytest

from dlcb.loadtest.wire import DATATYPES, WireError, decode, encode


@pytest.mark.parametrize("encoding", ["json", "binary"])
@pytest.mark.parametrize("datatype", sorted(set(DATATYPES) - {"FP16"}))
def test_a_request_holds_its_tensors(encoding: str, datatype: str) -> None:
    random = np.random.default_rng()
    sent = {
        "a": random.integers(0, 2, (3, 0, 2)).astype(DATATYPES[datatype]),
        "b": random.integers(0, 100, (2, 3)).astype(DATATYPES[datatype]).T,  # not contiguous
    }
    headers, body = encode(sent, encoding)
    # A request has the form of an answer but for the name of its list.
    lower = {name.lower(): value for name, value in headers.items()}
    head_length = int(lower.get("inference-header-content-length", len(body)))
    head = orjson.loads(body[:head_length])
    answer = orjson.dumps({"outputs": head["inputs"]})
    if encoding == "binary":
        lower["inference-header-content-length"] = str(len(answer))
    received = decode(lower, answer + body[head_length:])
    assert received.keys() == sent.keys()
    for name, array in sent.items():
        assert received[name].dtype == array.dtype
        np.testing.assert_array_equal(received[name], array)


@pytest.mark.parametrize(
    ("shape", "data", "extra", "words"),
    [
        ([2, 2], [1.0, 2.0, 3.0], b"", r"'y' says shape \[2, 2\] and holds 3 elements"),
        ([1], [1.0], b"1234", "the answer has"),
    ],
)
def test_a_false_answer_is_refused(shape: list[int], data: list[float], extra: bytes, words: str) -> None:
    head = orjson.dumps({"outputs": [{"name": "y", "datatype": "FP32", "shape": shape, "data": data}]})
    with pytest.raises(WireError, match=words):
        decode({"inference-header-content-length": str(len(head))}, head + extra)
