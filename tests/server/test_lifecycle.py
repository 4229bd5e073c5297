"""Models that come and go, signals, and ways to fail at the start."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from dlcb.server.priority import GENTLE, SMALL_MACHINE

from .conftest import HERE, LiveServer, Start

ADMIN = {"X-API-Key": "admin-key"}
CONFIG = """
server: {{host: 127.0.0.1, port: 0, spares: {spares}, backend: eager_model, grace_seconds: {grace}}}
models:
  - name: {name}
    factory: eager_model:{name}
    arguments: {arguments}
    inputs: [{{name: x, datatype: FP32, shape: [batch, width]}}]
    outputs: [y]
"""


def config(name: str = "identity", spares: int = 0, grace: float = 0, arguments: str = "{}") -> str:
    return CONFIG.format(name=name, spares=spares, grace=grace, arguments=arguments)


def body(*values: float, **fields: object) -> bytes:
    entry = {"name": "x", "shape": [1, len(values)], "datatype": "FP32", "data": values}
    return json.dumps({"inputs": [entry], **fields}).encode()


def children(server: LiveServer, module: str) -> list[int]:
    """Process ids of a server's children that run a module. One that starts or ends has no command line
    for a moment, and is none of them.
    """
    listed = subprocess.run(
        ["pgrep", "-P", str(server.process.pid), "-f", re.escape(module)],
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(line) for line in listed.stdout.split()]


def workers(server: LiveServer) -> list[int]:
    """Process ids of the workers."""
    return children(server, "dlcb.server.worker")


def until(what: object, seconds: float = 20) -> None:
    """Wait until a condition holds; an AssertionError when it never does."""
    assert callable(what)
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.02)


def test_an_unloaded_model_leaves_the_server_ready(launch: Start) -> None:
    server = launch(config().replace("port: 0", "port: 0, keys: {admin: [admin-key]}"))
    path = "/v2/repository/models/identity"
    with server.client() as client:
        assert client.post(f"{path}/unload", headers=ADMIN).status_code == 200
        assert client.get("/v2/models/identity/ready").status_code == 503
        assert client.get("/v2/health/ready").status_code == 200
        assert client.post(f"{path}/load", headers=ADMIN).status_code == 200
        assert client.get("/v2/models/identity/ready").status_code == 200


def test_a_reload_while_a_spare_comes_up_ends(launch: Start) -> None:
    """The spare is told of the new model by both, and loads it once."""
    server = launch(config(spares=1).replace("port: 0", "port: 0, keys: {admin: [admin-key]}"))
    with server.client() as client:
        for _ in range(2):
            assert client.post("/v2/repository/models/identity/load", headers=ADMIN).status_code == 200
        assert client.post("/v1/models/identity/infer", content=body(5)).status_code == 200
        assert client.post("/v2/repository/models/identity/unload", headers=ADMIN).status_code == 200


def test_a_model_that_pytorch_runs_says_why_at_every_start(launch: Start) -> None:
    for cache in ("miss", "hit"):
        server = launch(config(arguments="{quarantined: it cannot be traced}"))
        (row,) = [number for number, line in enumerate(server.lines) if line.startswith("identity ")]
        assert "any size | eager | PyTorch runs every call" in server.lines[row]
        assert server.lines[row].endswith(f"cache {cache}")
        assert server.lines[row + 1].strip() == "PyTorch runs it: it cannot be traced"
        with server.client() as client:
            found = client.get("/v1/models/identity/coverage").json()
        assert (found["tier"], found["quarantined"]) == ("eager", "it cannot be traced")
        assert server.stop() == 0


def test_V7_sigterm_drains(launch: Start) -> None:
    server = launch(config("sleepy", grace=2))
    with server.client() as client, server.client() as other:
        assert other.get("/v2/health/ready").status_code == 200
        answers: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: answers.append(client.post("/v1/models/sleepy/infer", content=body(3000)))
        )
        thread.start()
        until(lambda: "dlcb_inflight_bytes 0.0" not in other.get("/metrics").text)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: other.get("/v2/health/ready").status_code == 503, 2)
        assert other.get("/v2/health/live").status_code == 200
        assert other.post("/v1/models/sleepy/infer", content=body(1)).status_code == 200
        thread.join()
        assert answers[0].status_code == 200
    assert server.wait() == 0


def test_V7_a_second_signal_ends_at_once(launch: Start) -> None:
    server = launch(config("sleepy", grace=30))
    children = workers(server)
    server.process.send_signal(signal.SIGTERM)
    with server.client() as client:
        until(lambda: client.get("/v2/health/ready").status_code == 503, 2)
    start = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 128 + signal.SIGTERM
    assert time.monotonic() - start < 10  # draining would take 30
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def test_V7_sigterm_under_load_loses_nothing(launch: Start) -> None:
    """What is sent before the door closes is answered; not ready is said at once."""
    grace = 1.0
    server = launch(config("sleepy", grace=grace))
    started: list[tuple[float, int]] = []  # when a request was sent, and its status (0: none came)

    async def client(http: httpx.AsyncClient) -> None:
        while True:
            begun = time.monotonic()
            try:
                response = await http.post("/v1/models/sleepy/infer", content=body(20))
            except httpx.TransportError:
                started.append((begun, 0))
                return
            started.append((begun, response.status_code))

    async def go() -> float:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            clients = [asyncio.create_task(client(http)) for _ in range(8)]
            while len(started) < 40:
                await asyncio.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
            signalled = time.monotonic()
            while (await http.get("/v2/health/ready")).status_code == 200:
                assert time.monotonic() - signalled < grace / 2
            await asyncio.gather(*clients)
            return signalled

    signalled = asyncio.run(go())
    before = [status for begun, status in started if begun < signalled + grace / 2]
    assert set(before) == {200}
    assert {status for _begun, status in started} == {200, 0}
    assert server.wait() == 0


def test_children_end_with_a_killed_front(launch: Start) -> None:
    server = launch(config())
    children = workers(server)
    assert children
    server.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def test_models_are_loaded_and_unloaded_by_name(client: httpx.Client) -> None:
    path = "/v2/repository/models/spare"
    states = {entry["name"]: entry["state"] for entry in client.post("/v2/repository/index").json()}
    assert states["spare"] == "UNAVAILABLE" and states["identity"] == "READY"
    assert client.get("/v2/models/spare/ready").status_code == 503
    assert client.post(f"{path}/load", headers=ADMIN).status_code == 200
    answer = client.post("/v2/models/spare/infer", content=body(5)).json()
    assert (answer["model_version"], answer["outputs"][0]["data"]) == ("2", [5.0])
    assert client.post(f"{path}/load", headers=ADMIN, content=b"{}").status_code == 200  # a reload
    assert client.post("/v2/models/spare/infer", content=body(6)).status_code == 200
    assert client.post(f"{path}/unload", headers=ADMIN).status_code == 200
    assert client.post("/v2/models/spare/infer", content=body(5)).status_code == 503
    ready = client.post("/v2/repository/index", json={"ready": True}).json()
    assert "spare" not in {entry["name"] for entry in ready}


def test_a_version_is_loaded_and_unloaded_beside_another(client: httpx.Client) -> None:
    def ask(verb: str, version: object) -> httpx.Response:
        body = {"parameters": {"version": version}}
        return client.post(f"/v2/repository/models/spare/{verb}", headers=ADMIN, json=body)

    def answering() -> str:
        return client.post("/v2/models/spare/infer", content=body(5)).json()["model_version"]

    assert ask("load", "1").status_code == 200 and answering() == "1"
    assert ask("load", "2").status_code == 200 and answering() == "2"
    for verb in ("load", "unload"):
        assert ask(verb, "3").status_code == 404
        assert "expected text" in ask(verb, 2).json()["error"]
    assert ask("unload", "2").status_code == 200 and answering() == "1"
    assert ask("unload", "1").status_code == 200
    assert client.post("/v2/models/spare/infer", content=body(5)).status_code == 503


def test_a_version_that_does_not_load_keeps_no_other_from_it(launch: Start) -> None:
    entry = config().partition("models:\n")[2]
    of_two = entry.replace("{}", "{fails: compiler}") + '    version: "2"\n'
    options = (
        "port: 0, backend: eager_model, grace_seconds: 0, exit_on_error: false, keys: {admin: [admin-key]}"
    )
    server = launch(f"server: {{{options}}}\nmodels:\n{entry}{of_two}")
    with server.client() as client:
        path = "/v2/repository/models/identity"
        assert client.post(f"{path}/unload", headers=ADMIN).status_code == 200
        failed = client.post(f"{path}/load", headers=ADMIN)
        assert (
            failed.status_code == 500 and "version '2' did not load: told to fail" in failed.json()["error"]
        )
        answer = client.post("/v2/models/identity/infer", content=body(5)).json()
        assert answer["model_version"] == "1"


@pytest.mark.parametrize("spares", [0, 1])
def test_a_model_that_ends_its_worker_is_loaded_in_one_first(launch: Start, spares: int) -> None:
    entry = config().partition("models:\n")[2]
    deadly = (
        entry.replace("name: identity", "name: deadly").replace("{}", "{fails: worker}") + "    load: false\n"
    )
    processes = f"workers: 2, spares: {spares}, backend: eager_model"
    options = f"port: 0, {processes}, grace_seconds: 0, keys: {{admin: [admin-key]}}"
    server = launch(f"server: {{{options}}}\nmodels:\n{entry}{deadly}")
    with server.client() as client:
        before = set(workers(server))
        until(lambda: len(workers(server)) == 2 + spares)
        failed = client.post("/v2/repository/models/deadly/load", headers=ADMIN)
        assert failed.status_code == 500 and "ended with code 9" in failed.json()["error"]
        assert len(before & set(workers(server))) == (2 if spares else 1)
        assert client.post("/v2/models/identity/infer", content=body(5)).status_code == 200
        until(lambda: len(workers(server)) == 2 + spares)
        assert "dlcb_worker_restarts_total 1.0" in client.get("/metrics").text


def test_V6_requests_are_answered_while_another_model_loads(client: httpx.Client) -> None:
    """None of them waits for it. (How much a compilation moves the p99 is the load test's to measure.)"""
    path = "/v2/repository/models/slow_to_compile"
    loads: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: loads.append(client.post(f"{path}/load", headers=ADMIN)))
    thread.start()
    answered = 0
    while not loads:
        assert client.post("/v2/models/identity/infer", content=body(5)).status_code == 200
        answered += not loads
    thread.join()
    assert loads[0].status_code == 200 and answered >= 20
    assert client.post(f"{path}/unload", headers=ADMIN).status_code == 200


