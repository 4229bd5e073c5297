"""Child processes of the front: how one is started, spoken to, and ended. `WorkerProcess` is the batcher's
lane to a worker; `CompileService` turns compile requests into futures and survives the death of its process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dlcb.compiler import (
    ChangedCode,
    CompilerError,
    DeclarationError,
    ModelSource,
    Signature,
    ToolchainError,
)
from dlcb.server.batcher import Job
from dlcb.server.cache import environment_of
from dlcb.server.channel import Channel
from dlcb.server.outgoing import Outgoing
from dlcb.server.priority import lower_compiler
from dlcb.server.slots import Begun, SlotMap
from dlcb.server.types import RawRequest

WORKER_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",  # idle threads do not spin
    # oneDNN's cache of primitives, and PyTorch's of what it prepared for oneDNN: of 1024 shapes each if let
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "LRU_CACHE_CAPACITY": "64",
    # Results of up to so many bytes lie in memory that is used again: fresh pages cost more than filling them
    # does. Saying it at all keeps glibc from raising it with what it meets.
    "MALLOC_MMAP_THRESHOLD_": str(8 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 20),
}

log = logging.getLogger("dlcb.supervisor")

# of a library's faults, most of them at sizes that are tried and that nobody asks for
_REMEDY = ": a library failed; if at sizes that are never asked for, say the model's `dims` as ranges"
_REMEDIES = dict.fromkeys(("SIGSEGV", "SIGFPE", "SIGABRT", "SIGBUS", "SIGILL"), _REMEDY)

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Compiled:
    """What the compile process answers for one source."""

    artifact_key: str
    signature: Signature
    report: dict[str, Any]
    seconds: float
    code: Mapping[str, str]  # digests of what of the user's it was made of; see `dlcb.compiler.made_of`
    folder: str  # the factory's; empty without one


class WorkerProcess:
    """One worker: its process, its two sockets, and the jobs it has been given and not answered."""

    def __init__(
        self, number: int, options: dict[str, Any], threads: int | None, gpu: int | None = None
    ) -> None:
        self.name = f"worker-{number}"
        self.gpu = gpu
        self.jobs: deque[Job] = deque()
        self.models: set[int] = set()
        self.device_bytes = 0
        self.available: int | None = None  # device memory that a run may take
        jobs, their_jobs = Channel.pair()
        control, their_control = Channel.pair()
        environment = WORKER_ENVIRONMENT | environment_of(options["cache"])
        if threads:
            environment["OMP_NUM_THREADS"] = str(threads)
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
        self.process = start("dlcb.server.worker", [their_jobs, their_control], environment)
        jobs.setblocking(False)
        control.setblocking(False)
        self.job_channel, self.control_channel = jobs, control
        self._told = Outgoing(control)
        self._begun = Begun.make()
        self._slots = SlotMap()
        self._known: set[int] = set()
        self._dropped: list[int] = []
        self._released: list[int] = []
        self.control_channel.send({**options, "process": self.name}, [self._begun.file])

    def start(self, job: Job) -> None:
        """Send a job; OSError when the worker is gone."""
        slot = job.slot
        new = slot.number not in self._known
        message = {
            "batch": job.number,
            "model": job.model.handle,
            "slot": slot.number,
            "new": [slot.number] if new else [],
            "drop": self._dropped,
            "free": self._released,
            "look": job.looked_for,
        }
        request = job.requests[0].request
        if isinstance(request, RawRequest):
            message |= {
                "body": len(request.body),
                "json_length": request.json_length,
                "age": time.perf_counter() - job.requests[0].arrived,
                "name": job.model.name,
                "version": job.model.version,
                "memory": job.model.memory,
            }
        else:
            message["inputs"] = [(entry.name, entry.array, entry.offset, entry.shape) for entry in job.placed]
        self.job_channel.send(message, [slot.file] if new else None)
        self._known.add(slot.number)
        if self._dropped:
            self._dropped = []
        if self._released:
            self._released = []

    def tell(self, message: dict[str, Any]) -> None:
        """Ask for something that is no job; OSError when the worker is gone."""
        self._told.send(message)

    def receive(self) -> dict[str, Any] | None:
        """The next reply, with its new slots mapped; None when the worker has closed."""
        received = self.job_channel.receive()
        if received is None:
            return None
        reply, files = received
        for number, file in zip(reply["new"], files, strict=True):
            self._slots.add(number, file)
        return reply

    def begun(self) -> int:
        """The number of the last job that the worker has begun, also when it has died since."""
        return self._begun.number

    def view(self, slot: int, offset: int, size: int) -> memoryview:
        return self._slots.view(slot)[offset : offset + size]

    def release(self, slots: list[int]) -> None:
        self._released += slots

    def forget(self, slot: int) -> None:
        if slot in self._known:
            self._known.discard(slot)
            self._dropped.append(slot)

    def close(self) -> None:
        """End the process now."""
        self.process.kill()
        self._told.close()
        self.job_channel.close()
        self.control_channel.close()
        self._begun.close()


class CompileService:
    """Compilations by a process that is started when first asked, and again when it dies under one."""

    def __init__(self, options: dict[str, Any], closing: Callable[[], bool]) -> None:
        self._options = options
        self._closing = closing
        self._asked: dict[int, tuple[dict[str, Any], asyncio.Future[Compiled], Progress | None]] = {}
        self._tried: dict[int, int] = {}
        self._begun: int | None = None  # what the process is at
        self._stage = ""  # of that
        self._next = 0
        self._yielding = False
        self._channel: Channel | None = None
        self._told: Outgoing | None = None  # by that channel
        self.process: subprocess.Popen[bytes] | None = None

    async def compile(
        self,
        source: ModelSource,
        reason: str,
        progress: Progress | None = None,
        code: Mapping[str, str] = MappingProxyType({}),
    ) -> Compiled:
        """CompilerError when the source does not compile (ToolchainError when no compiler was found,
        ChangedCode when it is made of other modules, or files, than `code`)."""
        if self._channel is None:
            self._start()
        self._next += 1
        message = {"number": self._next, "source": source.to_json(), "reason": reason, "code": dict(code)}
        future: asyncio.Future[Compiled] = asyncio.get_running_loop().create_future()
        self._asked[self._next] = (message, future, progress)
        self._tried[self._next] = 0
        self._send(message)
        return await future

    def give_way(self) -> None:
        """From now on compile at low priority: workers serve beside it. Before ready it has the machine to
        itself."""
        self._yielding = True
        if self.process is not None:
            lower_compiler(self.process.pid)

    def close(self) -> None:
        if self._channel is not None and self._told is not None:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._told.close()
            self._channel.close()
            self._channel = self._told = None
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _start(self) -> None:
        ours, theirs = Channel.pair()
        environment = WORKER_ENVIRONMENT | environment_of(self._options["cache"]) | {"OMP_NUM_THREADS": "1"}
        self.process = start("dlcb.server.compile_process", [theirs], environment)
        ours.setblocking(False)
        self._channel, self._told = ours, Outgoing(ours)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._readable)
        self._told.send({**self._options, "process": "compile"})
        if self._yielding:
            self.give_way()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            if self._told is not None:
                self._told.send(message)
        except OSError:
            log.warning("the compile process is gone")  # the reader finds out as well, and asks its successor

    def _readable(self) -> None:
        while self._channel is not None:
            try:
                received = self._channel.receive()
            except BlockingIOError:
                return
            except OSError:
                received = None
            if received is None:
                self._lost()
                return
            self._take(received[0])

    def _take(self, message: dict[str, Any]) -> None:
        if "number" not in message:
            if message["event"] == "broken":
                self._fail_all(CompilerError(message["error"], stage="compile process"))
            return
        if "stale" in message:
            self._start_anew()
            return
        if "begins" in message:
            self._begun, self._stage = message["number"], ""
            return
        request, future, progress = self._asked[message["number"]]
        if "stage" in message:
            self._stage = message["stage"]
            if progress is not None:
                progress(message["stage"], message["fraction"])
            return
        del self._asked[request["number"]]
        if future.done():
            return
        if "error" in message:
            if message["kind"] == "declaration":
                future.set_exception(DeclarationError(message["error"], key=message["key"]))
            else:
                kinds = {"toolchain": ToolchainError, "changed": ChangedCode}
                future.set_exception(kinds.get(message["kind"], CompilerError)(message["error"]))
            return
        compiled = Compiled(
            message["artifact"],
            Signature.from_json(message["signature"]),
            message["report"],
            message["seconds"],
            message["code"],
            message["folder"],
        )
        future.set_result(compiled)

    def _lost(self) -> None:
        """The process died: what it was asked is asked of a new one, what it was at once more at most."""
        code = self.process.wait() if self.process is not None else None
        self.close()
        if self._closing() or not self._asked:
            return
        log.error("the compile process died", extra={"fields": {"code": code}})
        at = [number for number in self._asked if self._begun in (None, number)]
        self._begun = None
        for number in at:
            self._tried[number] += 1
            if self._tried[number] > 1:
                _message, future, _progress = self._asked.pop(number)
                if not future.done():
                    future.set_exception(
                        CompilerError(f"the compile process died twice, last {self._how(code)}")
                    )
        if self._asked:
            self._start_anew()

    def _how(self, code: int | None) -> str:
        """How the process ended."""
        killed = signal.Signals(-code).name if code is not None and code < 0 else ""
        within = f" in stage '{self._stage}'" if self._stage else ""
        return (f"of {killed}" if killed else f"with code {code}") + within + _REMEDIES.get(killed, "")

    def _start_anew(self) -> None:
        """Ask a new process all that is not answered: the old one died, or has loaded code that is another
        by now."""
        self.close()
        self._start()
        for message, _future, _progress in list(self._asked.values()):
            self._send(message)

    def _fail_all(self, error: CompilerError) -> None:
        for _message, future, _progress in self._asked.values():
            if not future.done():
                future.set_exception(error)
        self._asked.clear()


def start(module: str, ends: list[Channel], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Run one of our modules in a fresh interpreter that inherits these ends of channels, which are closed
    here."""
    files = [end.fileno() for end in ends]
    process = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, files)],
        env={**os.environ, **environment},
        pass_fds=files,
        stdin=subprocess.DEVNULL,
        # A Ctrl-C at the terminal is for the front, which ends the others in order. In the front's session
        # still: `priority.py` says why.
        process_group=0,
    )
    for end in ends:
        end.close()
    return process
