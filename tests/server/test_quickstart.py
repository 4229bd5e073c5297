"""The quickstart models, compiled and served for real: values agree with eager PyTorch, and after ready
nothing compiles."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy
import pytest
import torch

from dlcb.compiler.quickstart import minilm

from .conftest import LiveServer, start_server
from .test_infer import split_binary

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
VOCABULARY = 30522


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server whose compiler is taken away once it is ready."""
    folder = tmp_path_factory.mktemp("quickstart")
    compiler = folder / "g++"
    real = shutil.which(os.environ.get("CXX", "g++"))
    assert real is not None
    compiler.symlink_to(real)
    before = os.environ.get("CXX")
    os.environ["CXX"] = str(compiler)
    try:
        server = start_server(CONFIG, folder / "cache", "--port", "0")
    finally:
        if before is None:
            del os.environ["CXX"]
        else:
            os.environ["CXX"] = before
    compiler.unlink()
    yield server
    assert server.stop() == 0


def sentences(rows: int, length: int, draw: random.Random) -> tuple[numpy.ndarray, numpy.ndarray]:
    ids = numpy.array([[draw.randrange(VOCABULARY) for _ in range(length)] for _ in range(rows)], "int64")
    mask = numpy.zeros((rows, length), "int64")
    for row in mask:
        row[: draw.randint(1, length)] = 1
    return ids, mask


def body(ids: numpy.ndarray, mask: numpy.ndarray) -> tuple[bytes, dict[str, str]]:
    entries = ",".join(
        f'{{"name":"{name}","shape":[{ids.shape[0]},{ids.shape[1]}],"datatype":"INT64",'
        f'"parameters":{{"binary_data_size":{ids.nbytes}}}}}'
        for name in ("input_ids", "attention_mask")
    )
    head = f'{{"parameters":{{"binary_data_output":true}},"inputs":[{entries}]}}'.encode()
    return head + ids.tobytes() + mask.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def embeddings(client: httpx.Client, ids: numpy.ndarray, mask: numpy.ndarray) -> numpy.ndarray:
    data, headers = body(ids, mask)
    document, answer = split_binary(client.post("/v2/models/minilm/infer", content=data, headers=headers))
    return numpy.frombuffer(answer, "<f4").reshape(document["outputs"][0]["shape"])


def compiles(client: httpx.Client) -> dict[str, float]:
    """Compilations so far, by the labels of the metric."""
    found = re.findall(
        r"^dlcb_compile_seconds_count\{(.*)\} (\S+)$", client.get("/metrics").text, re.MULTILINE
    )
    return {labels: float(count) for labels, count in found}


def test_two_hundred_new_shapes_compile_nothing_and_agree_with_eager(quickstart: LiveServer) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    shapes = {(1, 1), (1, 512)}
    while len(shapes) < 200:
        shapes.add((draw.randint(1, 4), draw.randint(1, 48)))
    model = minilm().eval()
    exact = minilm().eval().double()
    with quickstart.client() as client:
        before = compiles(client)
        for number, (rows, length) in enumerate(sorted(shapes, key=lambda _shape: draw.random())):
            ids, mask = sentences(rows, length, draw)
            got = embeddings(client, ids, mask)
            assert got.shape == (rows, 384)
            if number % 20 == 0:
                with torch.no_grad():
                    tensors = torch.from_numpy(ids), torch.from_numpy(mask)
                    eager, reference = model(*tensors).double(), exact(*tensors)
                own = (torch.from_numpy(got.copy()).double() - reference).abs().max().item()
                assert own <= 1.5 * (eager - reference).abs().max().item() + 1e-6, (rows, length)
        assert compiles(client) == before
        requested = [count for labels, count in before.items() if 'reason="request"' in labels]
        assert requested and not any(requested)


def test_a_token_outside_the_vocabulary_is_the_request_s_own_error(quickstart: LiveServer) -> None:
    """Three requests that may share a batch, one of them with a bad token."""
    draw = random.Random(3)
    requests = [sentences(2, 7, draw) for _ in range(3)]
    requests[1][0][1, 4] = VOCABULARY

    async def go() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=quickstart.url, timeout=60) as client:
            made = [body(*request) for request in requests]
            return await asyncio.gather(
                *(
                    client.post("/v2/models/minilm/infer", content=data, headers=headers)
                    for data, headers in made
                )
            )

    first, bad, last = asyncio.run(go())
    assert (first.status_code, bad.status_code, last.status_code) == (200, 400, 200)
    message = bad.json()["error"]
    assert "'input_ids'" in message and "30522 at position [1, 4]" in message and "0 to 30521" in message


def test_pnet_takes_any_image(quickstart: LiveServer) -> None:
    with quickstart.client() as client:
        for height, width in ((12, 12), (37, 50), (64, 33)):
            image = numpy.zeros((1, 3, height, width), "float32")
            entry = {
                "name": "image",
                "shape": image.shape,
                "datatype": "FP32",
                "data": image.ravel().tolist(),
            }
            answer = client.post("/v1/models/pnet/infer", json={"inputs": [entry]})
            assert answer.status_code == 200, answer.text
            probabilities, boxes = answer.json()["outputs"]
            assert probabilities["shape"][:2] == [1, 2] and boxes["shape"][:2] == [1, 4]
            assert probabilities["shape"][2:] == boxes["shape"][2:]
