"""A worker process: holds compiled models, runs the jobs that come over its control socket, and answers in
shared memory. It promises one reply a job, in order, whatever a request holds. Models are loaded beside the
running jobs, in a second thread with a socket of its own.
"""

from __future__ import annotations

import importlib
import logging
import os
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy

from dlcb.compiler import (
    ArtifactError,
    ChangedCode,
    CompilerError,
    IndexRangeError,
    ModelSource,
    RequestError,
    Signature,
    made_of,
    modules,
)
from dlcb.kernel_cache import CacheError
from dlcb.server import codec, large_json, logs
from dlcb.server.cache import open_described
from dlcb.server.channel import Channel
from dlcb.server.datatypes import BY_DTYPE
from dlcb.server.errors import OF_USERS_CODE, BadRequest, DeadlineExceeded, TooLarge
from dlcb.server.lookout import LOOK_SECONDS, look
from dlcb.server.lost_device import end_if_lost
from dlcb.server.memory import check_memory, footprint_of
from dlcb.server.padding import Padding, PaddingError
from dlcb.server.priority import lower_thread
from dlcb.server.probing import check_padding, probe
from dlcb.server.settings import import_beside
from dlcb.server.slots import Begun, Slot, SlotMap, SlotPool, aligned
from dlcb.server.types import Buffer, Tensor

IDLE_MILLISECONDS = 20  # without a job before hot plans are recorded
BUSY_SECONDS = 1.0  # without such a moment before one is recorded all the same
BUSY_SHARE = 0.01  # of a worker's time, at most, that such recordings take from jobs
# Seconds that a thread keeps the interpreter from another that asks for it. The default, 5 ms, is what a job
# would wait after each of its calls into native code while a model loads.
SWITCH_SECONDS = 0.0005
MESSAGE_KEPT = 4000

log = logging.getLogger("dlcb.worker")


