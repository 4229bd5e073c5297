"""Kernels that other processes generate while the compiler's own, whose Python runs on one core, does what
cannot be shared out. What they do not make, for whatever reason, is generated here as without them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from pathlib import Path
from types import TracebackType

from dlcb.compiler.kgen.handover import from_bytes, to_bytes
from dlcb.compiler.kgen.helper import READY
from dlcb.compiler.kgen.shares import SECONDS, Made, accept, costs, missing, shares
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.passes.steps import Schedule

logger = logging.getLogger("dlcb.compiler.kgen")

ENOUGH_CORES = 6  # for the compiler's own threads, and some for these
_WORTH = 24  # pointwise groups, or what takes as long: less is made here sooner
_PATIENCE = 2 * SECONDS  # by the clock
_PACKAGE = str(Path(__file__).parents[3])  # where the package lies
# Numpy's threads would be forked, and are not needed. Of this process' path it gets none: models' folders may
# stand there, with files named as Python's own, which this process has loaded long since.
_START = """
import os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.append({package!a})
from dlcb.compiler.kgen.helper import main
main({descriptor})
"""


class KernelProcesses:
    """A process that forks others for kernels. It is started when a compilation begins, so that it has loaded
    what it needs when kernels are to be generated, and ends with the `with` block, or with this process."""

    def __init__(self) -> None:
        self._ready = self._failed = False
        self._channel, theirs = Pipe()
        start = _START.format(package=_PACKAGE, descriptor=theirs.fileno())
        command = [sys.executable, "-P", "-c", start]
        with theirs:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,  # its children are killed with it, and no terminal interrupts it
            )

    def __enter__(self) -> KernelProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def is_ready(self, seconds: float = 0.0) -> bool:
        """Whether the process has loaded what it needs, or has within so many seconds."""
        if not self._ready and self._channel.poll(seconds):
            self._ready = self._channel.recv_bytes() == READY
        return self._ready

    def generate(self, plan: Schedule, options: CompileOptions) -> bool:
        """Has the kernels of `plan` generated, for whoever asks for them here from now on. False where
        nothing came of it: there is too little to do, or the processes are not ready, or fail."""
        asked = missing(plan, options)
        if costs(plan, asked) < _WORTH or self._failed:
            return False
        try:
            return self.is_ready() and self._generated(plan, asked, options)
        except Exception as error:  # of pickle, of the processes, of the machine: nothing depends on them
            self._failed = True
            logger.warning("kernels are generated in one process: %s: %s", type(error).__name__, error)
            return False

    def _generated(self, plan: Schedule, asked: Mapping[int, Hashable], options: CompileOptions) -> bool:
        parts = shares(plan, asked)
        self._channel.send_bytes(to_bytes((plan, parts, options)))
        until = time.monotonic() + _PATIENCE
        made: list[Made] = []
        for _ in parts:
            if not self._channel.poll(max(until - time.monotonic(), 0)):
                raise TimeoutError(f"they took more than {_PATIENCE:g} s")
            answer = from_bytes(self._channel.recv_bytes())
            if not isinstance(answer, Made):
                raise ChildProcessError(answer)
            made.append(answer)
        return accept(made, asked, plan.graph.system)


@contextmanager
def kernel_processes(options: CompileOptions) -> Iterator[KernelProcesses | None]:
    """Processes for the kernels of one compilation; None where this one may use too few cores for it to
    pay."""
    if min(len(os.sched_getaffinity(0)), options.threads) < ENOUGH_CORES:
        yield None
        return
    try:
        started = KernelProcesses()
    except (OSError, ValueError) as error:
        logger.warning("kernels are generated in one process: no other could be started: %s", error)
        yield None
        return
    with started:
        yield started
