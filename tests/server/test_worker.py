"""A worker in this process, its two sockets held by the test: jobs are answered in order, and hot plans are
recorded while none waits, or once in a while."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest

from dlcb.compiler import InputDeclaration, ModelSource
from dlcb.kernel_cache import open_store
from dlcb.server import worker
from dlcb.server.channel import Channel
from dlcb.server.lookout import look
from dlcb.server.priority import GENTLE
from dlcb.server.process import start
from dlcb.server.slots import Begun, SlotPool
from dlcb.server.worker import Worker

from . import eager_model
from .test_lifecycle import until

SOURCE = ModelSource(
    name="sleepy",
    version="1",
    factory="eager_model:sleepy",
    arguments={},
    program=None,
    weights=(),
    inputs=(InputDeclaration("x", "float32", ("batch", "width")),),
    outputs=("y",),
    dims={},
)

ANY_RANK = (InputDeclaration("x", "float32", None),)
MAIN = {"log_level": "INFO", "process": "worker-0", "folder": str(Path(__file__).parent)}


def options_of(cache: Path, device: str) -> dict[str, Any]:
    described = {"folder": str(cache), "bundle": None, "limit_bytes": 1 << 20, "remote": None}
    return {
        "backend": "tests.server.eager_model",
        "cache": described,
        "device": device,
        "compile": True,
        "gently": False,
    }


def job_of(pool: SlotPool, number: int, array: numpy.ndarray) -> tuple[dict[str, Any], list[int]]:
    """A job for model 7, in a new slot, and the files that go with it."""
    slot = pool.take(array.nbytes)
    slot.view[: array.nbytes] = array.tobytes()
    message = {
        "batch": number,
        "model": 7,
        "slot": slot.number,
        "new": [slot.number],
        "drop": [],
        "free": [],
        "look": False,
        "inputs": [("x", "<f4", 0, array.shape)],
    }
    return message, [slot.file]


def load_of(source: ModelSource, key: str, gently: bool = False) -> dict[str, Any]:
    """What a worker is told to load a model as number 7."""
    return {
        "handle": 7,
        "source": source.to_json(),
        "artifact": key,
        "code": {},
        "serves": False,
        "refused": "",
        "probes": [],
        "padding": None,
        "gently": gently,
    }


class Front:
    """The front's ends of a worker's sockets."""

    def __init__(self, cache: Path, device: str) -> None:
        self.jobs, theirs = Channel.pair()
        control, worker_control = Channel.pair()
        self.begun = Begun.make()
        self.worker = Worker(theirs, worker_control, self.begun, options_of(cache, device))
        self.key = eager_model.compile_model(SOURCE, open_store(cache)).artifact_key
        self.model = eager_model.load_model(SOURCE, self.key, open_store(cache))
        self.worker._models[7] = self.model
        self.cache = cache
        self.control = control
        self.others = (theirs, control, worker_control)
        self.pool = SlotPool()
        self.thread = threading.Thread(target=self.worker.serve)
        self.thread.start()

    def send(self, number: int, array: numpy.ndarray) -> None:
        self.jobs.send(*job_of(self.pool, number, array))

    def reply(self) -> dict[str, Any]:
        received = self.jobs.receive()
        assert received is not None
        return received[0]

    def event(self) -> dict[str, Any]:
        received = self.control.receive()
        assert received is not None
        return received[0]

    def close(self) -> None:
        self.jobs.close()
        self.thread.join()
        for end in (*self.others, self.begun):
            end.close()


@pytest.fixture(params=["cpu", "cuda:0"])
def front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Front]:
    front = Front(tmp_path, request.param)
    yield front
    front.close()


def test_plans_are_recorded_when_no_job_waits_and_only_on_a_gpu(front: Front) -> None:
    for number in range(3):
        front.send(number, numpy.full((1, number + 1), 30.0, "float32"))
    for number in range(3):
        reply = front.reply()
        assert reply["batch"] == number and reply["result"] == "miss"
        assert reply["seconds"] > 0.03 and reply["output_seconds"] > 0
        assert number == 2 or front.model.recorded == 0  # the next job was there already
    if front.worker._device == "cpu":
        front.send(3, numpy.zeros((1, 1), "float32"))
        assert front.reply()["result"] == "hit"
        assert front.model.recorded == 0
    else:
        until(lambda: front.model.recorded == 4)  # three shapes, and a look that finds no more
        until(lambda: not front.worker._ran)


@pytest.mark.parametrize("front", ["cuda:0"], indirect=True)
def test_where_jobs_never_cease_a_plan_is_recorded_once_in_a_while(front: Front) -> None:
    front.worker._due = 0.0
    for number in range(3):
        front.send(number, numpy.full((1, number + 1), 30.0, "float32"))
    front.reply()
    front.reply()
    assert front.model.recorded == 1  # before the second job, and none before the third
    assert front.worker._due > time.monotonic()
    front.reply()


@pytest.mark.parametrize("front", ["cuda:0"], indirect=True)
def test_models_record_their_plans_in_turn(front: Front) -> None:
    turns: list[int] = []

    class Hot:
        """Has so many plans to record."""

        def __init__(self, handle: int, plans: int) -> None:
            self.handle, self.left = handle, plans

        def promote(self) -> bool:
            turns.append(self.handle)
            self.left -= 1
            return self.left >= 0

    front.worker._models |= {handle: Hot(handle, plans) for handle, plans in ((1, 3), (2, 1), (3, 2))}
    front.worker._ran = dict.fromkeys((1, 2, 3))
    while front.worker._ran:
        front.worker._record_one()
    assert turns == [1, 2, 3, 1, 2, 3, 1, 3, 1]


@pytest.mark.parametrize("front", ["cuda:0"], indirect=True)
@pytest.mark.parametrize("fails", [False, True])
def test_a_job_outlives_a_recording_that_takes_long_or_fails(
    fails: bool, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def promote() -> bool:
        began.set()
        goes_on.wait(30)
        if fails:
            raise RuntimeError("told to fail")
        return False

    monkeypatch.setattr(front.model, "promote", promote)
    front.send(1, numpy.zeros((1, 1), "float32"))
    assert front.reply()["batch"] == 1
    assert began.wait(30)  # no job waited then
    for number in (2, 3):
        front.send(number, numpy.zeros((1, number), "float32"))
    goes_on.set()
    for number in (2, 3):
        assert front.reply()["outputs"][0][4] == [1, number]
    until(lambda: not front.worker._ran)


@pytest.mark.parametrize("front", ["cpu"], indirect=True)
def test_a_worker_looks_for_the_next_job_when_told_to(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []

    def look_for_long(found: Callable[[], object], until: float) -> None:
        looked.append(until)
        look(found, until + 60)

    monkeypatch.setattr(worker, "look", look_for_long)
    for number, told in enumerate((False, True, False)):
        message, files = job_of(front.pool, number, numpy.full((1, 1), 1.0, "float32"))
        front.jobs.send({**message, "look": told}, files)
        assert front.reply()["batch"] == number
    assert len(looked) == 1  # and it ended when the last job came


@pytest.mark.parametrize("gently", [False, True])
def test_a_backend_is_loaded_beside_jobs_without_taking_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gently: bool
) -> None:
    name, before = f"backend_loaded_{gently}", os.getpriority(os.PRIO_PROCESS, 0)
    here = "os.getpriority(os.PRIO_PROCESS, threading.get_native_id())"
    (tmp_path / f"{name}.py").write_text(f"import os, threading\nNICE = {here}\n")
    monkeypatch.syspath_prepend(tmp_path)
    nice = worker._imported(name, gently).NICE
    assert nice == before + GENTLE * gently
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def test_a_failing_job_is_a_reply_like_any_other(front: Front) -> None:
    front.send(1, numpy.zeros((0, 1), "float32"))  # it has no largest value
    assert front.reply()["error"]["kind"] == "model"
    front.send(2, numpy.zeros((1, 1), "float32"))
    assert front.reply()["outputs"][0][4] == [1, 1]


@pytest.mark.parametrize("front", ["cpu"], indirect=True)
@pytest.mark.parametrize("gently", [False, True])
def test_a_model_that_loads_beside_jobs_gives_way_to_them(front: Front, gently: bool) -> None:
    before, found = os.getpriority(os.PRIO_PROCESS, 0), []

    def load() -> None:
        front.worker._load_model(load_of(SOURCE, front.key, gently))
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    loading = threading.Thread(target=load)
    loading.start()
    loading.join()
    assert front.worker._models[7] is not front.model
    assert found == [min(19, before + GENTLE * gently)]
    assert os.getpriority(os.PRIO_PROCESS, front.thread.native_id or 0) == before


@pytest.mark.parametrize("compiles", [False, True])
def test_a_plan_says_what_comes_of_a_new_rank(front: Front, compiles: bool) -> None:
    source = replace(SOURCE, factory="eager_model:standardize", inputs=ANY_RANK, jit="wait")
    key = eager_model.compile_model(source, open_store(front.cache)).artifact_key
    front.worker._models[7] = eager_model.load_model(source, key, open_store(front.cache))
    front.worker._compiles = compiles
    front.worker._plan_model({"ticket": 1, "handle": 7, "shapes": {"x": [2, 3]}})
    plan = front.event()["plan"]
    assert (plan["would_compile"], plan["tier"]) == ((True, "jit") if compiles else (False, "eager"))


def test_a_plan_with_numbers_that_no_message_carries_is_an_answer_all_the_same(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = eager_model.Plan({"y": (2,)}, "dynamic", 2**64, False, False)
    monkeypatch.setattr(front.model, "plan", lambda shapes: planned)
    front.worker._plan_model({"ticket": 3, "handle": 7, "shapes": {"x": [2, 3]}})
    event = front.event()
    assert event["ticket"] == 3 and "more bytes than can be addressed" in event["illegal"]


def test_a_model_that_ends_its_program_ends_a_request(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(front.model, "run", lambda arrays: sys.exit(2))
        front.send(1, numpy.full((1, 1), 1.0, "float32"))
        assert front.reply()["error"]["kind"] == "model"
    front.send(2, numpy.full((1, 1), 1.0, "float32"))
    assert front.reply()["result"] == "miss"


def test_a_worker_that_cannot_do_what_it_is_told_ends(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs, their_jobs = Channel.pair()
    control, their_control = Channel.pair()
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = start("dlcb.server.worker", [their_jobs, their_control], environment)
    begun = Begun.make()
    control.send({**options_of(tmp_path, "cpu"), **MAIN}, [begun.file])
    assert control.receive()[0]["event"] == "started"
    control.send({"do": "unload"})  # what?
    assert process.wait(30) == 1
    assert "cannot be done" in capfd.readouterr().err
    jobs.close()
    control.close()
    begun.close()


def test_a_log_holds_our_lines_and_not_a_models_warnings(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = replace(SOURCE, name="talkative", factory="eager_model:talkative")
    key = eager_model.compile_model(source, open_store(tmp_path)).artifact_key
    jobs, their_jobs = Channel.pair()
    control, their_control = Channel.pair()
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONWARNINGS": ""}
    process = start("dlcb.server.worker", [their_jobs, their_control], environment)
    begun = Begun.make()
    control.send({**options_of(tmp_path, "cpu"), **MAIN}, [begun.file])
    assert control.receive()[0]["event"] == "started"
    control.send({"do": "load", **load_of(source, key)})
    assert control.receive()[0]["event"] == "loaded"
    pool = SlotPool()
    jobs.send(*job_of(pool, 1, numpy.full((1, 1), 7.0, "float32")))
    assert jobs.receive()[0]["error"]["kind"] == "model"
    assert begun.number == 1
    jobs.close()
    assert process.wait(30) == 0
    control.close()
    begun.close()
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == ["a model failed"]
