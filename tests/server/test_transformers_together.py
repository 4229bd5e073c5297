"""PyTorch's own transformer layers, compiled and served for real to sixteen clients with requests of many
lengths: stacked and padded, each gets what it gets alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx
import numpy
import pytest
import torch

from .conftest import LiveServer, start_server
from .encoder_models import WIDTH, Decoder, Encoder
from .test_infer import batches, tensor, value

CLIENTS, EACH = 16, 4
CONFIG = f"""
server: {{host: 127.0.0.1, port: 0, spares: 0, grace_seconds: 0}}
models:
  - name: encoder
    factory: encoder_models:Encoder
    inputs:
      - {{name: x, datatype: FP32, shape: [batch, length, {WIDTH}]}}
      - {{name: mask, datatype: BOOL, shape: [batch, length]}}
    outputs: [y]
    batching: {{max_padding: 0.9}}
  - name: decoder
    factory: encoder_models:Decoder
    inputs: [{{name: x, datatype: FP32, shape: [length, batch, {WIDTH}]}}]
    outputs: [y]
    batching: {{max_padding: 0.9}}
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("transformers")
    config = folder / "config.yaml"
    config.write_text(CONFIG)
    server = start_server(config, folder / "cache")
    yield server
    assert server.stop() == 0, server.lines


def requests_of(model: str, draw: numpy.random.Generator) -> list[dict[str, numpy.ndarray]]:
    made = []
    for _ in range(CLIENTS * EACH):
        rows, length = int(draw.integers(1, 3)), int(draw.integers(4, 65))
        shape = (rows, length, WIDTH) if model == "encoder" else (length, rows, WIDTH)
        made.append({"x": draw.standard_normal(shape, "float32")})
        if model == "encoder":
            shown = draw.integers(1, length + 1, (rows, 1))
            made[-1]["mask"] = numpy.arange(length) >= shown
    return made


def body_of(request: dict[str, numpy.ndarray]) -> bytes:
    kinds = {"x": "FP32", "mask": "BOOL"}
    return json.dumps({"inputs": [tensor(a, name, kinds[name]) for name, a in request.items()]}).encode()


async def served(live: LiveServer, model: str, bodies: list[bytes]) -> list[numpy.ndarray]:
    """Each client posts its share of the bodies one after the other, beside the others."""
    async with httpx.AsyncClient(base_url=live.url, timeout=60) as client:

        async def posted(share: list[bytes]) -> list[numpy.ndarray]:
            path = f"/v2/models/{model}/infer"
            return [value(await client.post(path, content=body)) for body in share]

        shares = [bodies[first : first + EACH] for first in range(0, len(bodies), EACH)]
        return [answer for answers in await asyncio.gather(*map(posted, shares)) for answer in answers]


@pytest.mark.parametrize(("model", "module"), [("encoder", Encoder), ("decoder", Decoder)])
def test_requests_of_many_lengths_get_together_what_they_get_alone(
    live: LiveServer, model: str, module: type[torch.nn.Module]
) -> None:
    requests = requests_of(model, numpy.random.default_rng(0))
    bodies = [body_of(request) for request in requests]
    eager = module().eval()
    with live.client() as client:
        found = client.get(f"/v1/models/{model}/coverage").json()["padding"]
        assert found["symbols"] == ["length"] and found["mask"] is None, found
        before = batches(client, model)
        answers = asyncio.run(served(live, model, bodies))
        runs = batches(client, model) - before
        assert 0 < runs < len(requests)
        for request, body, answer in zip(requests, bodies, answers, strict=True):
            alone = value(client.post(f"/v2/models/{model}/infer", content=body))
            assert numpy.allclose(answer, alone, rtol=0, atol=1e-5)
            with torch.no_grad():
                expected = eager(*map(torch.from_numpy, request.values())).numpy()
            assert numpy.allclose(answer, expected, rtol=0, atol=1e-4)
        assert batches(client, model) == before + runs + len(requests)
