"""Answers of a live server: values in JSON and binary, every datatype, compression, batching, deadlines and
bounds."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy
import pytest

from dlcb.server.datatypes import DATATYPES

from .conftest import LiveServer
from .eager_model import gate_of

GATES = itertools.count(1)
HEADER = "Inference-Header-Content-Length"


def tensor(array: numpy.ndarray, name: str = "x", datatype: str = "FP32", **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "shape": array.shape,
        "datatype": datatype,
        "data": array.ravel().tolist(),
        **fields,
    }


def ask(array: numpy.ndarray, name: str = "x", datatype: str = "FP32", **fields: Any) -> bytes:
    return json.dumps({"inputs": [tensor(array, name, datatype)], **fields}).encode()


def ask_binary(
    array: numpy.ndarray, datatype: str = "FP32", name: str = "x", **fields: Any
) -> tuple[bytes, dict[str, str]]:
    entry = {
        "name": name,
        "shape": array.shape,
        "datatype": datatype,
        "parameters": {"binary_data_size": array.nbytes},
    }
    head = json.dumps({"inputs": [entry], **fields}).encode()
    return head + array.tobytes(), {HEADER: str(len(head))}


def value(response: httpx.Response) -> numpy.ndarray:
    """The one output of a JSON answer."""
    assert response.status_code == 200, response.text
    (output,) = response.json()["outputs"]
    array = DATATYPES[output["datatype"]].array
    return numpy.array(output["data"], array).reshape(output["shape"])


def split_binary(response: httpx.Response) -> tuple[dict[str, Any], bytes]:
    assert response.status_code == 200, response.text
    length = int(response.headers[HEADER])
    return json.loads(response.content[:length]), response.content[length:]


def floats(*shape: int) -> numpy.ndarray:
    return numpy.random.default_rng().standard_normal(shape).astype("float32")


@pytest.mark.parametrize(
    "path", ["/v1/models/identity/infer", "/v2/models/identity/infer", "/v2/models/identity/versions/1/infer"]
)
def test_both_protocols_share_a_handler(client: httpx.Client, path: str) -> None:
    x = floats(3, 5)
    response = client.post(path, content=ask(x, id="seven"))
    assert numpy.array_equal(value(response), x)
    answer = response.json()
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("identity", "1", "seven")


def test_nested_data_and_no_content_type(client: httpx.Client) -> None:
    x = floats(2, 3)
    body = json.dumps({"inputs": [tensor(x, data=x.tolist())]})
    request = client.build_request("POST", "/v2/models/identity/infer", content=body)
    request.headers.pop("content-type", None)
    assert numpy.array_equal(value(client.send(request)), x)


@pytest.mark.parametrize(
    ("model", "datatype", "array"),
    [
        ("identity", "FP32", floats(2, 3)),
        ("halves", "FP16", floats(2, 3).astype("float16")),
        ("brains", "BF16", numpy.arange(6, dtype="uint16").reshape(2, 3)),
        ("flags", "BOOL", numpy.array([[True, False, True]])),
        ("bytes", "UINT8", numpy.array([[0, 255, 7]], "uint8")),
    ],
)
def test_binary_in_and_out(client: httpx.Client, model: str, datatype: str, array: numpy.ndarray) -> None:
    body, headers = ask_binary(array, datatype, parameters={"binary_data_output": True})
    response = client.post(f"/v2/models/{model}/infer", content=body, headers=headers)
    document, data = split_binary(response)
    assert response.headers["content-type"] == "application/octet-stream"
    (output,) = document["outputs"]
    assert output["datatype"] == datatype and tuple(output["shape"]) == array.shape
    assert output["parameters"] == {"binary_data_size": array.nbytes}
    assert data == array.tobytes()


def test_an_output_s_own_wish_wins_over_the_request_s(client: httpx.Client) -> None:
    x = floats(1, 4)
    body, headers = ask_binary(
        x,
        parameters={"binary_data_output": True},
        outputs=[{"name": "y", "parameters": {"binary_data": False}}],
    )
    response = client.post("/v2/models/identity/infer", content=body, headers=headers)
    assert HEADER not in response.headers
    assert numpy.array_equal(value(response), x)


def test_raw_binary_is_one_row_and_answers_binary(client: httpx.Client) -> None:
    x = floats(128)
    response = client.post("/v2/models/identity/infer", content=x.tobytes(), headers={HEADER: "0"})
    document, data = split_binary(response)
    assert document["outputs"][0]["shape"] == [1, 128]
    assert data == x.tobytes()


def test_a_header_as_long_as_the_body_means_json_alone(client: httpx.Client) -> None:
    x = floats(1, 4)
    body = ask(x)
    response = client.post("/v2/models/identity/infer", content=body, headers={HEADER: str(len(body))})
    assert numpy.array_equal(value(response), x)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_both_ways(client: httpx.Client, encoding: str) -> None:
    x = floats(4, 700)
    body, headers = ask_binary(x, parameters={"binary_data_output": True})
    packed = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
    headers |= {"Content-Encoding": encoding, "Accept-Encoding": encoding}
    response = client.post("/v2/models/identity/infer", content=packed, headers=headers)
    assert response.headers["content-encoding"] == encoding
    _document, data = split_binary(response)
    assert data == x.tobytes()


@pytest.mark.parametrize("nested", [False, True])
def test_V10_a_large_json_body_is_answered(client: httpx.Client, nested: bool) -> None:
    x = floats(3, 50_176)
    body = json.dumps({"id": "big", "inputs": [tensor(x, data=x.tolist() if nested else x.ravel().tolist())]})
    response = client.post("/v1/models/identity/infer", content=body)
    assert numpy.array_equal(value(response), x)
    assert response.json()["id"] == "big"
    assert "binary tensors" in response.headers["dlcb-hint"]
    assert "dlcb-hint" not in client.post("/v1/models/identity/infer", content=ask(floats(1, 4))).headers


def test_empty_tensors_are_ordinary(client: httpx.Client) -> None:
    x = floats(2, 0)
    assert value(client.post("/v1/models/identity/infer", content=ask(x))).shape == (2, 0)
    nested = json.dumps({"inputs": [tensor(x, data=[[], []])]})
    assert value(client.post("/v1/models/identity/infer", content=nested)).shape == (2, 0)


def test_any_rank_is_compiled_once_a_rank(client: httpx.Client) -> None:
    for rank in (1, 3, 2, 3):
        x = floats(*[4] * rank)
        expected = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
        got = value(client.post("/v1/models/standardize/infer", content=ask(x)))
        assert numpy.allclose(got, expected, atol=1e-5)
    metrics = client.get("/metrics").text
    assert 'dlcb_compile_seconds_count{model="standardize",reason="jit",tier="jit"} 3.0' in metrics
    assert 'dlcb_compile_seconds_count{model="standardize",reason="request",tier="jit"} 0.0' in metrics


def test_ranks_that_the_configuration_names_are_there_before_the_first_request(client: httpx.Client) -> None:
    metrics = client.get("/metrics").text
    assert 'dlcb_compile_seconds_count{model="ready_ranks",reason="probe",tier="jit"} 2.0' in metrics
    x = floats(3, 4)
    got = value(client.post("/v1/models/ready_ranks/infer", content=ask(x)))
    assert numpy.allclose(got, (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True), atol=1e-5)
    assert 'model="ready_ranks",reason="jit"' not in client.get("/metrics").text


@asynccontextmanager
async def worker_held(server: LiveServer, client: httpx.AsyncClient) -> AsyncIterator[None]:
    """The worker runs a request all the while, so that what is asked meanwhile waits."""
    number = next(GATES)
    gate = gate_of(server.process.pid, number)
    begun = Path(f"{gate}.begun")
    busy = asyncio.create_task(
        client.post("/v1/models/gated/infer", content=ask(numpy.full((1, 1), float(number))))
    )
    while not begun.exists():
        await asyncio.sleep(0.005)
    try:
        yield
    finally:
        gate.touch()
        assert (await busy).status_code == 200
        gate.unlink()
        begun.unlink()


async def until_waiting(client: httpx.AsyncClient, model: str, count: int) -> None:
    """Return once so many requests wait for the model."""
    line = f'dlcb_queue_depth{{model="{model}"}} {count}.0'
    while line not in (await client.get("/metrics")).text:
        await asyncio.sleep(0.005)


async def together(server: LiveServer, model: str, bodies: list[bytes]) -> list[httpx.Response]:
    """Post all bodies, and let the worker have none before all of them wait."""
    limits = httpx.Limits(max_connections=len(bodies) + 2)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
        async with worker_held(server, client):
            answers = [
                asyncio.create_task(client.post(f"/v1/models/{model}/infer", content=body)) for body in bodies
            ]
            await until_waiting(client, model, len(bodies))
        return await asyncio.gather(*answers)


def batches(client: httpx.Client, model: str) -> int:
    for entry in client.get(f"/v2/models/{model}/stats").json()["model_stats"]:
        return int(entry["execution_count"])
    raise AssertionError(model)


def test_requests_that_wait_together_run_together(server: LiveServer, client: httpx.Client) -> None:
    arrays = [floats(rows, 6) for rows in (1, 3, 2, 1, 4)]
    before = batches(client, "row_sums")
    answers = asyncio.run(together(server, "row_sums", [ask(x) for x in arrays]))
    for x, answer in zip(arrays, answers, strict=True):
        assert numpy.allclose(value(answer), x.sum(axis=1), atol=1e-5)
    assert batches(client, "row_sums") == before + 1


def test_V5_each_gets_its_own_length(server: LiveServer, client: httpx.Client) -> None:
    arrays = [floats(1, length) for length in (3, 9, 3, 5, 9)]
    before = batches(client, "row_sums")
    answers = asyncio.run(together(server, "row_sums", [ask(x) for x in arrays]))
    for x, answer in zip(arrays, answers, strict=True):
        assert numpy.allclose(value(answer), x.sum(axis=1), atol=1e-5)
    assert batches(client, "row_sums") == before + 3


def ask_masked(x: numpy.ndarray) -> bytes:
    inputs = [tensor(x), tensor(numpy.ones(x.shape), name="mask")]
    return json.dumps({"inputs": inputs}).encode()


def test_V5_different_lengths_are_padded_where_a_mask_hides_it(
    server: LiveServer, client: httpx.Client
) -> None:
    """Of five lengths four are near enough to the oldest's; each answer has its own length."""
    arrays = [floats(rows, length) for rows, length in ((1, 9), (2, 12), (1, 7), (1, 60), (3, 9))]
    before = batches(client, "centred")
    answers = asyncio.run(together(server, "centred", [ask_masked(x) for x in arrays]))
    for x, answer in zip(arrays, answers, strict=True):
        assert numpy.allclose(value(answer), x - x.mean(1, keepdims=True), atol=1e-5)
    assert batches(client, "centred") == before + 2