class Worker:
    """The models of this process and the two threads' work on them."""

    def __init__(self, jobs: Channel, control: Channel, begun: Begun, options: Mapping[str, Any]) -> None:
        self._jobs = jobs
        self._control = control
        self._begun = begun
        self._sending = threading.Lock()
        # loads torch, before any model
        self._load_backend = _imported(options["backend"], options["gently"]).load_model
        self._store = open_described(options["cache"])
        self._device = options["device"]
        self._compiles = options["compile"]
        self._models: dict[int, Any] = {}
        self._changed: set[int] = set()  # models of other code than this process has, of which it was said
        self._refused: dict[int, str] = {}  # models that this process cannot have as they serve, and why
        self._inputs = SlotMap()
        self._outputs = SlotPool()
        self._taken: dict[int, Slot] = {}
        self._tickets: dict[int, Future[str]] = {}
        self._next_ticket = 0
        self._running = threading.Lock()  # a model takes one call at a time, a plan or a run
        # models that may have a hot plan to record, whose turn is next first; on the CPU nothing is recorded
        self._ran: dict[int, None] = {}
        self._due = time.monotonic() + BUSY_SECONDS  # when one is recorded though a job waits

    # Jobs: the main thread

    def serve(self) -> None:
        """Run jobs until the front closes the socket."""
        _want_no_gradients()
        next_job = select.poll()
        next_job.register(self._jobs.fileno(), select.POLLIN)
        while True:
            self._record(next_job)
            received = self._jobs.receive()
            if received is None:
                return
            job, files = received
            self._begun.number = job["batch"]
            for number, file in zip(job["new"], files, strict=True):
                self._inputs.add(number, file)
            for number in job["drop"]:
                self._inputs.drop(number)
            for number in job["free"]:
                self._outputs.give_back(self._taken.pop(number))
            reply, new = self._answer(job)
            self._jobs.send(reply, [slot.file for slot in new])
            if job["look"]:
                look(lambda: next_job.poll(0), time.perf_counter() + LOOK_SECONDS)

    def _answer(self, job: dict[str, Any]) -> tuple[dict[str, Any], list[Slot]]:
        """The reply to a job, and the slots the front has not seen yet."""
        if refused := self._refused.get(job["model"]):
            return _failed(job, "changed", refused), []
        try:
            model = self._models[job["model"]]
            if "body" in job:
                return self._run_body(model, job)
            return self._run_inputs(model, job)
        except IndexRangeError as error:
            return _failed(job, "index", error.message, **_index_fields(error)), []
        except RequestError as error:
            return _failed(job, "request", error.message), []
        except BadRequest as error:
            return _failed(job, "request", str(error)), []
        except TooLarge as error:
            return _failed(job, "large", str(error)), []
        except DeadlineExceeded as error:
            return _failed(job, "deadline", str(error)), []
        except ChangedCode as error:
            self._warn_of_change(job["model"], model.source.name, error.message)
            return _failed(job, "changed", error.message), []
        except OF_USERS_CODE as error:
            log.error("a model failed", exc_info=True, extra={"fields": {"model": job["model"]}})
            end_if_lost(self._device)
            return _failed(job, "model", f"the model failed with {type(error).__name__}"), []

    def _run(self, handle: int, model: Any, arrays: Mapping[str, numpy.ndarray]) -> Any:
        with self._running:
            outcome = model.run(arrays)
        if self._device != "cpu":
            self._ran.setdefault(handle)
        return outcome

    def _record(self, next_job: select.poll) -> None:
        """Record hot plans while no job waits. Where jobs never cease, that is when it pays most: then one,
        once in a while."""
        while self._ran:
            waits = next_job.poll(IDLE_MILLISECONDS)
            began = time.monotonic()
            if waits and began < self._due:
                return
            self._record_one()
            now = time.monotonic()
            self._due = now + max(BUSY_SECONDS, (now - began) / BUSY_SHARE)

    def _record_one(self) -> None:
        """Let the model whose turn it is record one hot plan. One that has more waits for all others."""
        handle = next(iter(self._ran))
        del self._ran[handle]
        model = self._models.get(handle)
        try:
            with self._running:
                recorded = model is not None and model.promote()
        except OF_USERS_CODE:  # jobs are answered without
            log.error("a hot plan was not recorded", exc_info=True, extra={"fields": {"model": handle}})
            end_if_lost(self._device)
            recorded = False
        if recorded:
            self._ran[handle] = None

    def _run_inputs(self, model: Any, job: dict[str, Any]) -> tuple[dict[str, Any], list[Slot]]:
        view = self._inputs.view(job["slot"])
        arrays = {
            name: numpy.ndarray(shape, array, view, offset) for name, array, offset, shape in job["inputs"]
        }
        start = time.perf_counter()
        outcome = self._run(job["model"], model, arrays)
        ran = time.perf_counter()
        outputs = outcome.outputs.items()
        slot, new = self._take(sum([aligned(array.nbytes) for _name, array in outputs]))
        described, offset = [], 0
        for name, array in outputs:
            numpy.ndarray(array.shape, array.dtype, slot.view, offset)[...] = array
            described.append((name, slot.number, offset, array.nbytes, array.shape))
            offset = aligned(offset + array.nbytes)
        return {"outputs": described, **_done(job, slot, new, outcome, start, ran)}, new

    def _run_body(self, model: Any, job: dict[str, Any]) -> tuple[dict[str, Any], list[Slot]]:
        """Decode a large JSON body, run it alone, and encode its answer."""
        body = self._inputs.view(job["slot"])[: job["body"]]
        request = codec.decode(body, job["json_length"], large_json.loads)
        if request.timeout is not None and job["age"] > request.timeout:
            raise DeadlineExceeded(f"the timeout of {request.timeout * 1e3:g} ms passed while waiting")
        signature: Signature = model.signature
        sizes = signature.check(
            {name: tensor.shape for name, tensor in request.inputs.items()},
            {name: tensor.datatype.dtype for name, tensor in request.inputs.items()},
        )
        check_memory(job["name"], footprint_of(signature), sizes, job["memory"], signature.batch)
        chosen = codec.choose_outputs(request, signature.outputs)
        arrays = {
            tensor.name: numpy.frombuffer(tensor.data, tensor.datatype.array).reshape(tensor.shape)
            for tensor in request.inputs.values()
        }
        start = time.perf_counter()
        outcome = self._run(job["model"], model, arrays)
        ran = time.perf_counter()
        answer, json_length = codec.encode(
            job["name"], job["version"], request.id, _named(outcome.outputs, chosen, signature)
        )
        slot, new = self._take(sum(map(len, answer)))
        end = 0
        for part in answer:
            start_of_part, end = end, end + len(part)
            slot.view[start_of_part:end] = part
        where = {"body": (slot.number, 0, end), "json_length": json_length}
        return {**where, **_done(job, slot, new, outcome, start, ran)}, new

    def _take(self, size: int) -> tuple[Slot, list[Slot]]:
        """A slot for an answer; the list holds it when the front must be sent its file."""
        known = self._outputs.made
        slot = self._outputs.take(size)
        self._taken[slot.number] = slot
        return slot, [slot] if self._outputs.made > known else []

    # Control: the second thread

    def control(self) -> None:
        """Load, unload and report until the front closes the socket; then the process ends, even inside a
        job. It ends as well when this fails: another can be told, and one that does not listen cannot."""
        while True:
            try:
                received = self._control.receive()
            except OSError:
                received = None
            if received is None:
                os._exit(0)
            message = received[0]
            action: Callable[[dict[str, Any]], None] = {
                "load": self._load,
                "unload": self._unload,
                "compiled": self._compiled,
                "counters": self._report_counters,
                "plan": self._plan,
            }[message["do"]]
            try:
                action(message)
            except OSError:  # the front is gone
                os._exit(0)
            except Exception:
                log.critical("what was asked cannot be done", exc_info=True)
                os._exit(1)

    def _tell(self, message: dict[str, Any]) -> None:
        with self._sending:
            self._control.send(message)

    def _load(self, message: dict[str, Any]) -> None:
        """In a thread of its own: loading a model may itself wait for a compilation, whose answer comes
        here."""
        threading.Thread(target=self._load_model, args=(message,), daemon=True).start()

    def _load_model(self, message: dict[str, Any]) -> None:
        handle, start = message["handle"], time.perf_counter()
        if message["gently"]:
            lower_thread()
        try:
            source = ModelSource.from_json(message["source"])
            old = _old_code(source)
            if old:
                self._tell({"event": "failed", "handle": handle, "error": old, "why": "old code"})
                return
            unpadded = self._serve_or_refuse(handle, source, message)
        except CompilerError as error:
            failed = {"event": "failed", "handle": handle, "error": str(error)[:MESSAGE_KEPT]}
            self._tell({**failed, "why": "gone" if isinstance(error, ArtifactError) else ""})
            end_if_lost(self._device)
        except OF_USERS_CODE as error:
            log.error(
                "a model did not load", exc_info=True, extra={"fields": {"model": message["source"]["name"]}}
            )
            text = "".join(traceback.format_exception_only(error)).strip()
            self._tell({"event": "failed", "handle": handle, "error": text[:MESSAGE_KEPT], "why": ""})
            end_if_lost(self._device)
        else:
            self._tell(
                {
                    "event": "loaded",
                    "handle": handle,
                    "seconds": time.perf_counter() - start,
                    "unpadded": unpadded,
                    "available": self._available(),
                }
            )

    def _serve_or_refuse(self, handle: int, source: ModelSource, message: dict[str, Any]) -> str:
        """Load a model and try it, so that it takes jobs; why requests are better not padded, "" where they
        may be. One that serves elsewhere, and is of files that are others by now, is refused here, job by
        job, as all others can be served."""
        if message["refused"]:
            self._refused[handle] = message["refused"]
            return ""
        another = self._another_code(handle, source, message["code"])
        if another and not message["serves"]:
            raise ChangedCode(another)
        try:
            model = self._load_backend(
                source,
                message["artifact"],
                self._store,
                device=self._device,
                request_compile=lambda specialised: self._request_compile(handle, specialised),
            )
            unpadded = ""
            if not another:  # what it serves was tried when there was its code to compare with
                probe(model, source, message["probes"])
                unpadded = self._check_padding(model, source, message["padding"])
        except ChangedCode as error:
            if not message["serves"]:
                raise
            self._refused[handle] = error.message
            return ""
        self._models[handle] = model
        return unpadded

    def _another_code(self, handle: int, source: ModelSource, compiled: Mapping[str, str]) -> str:
        """What to say where PyTorch would run other code than what was compiled, or read other files; else
        "". The kernels need none."""
        try:
            made_of.require_same(source, compiled)
        except ChangedCode as error:
            self._warn_of_change(handle, source.name, error.message)
            return error.message
        return ""

    def _warn_of_change(self, handle: int, name: str, why: str) -> None:
        """One line a model, whether its change is seen by a load or by a request that needs the code."""
        if handle not in self._changed:
            self._changed.add(handle)
            log.warning(
                "code or files have changed: what was compiled serves on, what needs them is refused",
                extra={"fields": {"model": name, "reason": why}},
            )

    def _check_padding(self, model: Any, source: ModelSource, described: dict[str, Any] | None) -> str:
        """Why requests are better not padded, "" where they may be."""
        if described is None:
            return ""
        try:
            check_padding(model, source, Padding.from_json(described))
        except PaddingError as error:
            return str(error)
        except OF_USERS_CODE as error:  # on rows that nobody asked for
            log.warning("padded rows fail", exc_info=True, extra={"fields": {"model": source.name}})
            end_if_lost(self._device)
            return f"padded rows fail with {type(error).__name__}: {error}"[:MESSAGE_KEPT]
        return ""

    def _unload(self, message: dict[str, Any]) -> None:
        self._models.pop(message["handle"], None)
        self._changed.discard(message["handle"])
        self._refused.pop(message["handle"], None)

    def _request_compile(self, handle: int, source: ModelSource) -> Future[str]:
        """Have the compile process build a rank-specialised source; the future gives its artifact's key."""
        future: Future[str] = Future()
        with self._sending:
            self._next_ticket += 1
            ticket = self._next_ticket
            self._tickets[ticket] = future
            self._control.send(
                {
                    "event": "compile",
                    "ticket": ticket,
                    "handle": handle,
                    "reason": "jit" if handle in self._models else "probe",
                    "source": source.to_json(),
                }
            )
        return future

    def _compiled(self, message: dict[str, Any]) -> None:
        future = self._tickets.pop(message["ticket"])
        if "error" in message:
            future.set_exception(CompilerError(message["error"], stage="compile process"))
        else:
            future.set_result(message["artifact"])

    def _plan(self, message: dict[str, Any]) -> None:
        """In a thread of its own: it waits for the model's running job."""
        threading.Thread(target=self._plan_model, args=(message,), daemon=True).start()

    def _plan_model(self, message: dict[str, Any]) -> None:
        told = {"event": "planned", "ticket": message["ticket"]}
        reply: dict[str, Any] = dict(told)
        try:
            if refused := self._refused.get(message["handle"]):
                raise ChangedCode(refused)
            with self._running:
                summary = self._models[message["handle"]].plan(message["shapes"])
        except ChangedCode as error:
            reply["changed"] = error.message
        except RequestError as error:
            reply["illegal"] = error.message
        except Exception as error:  # the compiler's or the model's fault, and no end of the worker
            log.error("a plan failed", exc_info=True, extra={"fields": {"model": message["handle"]}})
            reply["error"] = f"planning failed with {type(error).__name__}"
        else:
            if summary.would_compile and not self._compiles:  # it will ask, and be refused
                summary = replace(summary, would_compile=False, tier="eager")
            reply["plan"] = asdict(summary)
        try:
            self._tell(reply)
        except TypeError:  # a number that no message carries
            self._tell({**told, "illegal": "at these shapes it takes more bytes than can be addressed"})

    def _report_counters(self, _message: dict[str, Any]) -> None:
        models = {
            str(handle): {"counters": _numbers(model.counters), "ranks": _ranks(model)}
            for handle, model in list(self._models.items())
        }
        self._tell(
            {
                "event": "counters",
                "models": models,
                "slot_bytes": self._outputs.bytes,
                "device_bytes": self._device_bytes(),
            }
        )

    def _available(self) -> int | None:
        """Device memory that a run may take; None on the CPU, whose memory is not this process's to tell."""
        torch = sys.modules.get("torch")
        if self._device == "cpu" or torch is None:
            return None
        held = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return int(torch.cuda.mem_get_info()[0]) + held

    def _device_bytes(self) -> int:
        """Device memory this process's allocators hold; 0 on the CPU."""
        torch = sys.modules.get("torch")  # the backend's, where it has one
        if self._device == "cpu" or torch is None:
            return 0
        return int(torch.cuda.memory_reserved())