def test_loading_needs_the_key_and_takes_nothing_from_the_client(client: httpx.Client) -> None:
    path = "/v2/repository/models/spare/load"
    assert client.post(path).status_code == 401
    assert client.post(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
    for parameters in ({"config": "{}"}, {"file:1/model.pt2": "AAAA"}):
        response = client.post(path, headers=ADMIN, json={"parameters": parameters})
        assert response.status_code == 400 and "registered" in response.json()["error"]
    assert client.post("/v2/repository/models/nobody/load", headers=ADMIN).status_code == 404
    for malformed in (b"[]", b"{", b'{"parameters": 3}'):
        assert client.post(path, headers=ADMIN, content=malformed).status_code == 400


def test_a_failed_load_says_why_and_moves_nothing(client: httpx.Client) -> None:
    response = client.post("/v2/repository/models/broken/load", headers=ADMIN)
    assert response.status_code == 500 and "told to fail" in response.json()["error"]
    index = {entry["name"]: entry for entry in client.post("/v2/repository/index").json()}
    assert index["broken"]["state"] == "UNAVAILABLE" and "told to fail" in index["broken"]["reason"]
    assert client.get("/v2/health/ready").status_code == 200


def run_to_its_end(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(HERE))))
    return subprocess.run(
        [sys.executable, "-m", "dlcb.server", "serve", "--config", str(path)],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fails", "code"),
    [
        ("compiler", 1),
        ("toolchain", 3),
        ("declaration", 2),
        ("process", 1),
        ("killed", 1),
        ("fault", 1),
        ("load", 1),
        ("exit", 1),
        ("exit at load", 1),
    ],
)  # fmt: skip
def test_a_model_that_does_not_load_ends_the_start_with_one_line(
    tmp_path: Path, fails: str, code: int
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(config(arguments=f"{{fails: {fails}}}"))
    done = run_to_its_end(path, DLCB_CACHE=str(tmp_path / "cache"))
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("dlcb:")]
    assert len(lines) == 1 and "'identity'" in lines[0]
    assert (f"{path}:8: models.0.outputs: " in lines[0]) == (code == 2)
    how = {"process": "with code 9", "killed": "of SIGKILL", "fault": "of SIGSEGV"}.get(fails)
    assert how is None or f"the compile process died twice, last {how} in stage 'capture'" in lines[0]
    assert ("say the model's `dims` as ranges" in lines[0]) == (fails == "fault")


