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
"""The tests' backend, for a model whose code says a word; one that is `eager` runs that in the worker."""
import importlib
import json
from dataclasses import replace

import eager_model
from eager_model import pin_model

from dlcb.compiler import modules
from dlcb.compiler.made_of import require_same_files
from dlcb.kernel_cache.key import Key


def word(source):
    modules.load_from_text(source.factory)  # as the compiler does, and in `compile_model` the rest
    return importlib.import_module(source.factory.partition(":")[0]).WORD


def of_word(source):
    return replace(source, factory=source.factory.replace("eager_model", "wordy"))


def program(source):
    return replace(source, factory=source.factory.replace("wordy", "eager_model"))


def made_of(key):
    return Key({"modules of": key}).digest


def find_model(source, store, options=None):
    return None  # its key is of what it says


def compile_model(source, store, options=None, progress=None):
    said = word(source)
    known = program(replace(source, arguments={**source.arguments, "said": [said, source.file_digests()]}))
    found = eager_model.compile_model(known, store, options, progress)
    code = modules.imported(source.factory) | source.file_digests()
    store.put(made_of(found.artifact_key), json.dumps(code).encode(), kind="artifact", label="modules")
    return replace(found, report=replace(found.report, batching=(said,)), modules=code)


class Eager(eager_model.Model):
    code = {}

    def run(self, inputs):
        wordy = of_word(self.source)
        modules.require_same(wordy.factory, self.code)
        word(wordy)
        return super().run(inputs)


def load_model(source, key, store, *, device, request_compile):
    def request(specialised):
        return request_compile(replace(specialised, factory=source.factory))

    model = eager_model.load_model(program(source), key, store, device=device, request_compile=request)
    code = json.loads(store.get(made_of(key)))
    if source.arguments["eager"]:
        model.__class__ = Eager
        model.code = code
    require_same_files(source, code)
    return model
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
    """What the factory's module imports, beside that, its backend and the configuration."""
    (tmp_path / "wordy_backend.py").write_text(BACKEND)
    (tmp_path / "wordy.py").write_text("from spoken import WORD\n")
    file = tmp_path / "spoken.py"
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
        assert "worker-1 cannot load it: 'spoken.py', in the folder of factory 'wordy:identity', has" in said
        assert word(client) == "old"
        assert client.post("/v2/models/identity/infer", content=body(5)).status_code == 200
        until(lambda: workers(server) == before)  # the new one takes a moment to end


CHANGED = "has changed since the model was compiled: load the model anew"


def reason(client: httpx.Client) -> str:
    return client.post("/v2/repository/index").json()[0]["reason"]