def _want_no_gradients() -> None:
    """For this thread once, where each run would ask PyTorch for it otherwise."""
    torch = sys.modules.get("torch")  # the backend's, where it has one
    if torch is not None:
        torch.set_grad_enabled(False)


def _imported(module: str, gently: bool) -> Any:
    """A module, loaded beside other workers' jobs in a thread that gives way: this one must not."""
    if not gently:
        return importlib.import_module(module)
    with ThreadPoolExecutor(1, initializer=lower_thread) as beside:
        return beside.submit(importlib.import_module, module).result()


def _old_code(source: ModelSource) -> str:
    """What to say where this process has loaded code that has changed since, of which it sees nothing; else
    ""."""
    try:
        stale = modules.changed(source.factory)
    except CompilerError:  # the file is gone
        return ""
    return (
        f"'{stale[0]}', in the folder of factory '{source.factory}', has changed since this worker "
        "loaded it, which sees no change"
        if stale
        else ""
    )


def _named(
    outputs: Mapping[str, numpy.ndarray], chosen: list[tuple[str, bool]], signature: Signature
) -> list[tuple[Tensor, bool]]:
    datatypes = {spec.name: BY_DTYPE[spec.dtype] for spec in signature.outputs}
    return [
        (Tensor(name, datatypes[name], outputs[name].shape, _bytes(outputs[name])), binary)
        for name, binary in chosen
    ]