FAILING = ("compiler", "declaration", "process", "load", "worker")


def test_the_others_serve_where_a_failure_is_no_end(launch: Start, tmp_path: Path) -> None:
    entry = config().partition("models:\n")[2]
    models = [entry]
    for fails in FAILING:
        models.append(entry.replace("name: identity", f"name: {fails}").replace("{}", f"{{fails: {fails}}}"))
    later = tmp_path / "later"
    later.touch()
    models.insert(0, entry.replace("name: identity", "name: later").replace("{}", f"{{fails_with: {later}}}"))
    options = "port: 0, backend: eager_model, exit_on_error: false, grace_seconds: 0, keys: {admin: [a]}"
    started = launch(f"server: {{{options}}}\nmodels:\n{''.join(models)}")
    admin = {"X-API-Key": "a"}
    with started.client() as client:
        assert client.get("/v2/health/ready").status_code == 200
        index = {each["name"]: each for each in client.post("/v2/repository/index").json()}
        metrics = client.get("/metrics").text
        for name in (*FAILING, "later"):
            assert index[name]["state"] == "UNAVAILABLE" and index[name]["reason"]
            answer = client.post(f"/v2/models/{name}/infer", content=body(5))
            assert answer.status_code == 503 and index[name]["reason"] in answer.json()["error"]
            assert client.get(f"/v2/models/{name}/ready").status_code == 503
            assert f'dlcb_model_ready{{model="{name}",version="1"}} 0.0' in metrics
            assert f'dlcb_model_load_failures_total{{model="{name}",version="1"}}' in metrics
            assert sum(line.startswith(f"{name:<12} left out: ") for line in started.lines) == 1
        assert any(re.search(r"left out: .*config.*:\d+: models.3.outputs: ", line) for line in started.lines)
        assert index["identity"] == {"name": "identity", "version": "1", "state": "READY", "reason": ""}
        assert client.post("/v2/models/identity/infer", content=body(5)).status_code == 200
        path = "/v2/repository/models/later/load"
        assert client.post(path, headers=admin).status_code == 500
        later.unlink()
        assert client.post(path, headers=admin).status_code == 200
        assert client.post("/v2/models/later/infer", content=body(5)).status_code == 200
        failures = 'dlcb_model_load_failures_total{model="later",version="1"} 3.0'  # twice at the start
        assert failures in client.get("/metrics").text
    assert started.stop() == 0


