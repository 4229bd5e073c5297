"""A factory whose code changes while a server runs: a load sees the change, or is refused with the reason; no
version is ever part old and part new."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest

from .conftest import Start
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


def test_where_a_worker_has_run_the_old_code_a_load_is_refused(launch: Start, code: Path) -> None:
    server = launch(config(eager="true"))
    with server.client() as client:
        code.write_text("WORD = 'changed'\n")
        refused = load(client)
        assert (
            refused.status_code == 500
            and "'wordy.py', in the folder of factory 'wordy:identity', has changed"
            in refused.json()["error"]
        )
        assert word(client) == "old"
        assert client.post("/v2/models/identity/infer", content=body(5)).status_code == 200


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
