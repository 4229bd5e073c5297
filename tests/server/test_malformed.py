"""Whatever a client sends wrong gets a 4xx and `{"error": ...}` that names the input, the axis and the rule;
and the next good request is answered."""

# ruff: noqa: E501 - a table reads best with one line a case

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

GOOD = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}


def infer(**changes: Any) -> bytes:
    """A good request of `identity` whose one input has these fields changed (None leaves one out)."""
    entry = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    return json.dumps({"inputs": [entry]}).encode()


def request(**fields: Any) -> bytes:
    return json.dumps({"inputs": [GOOD], **fields}).encode()


def binary(
    size: Any, tail: bytes, shape: tuple[int, ...] = (1, 2), datatype: str = "FP32"
) -> tuple[bytes, dict[str, str]]:
    entry = {"name": "x", "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [entry]}).encode()
    return head + tail, {"Inference-Header-Content-Length": str(len(head))}


@dataclass
class Case:
    name: str
    body: bytes
    words: tuple[str, ...]
    status: int = 400
    headers: dict[str, str] = field(default_factory=dict)
    model: str = "identity"


def binary_case(name: str, made: tuple[bytes, dict[str, str]], *words: str, model: str = "identity") -> Case:
    return Case(name, made[0], words, headers=made[1], model=model)


HEADER = "Inference-Header-Content-Length"
CASES = [
    Case("empty", b"", ("not JSON",)),
    Case("truncated", infer()[:-3], ("not JSON",)),
    Case("text", b"hello", ("not JSON",)),
    Case("trailing text", infer() + b"x", ("not JSON",)),
    Case("bad utf-8", b'{"inputs": "\xff"}', ("not JSON",)),
    Case("NaN", b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[NaN]}]}', ("not JSON", "no NaN", "binary")),
    Case("Infinity", b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[-Infinity]}]}', ("not JSON", "no NaN and no Infinity", "binary")),
    Case("deep", b"[" * 5000 + b"]" * 5000, ("not JSON",)),
    Case("list", b"[]", ("a list", "object")),
    Case("number", b"1", ("an integer", "object")),
    Case("null", b"null", ("object",)),
    Case("string", b'"inputs"', ("a string", "object")),
    Case("no inputs", b"{}", ("'inputs'", "missing")),
    Case("inputs null", b'{"inputs": null}', ("'inputs'", "missing")),
    Case("inputs object", b'{"inputs": {}}', ("'inputs'", "an object")),
    Case("inputs empty", b'{"inputs": []}', ("'inputs'", "empty")),
    Case("input number", b'{"inputs": [3]}', ("inputs[0]", "an integer")),
    Case("id number", request(id=3), ("'id'", "a string")),
    Case("id null", request(id=None), ("'id'", "a string")),
    Case("parameters list", request(parameters=[]), ("'parameters'", "an object")),
    Case("parameter object", request(parameters={"a": {}}), ("parameter 'a'", "an object")),
    Case("priority negative", request(parameters={"priority": -1}), ("'priority'", "-1")),
    Case("priority text", request(parameters={"priority": "high"}), ("'priority'", "high")),
    Case("timeout float", request(parameters={"timeout": 1.5}), ("'timeout'", "1.5", "microseconds")),
    Case("timeout boolean", request(parameters={"timeout": True}), ("'timeout'", "microseconds")),
    Case("sequence", request(parameters={"sequence_id": 4}), ("sequence_id", "state")),
    Case("binary output text", request(parameters={"binary_data_output": "yes"}), ("binary_data_output", "boolean")),
    Case("name missing", infer(name=None), ("inputs[0]", "'name' is missing", '"name": "x"')),
    Case("name number", infer(name=7), ("inputs[0]", "'name'", "an integer")),
    Case("name unknown", infer(name="z"), ("unexpected input 'z'; model 'identity' takes 'x'",)),
    Case("name misspelt", infer(name="X1"), ("unexpected input 'X1'", "takes 'x'")),
    Case("name twice", json.dumps({"inputs": [GOOD, GOOD]}).encode(), ("'x'", "twice")),
    Case("extra input", json.dumps({"inputs": [GOOD, {**GOOD, "name": "z"}]}).encode(), ("unexpected input 'z'",)),
    Case("datatype missing", infer(datatype=None), ("'x'", "'datatype' is missing", "one of BOOL", '"datatype": "FP32"')),
    Case("datatype unknown", infer(datatype="FP128"), ("'x'", "FP128")),
    Case("datatype lower case", infer(datatype="fp32"), ("'x'", "fp32")),
    Case("datatype number", infer(datatype=32), ("'x'", "32")),
    Case("datatype wrong", infer(datatype="INT64", data=[1, 2]), ("'x'", "INT64", "expected FP32")),
    Case("bytes", infer(datatype="BYTES", data=["a", "b"]), ("'x'", "BYTES")),
    Case("shape missing", infer(shape=None), ("'x'", "'shape' is missing", "a list of sizes", '"shape": [1, 2]')),
    Case("shape number", infer(shape=2), ("'x'", "'shape'", "an integer")),
    Case("shape minus one", infer(shape=[1, -1]), ("'x'", "axis 1", "-1")),
    Case("shape huge", infer(shape=[1, 2**63]), ("'x'", "axis 1", str(2**63))),
    Case("shape product huge", infer(shape=[2**20, 2**20]), ("'x'", "axis 1", "elements")),
    Case("shape empty and huge", infer(shape=[0, 2**40], data=[]), ("'x'", "axis 1", "elements")),
    Case("shape empty and large", infer(shape=[2**31, 0], data=[]), ("'x'", "holds nothing", str(2**31), str(2**24))),
    Case("shape text", infer(shape=[1, "2"]), ("'x'", "axis 1", '"2"')),
    Case("shape float", infer(shape=[1, 2.0]), ("'x'", "axis 1", "2.0")),
    Case("shape null", b'{"inputs":[{"name":"x","shape":[1,null],"datatype":"FP32","data":[1]}]}', ("'x'", "axis 1")),
    Case("shape boolean", infer(shape=[True, 2]), ("'x'", "axis 0", "true")),
    Case("shape of 1000 dims", infer(shape=[1] * 1000), ("'x'", "1000", "32")),
    Case("shape of wrong rank", infer(shape=[2]), ("'x'", "rank 1", "rank 2")),
    Case("shape out of range", infer(shape=[65, 1], data=[0.0] * 65), ("'x'", "axis 0", "1 to 64", "[64, 1]")),
    Case("shape zero rows", infer(shape=[0, 2], data=[]), ("'x'", "axis 0", "1 to 64", "[1, 2]")),
    Case("guard", infer(shape=[1, 20, 20], data=[0.0] * 400), ("n * m <= 100",), model="square"),
    Case("data missing", infer(data=None), ("'x'", "'data'")),
    Case("data number", infer(data=4), ("'x'", "'data'", "an integer")),
    Case("data text", infer(data="1,2"), ("'x'", "'data'", "a string")),
    Case("data short", infer(data=[1.0]), ("'x'", "2 elements", "holds 1")),
    Case("data long", infer(data=[1.0] * 3), ("'x'", "2 elements", "holds 3")),
    Case("data empty", infer(data=[]), ("'x'", "2 elements", "holds 0")),
    Case("data ragged", infer(shape=[2, 2], data=[[1.0, 2.0], [3.0]]), ("'x'", "axis 1", "list of 1")),
    Case("data mixed", infer(data=[[1.0, 2.0], 3.0]), ("'x'", "axis 0")),
    Case("data too nested", infer(data=[[[1.0], [2.0]]]), ("'x'", "not a value")),
    Case("data transposed", infer(shape=[1, 2], data=[[1.0], [2.0]]), ("'x'", "axis 0")),
    Case("data of texts", infer(data=["1", "2"]), ("'x'", "element 0", "FP32")),
    Case("data null", infer(data=[1.0, None]), ("'x'", "element 1", "FP32")),
    Case("data boolean", infer(data=[1.0, True]), ("'x'", "element 1", "true")),
    Case("data of booleans", infer(data=[False, False]), ("'x'", "element 0", "false")),
    Case("boolean for integer", infer(name="ids", datatype="INT64", data=[True, False]), ("'ids'", "element 0", "true"), model="look_up"),
    Case("boolean behind other words", b'{"id":"1","inputs":[{"data":[1,true],"name":"x","shape":[1,2],"datatype":"FP32"}]}', ("'x'", "element 1", "true")),
    Case("data object", infer(data=[1.0, {}]), ("'x'", "element 1")),
    Case("float too large", infer(data=[1e39, 0]), ("'x'", "FP32")),
    Case("float for integer", infer(name="ids", datatype="INT64", data=[1.5, 2]), ("'ids'", "element 0", "INT64"), model="look_up"),
    Case("integer too large", infer(name="ids", datatype="INT64", data=[2**63, 0]), ("'ids'", "INT64"), model="look_up"),
    Case("byte too large", infer(datatype="UINT8", data=[256, 0]), ("'x'", "UINT8"), model="bytes"),
    Case("byte negative", infer(datatype="UINT8", data=[-1, 0]), ("'x'", "UINT8"), model="bytes"),
    Case("integer for boolean", infer(datatype="BOOL", data=[1, 0]), ("'x'", "element 0", "BOOL"), model="flags"),
    Case("half in JSON", infer(datatype="FP16"), ("'x'", "FP16", "binary"), model="halves"),
    Case("brain float in JSON", infer(datatype="BF16"), ("'x'", "BF16", "binary"), model="brains"),
    Case("index too large", infer(name="ids", datatype="INT64", data=[3, 100]), ("'ids'", "100", "[0, 1]", "0 to 99"), model="look_up"),
    Case("index negative", infer(name="ids", datatype="INT64", data=[-1, 3]), ("'ids'", "-1", "[0, 0]", "0 to 99"), model="look_up"),
    Case("outputs object", request(outputs={}), ("'outputs'", "an object")),
    Case("output number", request(outputs=[1]), ("outputs[0]", "an integer")),
    Case("output unnamed", request(outputs=[{}]), ("outputs[0]", "'name'")),
    Case("output unknown", request(outputs=[{"name": "z"}]), ("output 'z'", "'y'")),
    Case("output twice", request(outputs=[{"name": "y"}, {"name": "y"}]), ("output 'y'", "twice")),
    Case("output binary text", request(outputs=[{"name": "y", "parameters": {"binary_data": 1}}]), ("'y'", "binary_data", "boolean")),
    Case("output classes", request(outputs=[{"name": "y", "parameters": {"classification": 3}}]), ("'y'", "classification")),
    Case("shared memory", infer(data=None, parameters={"shared_memory_region": "r"}), ("'x'", "shared memory")),
    Case("input parameters list", infer(parameters=[1]), ("'x'", "'parameters'")),
    Case("data and binary", infer(parameters={"binary_data_size": 8}), ("'x'", "both")),
    Case("binary without header", infer(data=None, parameters={"binary_data_size": 8}), ("'x'", HEADER)),
    binary_case("binary short", binary(8, b"\0" * 4), "'x'", "8 bytes", "4"),
    binary_case("binary long", binary(8, b"\0" * 12), "4 bytes follow"),
    binary_case("binary size wrong", binary(4, b"\0" * 4), "'x'", "needs 8 bytes", "4"),
    binary_case("binary size negative", binary(-8, b"\0" * 8), "'x'", "-8"),
    binary_case("binary size text", binary("8", b"\0" * 8), "'x'", "binary_data_size"),
    binary_case("binary size float", binary(8.0, b"\0" * 8), "'x'", "binary_data_size"),
    binary_case("binary boolean of 2", binary(2, b"\2\0", datatype="BOOL"), "'x'", "BOOL", "2", model="flags"),
    Case("header text", infer(), (HEADER, "abc"), headers={HEADER: "abc"}),
    Case("header negative", infer(), (HEADER, "-1"), headers={HEADER: "-1"}),
    Case("header too large", infer(), (HEADER, "999999"), headers={HEADER: "999999"}),
    Case("header past 32 bits", infer(), (HEADER, "99999999999"), headers={HEADER: "99999999999"}),
    Case("header too small", infer(), ("not JSON",), headers={HEADER: "5"}),
    Case("raw of odd length", b"\0" * 7, ("'x'", "7 bytes", "FP32"), headers={HEADER: "0"}),
    Case("raw of any rank", b"\0" * 8, ("'x'", "rank"), headers={HEADER: "0"}, model="standardize"),
    Case("raw with two free dims", b"\0" * 8, ("'x'", "free dims"), headers={HEADER: "0"}, model="square"),
    Case("raw that does not fill", b"\0" * 12, ("'x'", "128"), headers={HEADER: "0"}, model="mlp"),
    Case("gzip that is not", infer(), ("gzip",), headers={"Content-Encoding": "gzip"}),
    Case("gzip cut", gzip.compress(infer())[:-6], ("gzip", "ends"), headers={"Content-Encoding": "gzip"}),
    Case("deflate that is not", infer(), ("deflate",), headers={"Content-Encoding": "deflate"}),
    Case("unknown encoding", infer(), ("zstd",), headers={"Content-Encoding": "zstd"}),
    Case("packed nonsense", zlib.compress(b"{"), ("not JSON",), headers={"Content-Encoding": "deflate"}),
    Case("unknown model", infer(), ("'nobody'", "not registered"), status=404, model="nobody"),
    Case("unknown version", infer(), ("'9'",), status=404, model="identity/versions/9"),
    Case("not loaded", infer(), ("model 'spare' version '2' is unavailable: ", "loaded; POST /v2/repository/models/spare/load with an admin key"), status=503, model="spare"),
]  # fmt: skip