def _bytes(array: numpy.ndarray) -> Buffer:
    return numpy.ascontiguousarray(array).data.cast("B") if array.size else b""


def _done(
    job: dict[str, Any], slot: Slot, new: list[Slot], outcome: Any, start: float, ran: float
) -> dict[str, Any]:
    """What every good reply says beside where its outputs are."""
    return {
        "batch": job["batch"],
        "slots": [slot.number],
        "new": [entry.number for entry in new],
        "tier": outcome.tier,
        "result": outcome.result,
        "seconds": ran - start,
        "output_seconds": time.perf_counter() - ran,
    }


def _failed(job: dict[str, Any], kind: str, message: str, **fields: Any) -> dict[str, Any]:
    return {
        "batch": job["batch"],
        "new": [],
        "error": {"kind": kind, "message": message[:MESSAGE_KEPT], **fields},
    }


def _index_fields(error: IndexRangeError) -> dict[str, Any]:
    return {
        "input": error.input,
        "position": [int(place) for place in error.position],
        "value": int(error.value),
        "low": int(error.low),
        "high": int(error.high),
    }


def _ranks(model: Any) -> list[dict[str, Any]]:
    """The ranks that a model of any rank is compiled for, each with its kernels."""
    return [
        {"ranks": ranks, "kernels": [kernel.name for kernel in report.kernels]}
        for ranks, report in sorted(model.loaded_ranks.items())
    ]


