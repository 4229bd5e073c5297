"""A factory whose code changes while a server runs: a load sees the change, in new workers where the old ones
cannot; what is compiled is never part old and part new."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import httpx
import pytest

from .conftest import Start
from .eager_model import gate_of
from .test_lifecycle import ADMIN, body, until, workers

BACKEND = '''
"""The tests' backend, for a model whose code says a word; a model that is `eager` runs that in the worker."""
import importlib
from dataclasses import replace

import eager_model
from eager_model import pin_model

from dlcb.compiler.modules import loaded


def word(source):
    module = importlib.import_module(source.factory.partition(":")[0])
    loaded(source.factory)  # as the compiler does
    return module.WORD


def program(source):
    return replace(source, factory=source.factory.replace("wordy", "eager_model"))


def compile_model(source, store, options=None, progress=None):
    known = program(source)
    found = eager_model.compile_model(known, store, options, progress)
    return replace(found, report=replace(found.report, batching=(word(source),)))


def load_model(source, key, store, *, device, request_compile):
    if source.arguments["eager"]:
        word(source)

    def request(specialised):
        return request_compile(replace(specialised, factory=source.factory))

    return eager_model.load_model(program(source), key, store, device=device, request_compile=request)
'''
CONFIG = """
server: {{port: 0, spares: 0, backend: wordy_backend, grace_seconds: 0, keys: {{admin: [admin-key]}}}}
models:
  - name: identity
    factory: wordy:{function}
    arguments: {{eager: {eager}}}
    inputs: [{{name: x, datatype: FP32, shape: {shape}}}]
    outputs: [y]
"""


def config(eager: str = "false", function: str = "identity", shape: str = "[batch, width]") -> str:
    return CONFIG.format(eager=eager, function=function, shape=shape)


def load(client: httpx.Client) -> httpx.Response:
    return client.post("/v2/repository/models/identity/load", headers=ADMIN)


def word(client: httpx.Client) -> str:
    return client.get("/v1/models/identity/explain").json()["batching"][0]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """The factory's module, beside its backend and the configuration."""
    (tmp_path / "wordy_backend.py").write_text(BACKEND)
    file = tmp_path / "wordy.py"
    file.write_text("WORD = 'old'\n")
    return file


def test_a_load_sees_changed_code(launch: Start, code: Path) -> None:
    server = launch(config())
    with server.client() as client:
        assert word(client) == "old"
        code.write_text("WORD = 'changed'\n")
        for _ in range(2):
            assert load(client).status_code == 200
            assert word(client) == "changed"
        assert client.post("/v2/models/identity/infer", content=body(5)).status_code == 200


@pytest.mark.parametrize("spares", [0, 1])
def test_workers_that_have_run_the_old_code_are_replaced_and_lose_no_request(
    launch: Start, code: Path, spares: int
) -> None:
    server = launch(config(eager="true", function="gated").replace("spares: 0", f"spares: {spares}"))
    (first,) = workers(server)[:1]
    code.write_text("WORD = 'changed'\n")
    gate = gate_of(server.process.pid, 1)
    answers: dict[str, httpx.Response] = {}

    def ask() -> None:
        with server.client() as other:
            answers["old"] = other.post("/v2/models/identity/infer", content=body(1))

    def load_anew() -> None:
        with server.client() as other:
            answers["load"] = load(other)

    threads = [threading.Thread(target=what) for what in (ask, load_anew)]
    with server.client() as client:
        threads[0].start()
        until(Path(f"{gate}.begun").exists)
        threads[1].start()
        until(lambda: word(client) == "changed")
        new = client.post("/v2/models/identity/infer", content=body(0))
        assert new.status_code == 200 and first in workers(server)  # which still has its job
        gate.touch()
        for thread in threads:
            thread.join()
        assert {name: answer.status_code for name, answer in answers.items()} == {"old": 200, "load": 200}
        until(lambda: len(workers(server)) == 1 + spares and first not in workers(server))
        assert client.post("/v2/models/identity/infer", content=body(0)).status_code == 200
        assert "dlcb_worker_restarts_total 0.0" in client.get("/metrics").text
    gate.unlink()
    Path(f"{gate}.begun").unlink()


def test_where_no_new_worker_comes_up_the_load_is_refused_and_the_old_serve(
    launch: Start, code: Path
) -> None:
    server = launch(config(eager="true"))
    before = workers(server)
    in_a_worker = "'dlcb.server.worker' in sys.orig_argv"
    code.write_text(f"import sys\nWORD = 'changed'\nif {in_a_worker}: raise ImportError('not here')\n")
    with server.client() as client:
        refused = load(client)
        said = refused.json()["error"]
        assert refused.status_code == 409 and "not here" in said
        assert "worker-1 cannot load it: 'wordy.py', in the folder of factory 'wordy:identity', has" in said
        assert word(client) == "old"
        assert client.post("/v2/models/identity/infer", content=body(5)).status_code == 200
        assert workers(server) == before


def test_a_worker_that_comes_later_says_that_the_code_has_changed(launch: Start, code: Path) -> None:
    server = launch(config(eager="true"))
    code.write_text("WORD = 'changed'\n")
    (first,) = workers(server)
    with server.client() as client:
        os.kill(first, signal.SIGKILL)
        assert client.post("/v2/models/identity/infer", content=body(5)).status_code == 200
    until(lambda: any("code has changed since its model was loaded" in line for line in server.lines))


@pytest.mark.parametrize("change", [False, True])
def test_a_new_rank_is_not_compiled_of_changed_code(launch: Start, code: Path, change: bool) -> None:
    server = launch(config(function="standardize", shape="null"))
    if change:
        code.write_text("WORD = 'changed'\n")

    def ask() -> str:
        with server.client() as client:
            assert client.post("/v2/models/identity/infer", content=body(5)).status_code == 200
            return client.get("/metrics").text

    if change:
        until(
            lambda: (
                ask() and any("code has changed since the model was loaded" in line for line in server.lines)
            )
        )
    else:
        until(lambda: 'result="hit",tier="jit"' in ask())