def test_there_are_at_least_sixty_cases_with_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 60


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_V9_a_malformed_request_is_refused_in_words(client: httpx.Client, case: Case) -> None:
    response = client.post(f"/v2/models/{case.model}/infer", content=case.body, headers=case.headers)
    assert response.status_code == case.status, response.text
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert list(answer) == ["error"]
    assert [word for word in case.words if word not in answer["error"]] == [], answer["error"]
    assert len(answer["error"]) < 1000
    assert client.post("/v2/models/identity/infer", content=infer()).json()["outputs"][0]["data"] == [
        1.0,
        2.0,
    ]


def test_a_large_malformed_body_is_refused_by_the_worker_in_the_same_words(client: httpx.Client) -> None:
    values = [0.5] * 100_000
    for changes, words in (
        ({"shape": [1, 99_999]}, ("'x'", "99999", "100000")),
        ({"shape": [1, 100_000], "data": [*values[1:], "a"]}, ("'x'", "element 99999")),
        ({"shape": [65, 2000], "data": values + [0.5] * 30_000}, ("'x'", "axis 0", "1 to 64")),
        ({"shape": [2, 50_000], "data": [values[:50_000], values[1:50_000]]}, ("'x'", "axis 1")),
    ):
        response = client.post("/v2/models/identity/infer", content=infer(**{"data": values, **changes}))
        assert response.status_code == 400
        assert [word for word in words if word not in response.json()["error"]] == [], response.json()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_413(client: httpx.Client, chunked: bool) -> None:
    body = b" " * (65 << 20)
    pieces = (body[start : start + (1 << 20)] for start in range(0, len(body), 1 << 20))
    response = client.post("/v2/models/identity/infer", content=pieces if chunked else body)
    assert response.status_code == 413
    assert str(64 << 20) in response.json()["error"]


