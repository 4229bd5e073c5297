"""The quickstart models, compiled and served for real: values agree with eager PyTorch, and after ready
nothing compiles."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy
import pytest
import torch

from dlcb.compiler.bridge.agreement import RATIO, relative_error
from dlcb.compiler.quickstart import minilm, pnet, standardize
from dlcb.server.settings import resolve

from .conftest import LiveServer, start_server
from .test_infer import ask_binary, split_binary

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
VOCABULARY = 30522


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Eager PyTorch runs beside the server: its threads would fight for the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server whose compiler is taken away once it is ready."""
    folder = tmp_path_factory.mktemp("quickstart")
    with compiler_in(folder):
        server = start_server(CONFIG, folder / "cache", "--port", "0")
    yield server
    assert server.stop() == 0


@contextmanager
def compiler_in(folder: Path) -> Iterator[None]:
    """The C++ compiler under a name in this folder while this lasts; the name is part of the keys."""
    compiler = folder / "g++"
    real = shutil.which(os.environ.get("CXX", "g++"))
    assert real is not None
    compiler.symlink_to(real)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(compiler))
        yield
    compiler.unlink()


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
    grid = [(rows, length) for rows in range(1, 5) for length in range(1, 65)]
    shapes = [(1, 512), *draw.sample(grid, 199)]
    model = minilm().eval()
    exact = minilm().eval().double()
    assert len(set(shapes)) == 200
    with quickstart.client() as client:
        before = compiles(client)
        for number, (rows, length) in enumerate(shapes):
            ids, mask = sentences(rows, length, draw)
            got = embeddings(client, ids, mask)
            assert got.shape == (rows, 384)
            if number % 4 == 0:
                tensors = torch.from_numpy(ids), torch.from_numpy(mask)
                assert_as_good_as_eager([got], model, exact, tensors, tensors)
        assert compiles(client) == before
        requested = [count for labels, count in before.items() if 'reason="request"' in labels]
        assert requested and not any(requested)


def assert_as_good_as_eager(
    got: list[numpy.ndarray],
    model: torch.nn.Module,
    exact: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    exact_inputs: tuple[torch.Tensor, ...],
) -> None:
    """Each output is about as close to float64 as eager PyTorch's own, as norms: the largest single error of
    one image is luck, on either side."""
    with torch.no_grad():
        eager, reference = model(*inputs), exact(*exact_inputs)
    if isinstance(eager, torch.Tensor):
        eager, reference = (eager,), (reference,)
    for own, theirs, true in zip(got, eager, reference, strict=True):
        error = relative_error(torch.from_numpy(own.copy()), true)
        assert error <= RATIO * relative_error(theirs, true) + 1e-6, [tuple(t.shape) for t in inputs]


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


def test_pnet_and_standardize_take_fifty_shapes_each_and_agree_with_eager(quickstart: LiveServer) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    weights = resolve("package:facenet_pytorch/data/pnet.pt", CONFIG.parent)
    pnets = [pnet(weights=(str(weights),)).eval(), pnet(weights=(str(weights),)).eval().double()]
    standardizes = [standardize().eval(), standardize().eval().double()]
    images = [(draw.randint(1, 2), 3, draw.randint(12, 80), draw.randint(12, 80)) for _ in range(50)]
    others = [tuple(draw.randint(2, 9) for _ in range(draw.randint(1, 4))) for _ in range(50)]
    with quickstart.client() as client:
        for name, input_name, (model, exact), shapes in (
            ("pnet", "image", pnets, images),
            ("standardize", "x", standardizes, others),
        ):
            for shape in shapes:
                x = torch.rand(shape, generator=torch.Generator().manual_seed(draw.randrange(2**32))) * 2 - 1
                data, headers = ask_binary(
                    x.numpy(), name=input_name, parameters={"binary_data_output": True}
                )
                response = client.post(f"/v2/models/{name}/infer", content=data, headers=headers)
                document, answer = split_binary(response)
                got, start = [], 0
                for output in document["outputs"]:
                    end = start + output["parameters"]["binary_data_size"]
                    got.append(numpy.frombuffer(answer[start:end], "<f4").reshape(output["shape"]))
                    start = end
                assert_as_good_as_eager(got, model, exact, (x,), (x.double(),))


def test_a_second_start_compiles_nothing(quickstart: LiveServer) -> None:
    assert sum("cache miss" in line for line in quickstart.lines) == 3, quickstart.lines
    with compiler_in(quickstart.cache.parent):
        again = start_server(CONFIG, quickstart.cache, "--port", "0", "--no-compile")
    try:
        assert sum("cache hit" in line for line in again.lines) == 3, again.lines
        ids, mask = sentences(2, 11, random.Random(0))
        with again.client() as client, quickstart.client() as first:
            assert numpy.array_equal(embeddings(client, ids, mask), embeddings(first, ids, mask))
    finally:
        assert again.stop() == 0
