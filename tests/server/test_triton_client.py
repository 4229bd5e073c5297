"""Every call of Triton's own HTTP client, sync and asyncio, against a live server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import numpy
import pytest
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from .conftest import LiveServer

ADMIN = {"X-API-Key": "admin-key"}
REFUSED: dict[str, tuple[Any, ...]] = {
    "get_trace_settings": (),
    "update_trace_settings": (),
    "get_log_settings": (),
    "update_log_settings": ({},),
    "get_system_shared_memory_status": (),
    "register_system_shared_memory": ("region", "/etc/passwd", 16),
    "unregister_system_shared_memory": (),
    "get_cuda_shared_memory_status": (),
    "register_cuda_shared_memory": ("region", b"handle", 0, 16),
    "unregister_cuda_shared_memory": (),
}


def address(server: LiveServer) -> str:
    return str(httpx.URL(server.url).netloc, "ascii")


def infer_input(module: Any, array: numpy.ndarray, datatype: str, binary: bool) -> Any:
    entry = module.InferInput("x", list(array.shape), datatype)
    entry.set_data_from_numpy(array, binary_data=binary)
    return entry


def check_description(calls: dict[str, Any]) -> None:
    assert calls["is_server_live"] is True and calls["is_server_ready"] is True
    assert calls["is_model_ready"] is True
    assert calls["get_server_metadata"]["name"] == "dlcb"
    assert calls["get_model_metadata"]["inputs"][0]["shape"] == [-1, 128]
    assert calls["get_model_config"]["max_batch_size"] == 32
    assert {entry["name"] for entry in calls["get_model_repository_index"]} >= {"mlp", "identity"}
    assert calls["get_inference_statistics"]["model_stats"][0]["name"] == "mlp"


DESCRIPTIONS: dict[str, tuple[str, ...]] = {
    "is_server_live": (),
    "is_server_ready": (),
    "is_model_ready": ("mlp",),
    "get_server_metadata": (),
    "get_model_metadata": ("mlp",),
    "get_model_config": ("mlp", "1"),
    "get_model_repository_index": (),
    "get_inference_statistics": ("mlp",),
}
TENSORS = [
    ("identity", "FP32", numpy.linspace(-1, 1, 6, dtype="float32").reshape(2, 3), False),
    ("identity", "FP32", numpy.linspace(-1, 1, 6, dtype="float32").reshape(2, 3), True),
    ("halves", "FP16", numpy.arange(4, dtype="float16").reshape(2, 2), True),
    ("flags", "BOOL", numpy.array([[True, False]]), False),
    ("bytes", "UINT8", numpy.array([[0, 255]], "uint8"), True),
]


def test_descriptions(server: LiveServer) -> None:
    with tritonclient.http.InferenceServerClient(address(server)) as client:
        check_description({name: getattr(client, name)(*given) for name, given in DESCRIPTIONS.items()})
        assert client.get_inference_statistics()["model_stats"]
        assert client.is_model_ready("nobody") is False


@pytest.mark.parametrize(("model", "datatype", "array", "binary"), TENSORS)
def test_infer(server: LiveServer, model: str, datatype: str, array: numpy.ndarray, binary: bool) -> None:
    module = tritonclient.http
    with module.InferenceServerClient(address(server), concurrency=2) as client:
        inputs = [infer_input(module, array, datatype, binary)]
        wanted = [module.InferRequestedOutput("y", binary_data=binary)]
        for packing in (None, "gzip", "deflate"):
            result = client.infer(
                model,
                inputs,
                outputs=wanted,
                request_id="seven",
                priority=2,
                timeout=20_000_000,
                request_compression_algorithm=packing,
                response_compression_algorithm=packing,
                parameters={"a": "b"},
            )
            assert numpy.array_equal(result.as_numpy("y"), array)
            assert result.get_response()["id"] == "seven"
        everything = client.infer(model, inputs)  # no outputs named: the client asks for all, in binary
        assert numpy.array_equal(everything.as_numpy("y"), array)
        asked = client.async_infer(model, inputs)
        assert numpy.array_equal(asked.get_result().as_numpy("y"), array)


def test_a_body_made_and_read_by_the_client(server: LiveServer) -> None:
    module = tritonclient.http
    x = numpy.ones((1, 4), "float32")
    body, json_size = module.InferenceServerClient.generate_request_body(
        [infer_input(module, x, "FP32", True)]
    )
    headers = {"Inference-Header-Content-Length": str(json_size)}
    with server.client() as client:
        response = client.post("/v2/models/identity/infer", content=body, headers=headers)
    length = int(response.headers["Inference-Header-Content-Length"])
    result = module.InferenceServerClient.parse_response_body(response.content, header_length=length)
    assert numpy.array_equal(result.as_numpy("y"), x)


def test_repository(server: LiveServer) -> None:
    with tritonclient.http.InferenceServerClient(address(server)) as client:
        client.load_model("spare", headers=ADMIN)
        assert client.is_model_ready("spare", "2")
        client.unload_model("spare", headers=ADMIN, unload_dependents=True)
        assert not client.is_model_ready("spare")
        for given in (
            {"config": json.dumps({"backend": "x"})},
            {"config": "{}", "files": {"file:1/a": b"x"}},
        ):
            with pytest.raises(InferenceServerException, match="registered"):
                client.load_model("spare", headers=ADMIN, **given)


def test_errors_are_words(server: LiveServer) -> None:
    module = tritonclient.http
    with module.InferenceServerClient(address(server)) as client:
        for model, shape, words in (
            ("mlp", (1, 5), "input 'x'.*axis 1.*fixed at 128"),
            ("nobody", (1, 5), "'nobody' is not registered"),
        ):
            with pytest.raises(InferenceServerException, match=words) as caught:
                client.infer(model, [infer_input(module, numpy.ones(shape, "float32"), "FP32", True)])
            assert caught.value.status() in ("400", "404")
        with pytest.raises(InferenceServerException, match="BYTES is not served"):
            client.infer("identity", [infer_input(module, numpy.array([[b"a"]], object), "BYTES", True)])
        with pytest.raises(InferenceServerException, match="keep no state"):
            x = infer_input(module, numpy.ones((1, 2), "float32"), "FP32", True)
            client.infer("identity", [x], sequence_id=3, sequence_start=True)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_out_says_so(server: LiveServer, name: str) -> None:
    with (
        tritonclient.http.InferenceServerClient(address(server)) as client,
        pytest.raises(InferenceServerException, match="not offered"),
    ):
        getattr(client, name)(*REFUSED[name])


def test_asyncio(server: LiveServer) -> None:
    module = tritonclient.http.aio

    async def go() -> None:
        async with module.InferenceServerClient(address(server)) as client:
            check_description(
                {name: await getattr(client, name)(*given) for name, given in DESCRIPTIONS.items()}
            )
            for model, datatype, array, binary in TENSORS:
                inputs = [infer_input(module, array, datatype, binary)]
                results = await asyncio.gather(*(client.infer(model, inputs) for _ in range(4)))
                assert all(numpy.array_equal(result.as_numpy("y"), array) for result in results)
                packed = await client.infer(
                    model,
                    inputs,
                    request_compression_algorithm="gzip",
                    response_compression_algorithm="deflate",
                )
                assert numpy.array_equal(packed.as_numpy("y"), array)
            await client.load_model("spare", headers=ADMIN)
            await client.unload_model("spare", headers=ADMIN)
            for name, given in REFUSED.items():
                with pytest.raises(InferenceServerException, match="not offered"):
                    await getattr(client, name)(*given)

    asyncio.run(go())