def test_a_body_that_unpacks_past_the_limit_is_413(client: httpx.Client) -> None:
    packed = gzip.compress(b" " * (65 << 20))
    assert len(packed) < 100_000
    response = client.post("/v2/models/identity/infer", content=packed, headers={"Content-Encoding": "gzip"})
    assert response.status_code == 413
    assert str(64 << 20) in response.json()["error"]


def test_other_paths_and_methods_answer_in_the_same_form(client: httpx.Client) -> None:
    for method, path, status in (
        ("GET", "/v2/models/identity/infer", 405),
        ("GET", "/nothing", 404),
        ("GET", "/v2/models/nobody", 404),
        ("GET", "/v2/models/identity/versions/9", 404),
        ("DELETE", "/v2", 405),
        ("POST", "/v2/trace/setting", 404),
        ("GET", "/v2/logging", 404),
        ("POST", "/v2/systemsharedmemory/region/r/register", 404),
        ("POST", "/v2/models/identity/generate", 404),
    ):
        response = client.request(method, path)
        assert response.status_code == status, (path, response.text)
        assert list(response.json()) == ["error"], path


def test_V1_bytes_that_do_not_fill_the_shape_show_nobody_s_data(client: httpx.Client) -> None:
    path, secret = "/v2/models/identity/infer", 1234.5
    for _ in range(3):
        full = infer(shape=[1, 64], data=[secret] * 64)
        assert client.post(path, content=full).json()["outputs"][0]["data"] == [secret] * 64
        body, headers = binary(8, bytes(8), shape=(1, 64))
        response = client.post(path, content=body, headers=headers)
        assert response.status_code == 400
        error = response.json()["error"]
        assert "'x'" in error and "256 bytes" in error and "8" in error and str(secret) not in error
        small, headers = binary(16, bytes(16), shape=(1, 4))
        assert client.post(path, content=small, headers=headers).json()["outputs"][0]["data"] == [0.0] * 4


@pytest.mark.parametrize(
    ("size", "shown"), [(-1, "-1"), (2**63, str(2**63)), ("2", '"2"'), (2.0, "2.0"), (None, "null")]
)
def test_V2_a_size_that_is_none_names_input_and_axis(client: httpx.Client, size: Any, shown: str) -> None:
    body = json.dumps({"inputs": [{**GOOD, "shape": [1, size]}]})
    response = client.post("/v2/models/identity/infer", content=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert "'x'" in error and "axis 1" in error and shown in error


def test_V2_a_thousand_dims_are_refused_and_none_at_all_is_legal(client: httpx.Client) -> None:
    response = client.post("/v2/models/identity/infer", content=infer(shape=[1] * 1000))
    assert response.status_code == 400 and "1000" in response.json()["error"]
    empty = client.post("/v2/models/identity/infer", content=infer(shape=[2, 0], data=[]))
    assert empty.status_code == 200 and empty.json()["outputs"][0]["shape"] == [2, 0]