def test_a_mask_that_hides_nothing_is_found_and_the_model_serves_without_padding(
    server: LiveServer, client: httpx.Client
) -> None:
    found = client.get("/v1/models/leaky/coverage").json()
    assert found["padding"]["symbols"] == [] and found["batch"] == "batch"
    (why,) = [line for line in found["batching"] if line.startswith("not padded: mask 'mask' does not hide")]
    (row,) = [line for line in server.lines if line.startswith("leaky ")]
    assert " | stacks batch | " in row
    assert server.lines[server.lines.index(row) + 1].strip() == why
    arrays = [floats(1, length) for length in (4, 5, 4)]
    answers = asyncio.run(together(server, "leaky", [ask_masked(x) for x in arrays]))
    for x, answer in zip(arrays, answers, strict=True):
        assert numpy.allclose(value(answer), x - x.mean(1, keepdims=True), atol=1e-5)


def test_a_mask_where_no_rows_are_proven_is_said_once_and_the_model_serves(
    server: LiveServer, client: httpx.Client
) -> None:
    """As of a model whose attention merges rows with something else: the mask is right, and of no use."""
    found = client.get("/v1/models/mixed/coverage").json()
    assert found["batch"] is None and found["padding"]["mask"] is None
    (why,) = [line for line in found["batching"] if line.startswith("not padded: mask 'mask': each request")]
    assert client.get("/v1/models/mixed/explain").json()["batching"] == found["batching"]
    (row,) = [line for line in server.lines if line.startswith("mixed ")]
    assert " | each request alone | " in row
    after = [line.strip() for line in server.lines[server.lines.index(row) + 1 :]]
    assert after[:2] == ["no size is proven to count independent rows: each request runs alone", why]
    logged = [json.loads(line) for line in server.lines if line.startswith("{")]
    (record,) = [entry for entry in logged if entry.get("model") == "mixed"]
    assert (record["level"], record["reason"]) == ("warning", why.removeprefix("not padded: "))
    x = floats(2, 3)
    (answer,) = asyncio.run(together(server, "mixed", [ask_masked(x)]))
    assert numpy.allclose(value(answer), x - x.mean(), atol=1e-5)