def test_a_server_without_any_model_does_not_start(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    lenient = config(arguments="{fails: toolchain}").replace("port: 0", "port: 0, exit_on_error: false")
    path.write_text(lenient)
    done = run_to_its_end(path, DLCB_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 3 and "there is no compiler" in done.stderr


def test_a_configuration_error_is_2_and_one_line(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(config().replace("FP32", "FP33"))
    done = run_to_its_end(path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        line for line in done.stderr.splitlines() if line.startswith("dlcb: ")
    ]
    assert f"{path}:7: models.0.inputs.0.datatype: 'FP33'" in done.stderr


def test_an_unusable_cache_folder_is_4_and_one_line(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(config())
    (tmp_path / "file").write_text("")
    done = run_to_its_end(path, DLCB_CACHE=str(tmp_path / "file" / "cache"))
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert line.startswith("dlcb: ") and str(tmp_path / "file") in line


def test_a_taken_port_is_one_line(server: LiveServer, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(config().replace("port: 0", f"port: {httpx.URL(server.url).port}"))
    done = run_to_its_end(path, DLCB_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "cannot listen" in line and "--port" in line


def test_unusable_tls_files_are_2_and_one_line(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(config().replace("port: 0", "port: 0, tls_certificate: a.pem, tls_key: a.pem"))
    (tmp_path / "a.pem").write_text("no certificate")
    done = run_to_its_end(path, DLCB_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("dlcb: cannot serve https")


def test_a_module_beside_the_configuration_is_found(launch: Start, tmp_path: Path) -> None:
    """In the compile process and in workers, whatever the working directory."""
    (tmp_path / "beside_the_file.py").write_text("from eager_model import *\n")
    server = launch(config().replace("backend: eager_model", "backend: beside_the_file"))
    with server.client() as client:
        assert client.post("/v1/models/identity/infer", content=body(5)).status_code == 200


def test_what_the_cache_has_loads_before_anything_is_compiled(launch: Start) -> None:
    entry = config().partition("models:\n")[2]
    slow = entry.replace("name: identity", "name: slow").replace("{}", "{compile_seconds: 2}")
    launch(config()).stop()
    server = launch(config().replace("models:\n", f"models:\n{slow}"))
    rows = [line.split()[0] for line in server.lines if "| cache " in line]
    assert rows == ["identity", "slow"]  # in the file it stands behind


def test_a_start_says_at_once_what_it_starts_and_a_failure_once(launch: Start, tmp_path: Path) -> None:
    server = launch(config())
    assert server.lines[0] == "starting identity"
    with pytest.raises(RuntimeError) as failed:
        launch(config(arguments="{fails: compiler}"))
    assert str(failed.value).count("told to fail") == 1


def test_who_works_beside_jobs_gives_way_to_them(launch: Start) -> None:
    """Priorities say something within a session only, where Linux shares processors by sessions first."""
    server = launch(config(spares=1))
    (compiles,) = children(server, "dlcb.server.compile_process")
    idle = (os.cpu_count() or 1) <= SMALL_MACHINE
    until(lambda: os.getpriority(os.PRIO_PROCESS, compiles) == GENTLE)
    until(lambda: os.sched_getscheduler(compiles) == (os.SCHED_IDLE if idle else os.SCHED_OTHER))
    until(lambda: len(workers(server)) == 2)
    for pid in (compiles, *workers(server)):
        assert os.getsid(pid) == os.getsid(server.process.pid)
        assert os.getpgid(pid) == pid  # a Ctrl-C at the terminal is not for it


def test_children_may_log_to_a_terminal_of_which_they_are_not_the_foreground(launch: Start) -> None:
    """They have process groups of their own, and `stty tostop` stops those that write."""
    server = launch(config(spares=1))

    def ignores(pid: int) -> bool:
        status = Path(f"/proc/{pid}/status").read_text()
        return bool(int(re.findall(r"SigIgn:\s*(\w+)", status)[0], 16) >> (signal.SIGTTOU - 1) & 1)

    until(lambda: len(workers(server)) == 2)
    until(lambda: all(map(ignores, (*children(server, "dlcb.server.compile_process"), *workers(server)))))


def test_logs_and_lines_for_people_do_not_share_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(config(arguments="{quarantined: told to}"))
    command = [sys.executable, "-m", "dlcb.server", "serve", "--config", str(path)]
    folders = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(HERE))))
    environment = {**os.environ, "PYTHONPATH": folders, "DLCB_CACHE": str(tmp_path / "cache")}
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as started,
    ):
        assert started.stdout is not None
        lines = [next(started.stdout)]
        while not lines[-1].startswith("ready at"):
            lines.append(next(started.stdout))
        started.terminate()
        lines += started.stdout.readlines()
    assert [line.split()[0] for line in lines] == ["starting", "identity", "PyTorch", "ready", "stopping:"]
    records = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [record["message"] for record in records] == ["PyTorch runs the model"]