@pytest.mark.parametrize("eager", [False, True])
def test_a_worker_that_comes_later_runs_no_changed_code(launch: Start, code: Path, eager: bool) -> None:
    server = launch(config(eager=str(eager).lower()))
    with server.client() as client:
        assert (
            reason(client) == "" and client.get("/v1/models/identity/coverage").json()["code_changed"] is None
        )
        code.write_text("WORD = 'changed'\n")
        assert CHANGED in reason(client)
        assert client.post("/v2/models/identity/infer", content=body(5)).status_code == 200
        (first,) = workers(server)
        os.kill(first, signal.SIGKILL)
        answers = [client.post("/v2/models/identity/infer", content=body(5)) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [503 if eager else 200] * 2
        if eager:
            assert CHANGED in answers[0].json()["error"]
        assert CHANGED in client.get("/v1/models/identity/coverage").json()["code_changed"]
        assert 'dlcb_model_code_changed{model="identity",version="1"} 1.0' in client.get("/metrics").text
        (line,) = [line for line in server.lines if "code or files have changed" in line]
        assert CHANGED in line and "'spoken.py'" in line
        assert load(client).status_code == 200
        assert word(client) == "changed" and reason(client) == ""
        assert client.post("/v2/models/identity/infer", content=body(5)).status_code == 200
        assert 'dlcb_model_code_changed{model="identity",version="1"} 0.0' in client.get("/metrics").text


@pytest.mark.parametrize("change", [False, True])
def test_a_new_rank_is_not_compiled_of_changed_code(launch: Start, code: Path, change: bool) -> None:
    server = launch(config(function="standardize", shape="null"))
    with server.client() as client:
        if change:
            code.write_text("WORD = 'changed'\n")
        assert client.post("/v2/models/identity/infer", content=body(5)).status_code == 200
        compiled = 'dlcb_compile_seconds_count{model="identity",reason="jit",tier="jit"}'
        if not change:
            until(lambda: compiled in client.get("/metrics").text)
            return
        until(
            lambda: (
                client.post("/v2/models/identity/infer", content=body(5)).status_code == 200
                and any("stays eager" in line and CHANGED in line for line in server.lines)
            )
        )
        assert compiled not in client.get("/metrics").text


WITH_WEIGHTS = """
server: {port: 0, spares: 0, backend: wordy_backend, grace_seconds: 0, keys: {admin: [admin-key]}}
models:
  - name: identity
    factory: wordy:identity
    arguments: {eager: false}
    weights: [weights.bin]
    inputs: [{name: x, datatype: FP32, shape: [batch, width]}]
    outputs: [y]
  - name: other
    factory: wordy:identity
    arguments: {eager: false, said: other}
    inputs: [{name: x, datatype: FP32, shape: [batch, width]}]
    outputs: [y]
"""


@pytest.mark.parametrize("emptied", [False, True])
def test_a_worker_that_comes_later_mixes_no_weights_and_serves_the_other_models(
    launch: Start, code: Path, tmp_path: Path, emptied: bool
) -> None:
    weights = tmp_path / "weights.bin"
    weights.write_text("old")
    server = launch(WITH_WEIGHTS)

    def answers() -> list[int]:
        paths = (f"/v2/models/{name}/infer" for name in ("identity", "other"))
        return [client.post(path, content=body(5)).status_code for path in paths]

    def kill_the_worker() -> None:
        (first,) = workers(server)
        os.kill(first, signal.SIGKILL)
        until(lambda: workers(server) not in ([], [first]))

    with server.client() as client:
        assert answers() == [200, 200]
        weights.write_text("new")
        said = reason(client)
        assert f"weights[0] '{Path(weights).name}' has changed since the model was compiled" in said
        assert client.get("/v1/models/identity/coverage").json()["code_changed"] == said
        assert answers() == [200, 200]  # the worker holds the old ones
        if emptied:
            for entry in server.cache.rglob("*"):
                if entry.is_file():
                    entry.unlink()
        kill_the_worker()
        assert answers() == [503, 200]
        refused = client.post("/v2/models/identity/infer", content=body(5)).json()["error"]
        assert refused == said and "sha256" in said
        plan = client.post("/v1/models/identity/plan", json={"shapes": {"x": [1, 2]}})
        assert (plan.status_code, plan.json()["error"]) == (503, said)
        weights.write_text("old")
        kill_the_worker()
        assert answers() == [200, 200] and reason(client) == ""
        weights.write_text("new")
        assert load(client).status_code == 200
        assert answers() == [200, 200] and reason(client) == ""
        weights.write_text("newer")
        assert "has changed" in reason(client)


MODEL = """
import torch
from scales import SCALE

class Scaled(torch.nn.Module):
    def forward(self, x):
        return x * SCALE

def scaled():
    return Scaled()
"""
REAL = """
server: {port: 0, spares: 0, grace_seconds: 0, keys: {admin: [admin-key]}}
models:
  - name: ranked
    factory: scaling:scaled
    jit: JIT
    inputs: [{name: x, datatype: FP32, shape: null}]
    outputs: [y]
  - name: named
    factory: scaling:scaled
    inputs: [{name: x, datatype: FP32, shape: [n, m]}]
    outputs: [y]
"""


@pytest.mark.slow
@pytest.mark.parametrize("jit", ["eager", "wait"])
def test_old_and_new_code_are_never_mixed(launch: Start, tmp_path: Path, jit: str) -> None:
    (tmp_path / "scaling.py").write_text(MODEL)
    scales = tmp_path / "scales.py"
    scales.write_text("SCALE = 2\n")
    server = launch(REAL.replace("JIT", jit))

    def ask(name: str, rank: int) -> float:
        """What a model makes of 1; 0 where it is refused in the right words."""
        entry = {"name": "x", "shape": [1] * rank, "datatype": "FP32", "data": [1.0]}
        with server.client() as client:
            answer = client.post(f"/v2/models/{name}/infer", json={"inputs": [entry]}, timeout=200)
        if answer.status_code == 200:
            return float(answer.json()["outputs"][0]["data"][0])
        assert answer.status_code == 503 and "'scales.py'" in answer.json()["error"]
        return 0.0

    def is_compiled() -> bool:
        ask("ranked", 1)
        with server.client() as client:
            return bool(client.get("/v1/models/ranked/coverage").json()["ranks"])

    until(is_compiled, 200)
    scales.write_text("SCALE = 3\n")
    held = 2 if jit == "eager" else 0  # where PyTorch has run the code, the worker holds it
    assert [ask("ranked", 1), ask("ranked", 2), ask("named", 2)] == [2, held, 2]
    os.kill(workers(server)[0], signal.SIGKILL)
    assert [ask("ranked", 1), ask("ranked", 2), ask("named", 2)] == [2, 0, 2]
    with server.client() as client:
        for name in ("ranked", "named"):
            path = f"/v2/repository/models/{name}/load"  # which gives way to what else the machine does
            assert client.post(path, headers=ADMIN, timeout=200).status_code == 200
    assert [ask("ranked", 1), ask("ranked", 2), ask("named", 2)] == [3, 3, 3]
    assert server.stop() == 0
    scales.write_text("SCALE = 4\n")
    server = launch(REAL.replace("JIT", jit))
    assert [ask("ranked", 1), ask("ranked", 2), ask("named", 2)] == [4, 4, 4]
