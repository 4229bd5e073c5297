"""A process that serves a model of any rank from a store, with a compile process beside it; what it saw goes
to standard output as JSON. Run as: jit_process.py STORE SHAPE [SHAPE ...], shapes like 2x3x4."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from dlcb.compiler import InputDeclaration, ModelSource, compile_model, load_model
from dlcb.compiler.bridge.capture import load_module
from dlcb.compiler.build.toolchain import calls
from dlcb.kernel_cache import open_store

SOURCE = ModelSource(
    "normalised",
    "1",
    factory="thunk_models:normalised",
    inputs=(InputDeclaration("x", "float32", None),),
    outputs=("out",),
)
PATIENCE = 120.0  # seconds until a compilation that does not come is given up


def compile_elsewhere(store: str, source: dict) -> tuple[str, int]:
    """In the compile process: the artifact's key, and how often a compiler ran."""
    key = compile_model(ModelSource.from_json(source), open_store(Path(store))).artifact_key
    return key, calls.total


def main(folder: str, shapes: list[tuple[int, ...]]) -> None:
    store = open_store(Path(folder))
    eager = load_module(SOURCE)
    compiled: list[int] = []
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as compile_process:

        def request(source: ModelSource) -> Future[str]:
            asked: Future[str] = Future()

            def answer(done: Future[tuple[str, int]]) -> None:
                key, ran = done.result()
                asked.set_result(key)
                compiled.append(ran)  # what is waited for below

            compile_process.submit(compile_elsewhere, folder, source.to_json()).add_done_callback(answer)
            return asked

        key = compile_model(SOURCE, store).artifact_key
        model = load_model(SOURCE, key, store, request_compile=request)
        served = []
        for shape in shapes:
            x = torch.randn(shape)
            outcome = model.run({"x": x.numpy()})
            right = torch.allclose(torch.from_numpy(outcome.outputs["out"]), eager(x), atol=1e-6)
            served.append([outcome.tier, right])
            end = time.monotonic() + PATIENCE
            while model.counters.compiles_requested > len(compiled) and time.monotonic() < end:
                time.sleep(0.05)
    print(
        json.dumps(
            {
                "served": served,
                "requested": model.counters.compiles_requested,
                "compiler runs here": calls.total,
                "compiler runs in the compile process": sum(compiled),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], [tuple(map(int, shape.split("x"))) for shape in sys.argv[2:]])