def test_a_batch_axis_need_not_come_first(server: LiveServer) -> None:
    arrays = [floats(3, columns) for columns in (1, 4, 2)]
    answers = asyncio.run(together(server, "columns", [ask(x) for x in arrays]))
    for x, answer in zip(arrays, answers, strict=True):
        assert numpy.array_equal(value(answer), x)


def test_a_bad_index_fails_its_request_alone(server: LiveServer) -> None:
    arrays = [numpy.full((rows, 2), rows) for rows in (1, 2, 3, 4)]
    arrays[2][1, 1] = 100
    arrays[3][3, 0] = -5
    answers = asyncio.run(together(server, "look_up", [ask(x, "ids", "INT64") for x in arrays]))
    for x, answer in zip(arrays[:2], answers[:2], strict=True):
        assert numpy.array_equal(value(answer), x.astype("float32") ** 2)
    assert [answer.status_code for answer in answers] == [200, 200, 400, 400]
    assert "100 at position [1, 1]" in answers[2].json()["error"]
    assert "-5 at position [3, 0]" in answers[3].json()["error"]


def test_an_error_of_the_model_fails_its_request_alone(server: LiveServer) -> None:
    arrays = [numpy.full((1, 2), number) for number in (1, 7, 2)]
    answers = asyncio.run(together(server, "deadly", [ask(x) for x in arrays]))
    assert [answer.status_code for answer in answers] == [200, 500, 200]
    assert "RuntimeError" in answers[1].json()["error"] and "seven" not in answers[1].json()["error"]