def _numbers(counters: Any) -> dict[str, int]:
    return {name: int(value) for name, value in vars(counters).items() if isinstance(value, int)}


def main() -> None:
    """`python -m dlcb.server.worker JOBS CONTROL`: two inherited sockets; the first control message holds the
    options, and brings the file of a `Begun`."""
    jobs, control = Channel.inherited(int(sys.argv[1])), Channel.inherited(int(sys.argv[2]))
    received = control.receive()
    if received is None:
        return
    options, (file,) = received
    logs.configure(options["log_level"], options["process"])
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # log to a terminal that stops who is not in its foreground
    import_beside(Path(options["folder"]))
    try:
        worker = Worker(jobs, control, Begun(file), options)
    except (CacheError, ImportError) as error:
        control.send({"event": "broken", "error": str(error)[:MESSAGE_KEPT]})
        return
    if not sys.warnoptions:  # what a model, or PyTorch in its name, says of its values is no line of our log
        for category in (UserWarning, FutureWarning, RuntimeWarning):
            warnings.simplefilter("ignore", category)
    control.send({"event": "started"})
    sys.setswitchinterval(SWITCH_SECONDS)
    threading.Thread(target=worker.control, name="control", daemon=True).start()
    worker.serve()


if __name__ == "__main__":
    main()