def test_V4_a_cancelled_neighbour_leaves_the_others_their_answers(
    server: LiveServer, client: httpx.Client
) -> None:
    """The client of one of three waiting requests goes away: its request leaves the queue, and is counted."""

    async def go() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            async with worker_held(server, http):
                tasks = [
                    asyncio.create_task(
                        http.post("/v1/models/row_sums/infer", content=ask(numpy.full((1, 2), number)))
                    )
                    for number in (1, 2, 3)
                ]
                await until_waiting(http, "row_sums", 3)
                tasks[1].cancel()
                await until_waiting(http, "row_sums", 2)
            return [await tasks[0], await tasks[2]]

    rows = inferences(client, "row_sums")
    first, last = asyncio.run(go())
    assert (value(first)[0], value(last)[0]) == (2.0, 6.0)
    assert inferences(client, "row_sums") == rows + 2
    assert (
        'dlcb_dropped_requests_total{cause="disconnect",model="row_sums"} 1.0' in client.get("/metrics").text
    )


def inferences(client: httpx.Client, model: str) -> int:
    return int(client.get(f"/v2/models/{model}/stats").json()["model_stats"][0]["inference_count"])


def test_a_deadline_answers_504_at_once(client: httpx.Client) -> None:
    def failures() -> int:
        return int(
            client.get("/v2/models/sleepy/stats").json()["model_stats"][0]["inference_stats"]["fail"]["count"]
        )

    before, start = failures(), time.perf_counter()
    body = ask(numpy.full((1, 1), 1000.0), parameters={"timeout": 50_000})
    response = client.post("/v1/models/sleepy/infer", content=body)
    assert response.status_code == 504 and "50 ms" in response.json()["error"]
    assert time.perf_counter() - start < 0.9  # before the run could have ended
    assert failures() == before + 1


def test_V8_the_queue_s_bound_is_exact(server: LiveServer) -> None:
    """Four may wait: of ten that come while the worker is busy six are refused at once."""
    body = ask(numpy.full((1, 1), 1.0))

    async def go() -> tuple[list[httpx.Response], list[httpx.Response]]:
        limits = httpx.Limits(max_connections=12)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as http:
            async with worker_held(server, http):
                tasks = {
                    asyncio.create_task(http.post("/v1/models/sleepy/infer", content=body)) for _ in range(10)
                }
                refused: set[asyncio.Task[httpx.Response]] = set()
                while len(refused) < 6:
                    done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    refused |= done
            return [task.result() for task in refused], list(await asyncio.gather(*tasks))

    refused, answered = asyncio.run(go())
    assert [answer.status_code for answer in answered] == [200] * 4
    assert [answer.status_code for answer in refused] == [429] * 6
    assert all(
        int(answer.headers["retry-after"]) >= 1 and "4" in answer.json()["error"] for answer in refused
    )


def test_priority_one_goes_first(server: LiveServer) -> None:
    async def go() -> list[int]:
        order: list[int] = []
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:

            async def send(priority: int, width: int) -> None:
                body = ask(numpy.full((1, width), 20.0), parameters={"priority": priority})
                assert (await http.post("/v1/models/sleepy/infer", content=body)).status_code == 200
                order.append(priority)

            tasks = []
            async with worker_held(server, http):
                for width, priority in enumerate((0, 5, 1), start=1):
                    tasks.append(asyncio.create_task(send(priority, width)))
                    await until_waiting(http, "sleepy", width)
            await asyncio.gather(*tasks)
        return order

    assert asyncio.run(go()) == [1, 5, 0]
