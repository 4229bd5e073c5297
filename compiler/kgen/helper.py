"""The process that has kernels generated beside the compiler. It loads what generates kernels, and nothing of
PyTorch or CUDA, so that it may fork: a schedule comes in, and for each share of it a child begins where
this process stands, makes its kernels and ends. Their bytes go out as they come."""

from __future__ import annotations

import gc
import multiprocessing
import resource
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait

from dlcb.compiler.kgen.handover import from_bytes, to_bytes
from dlcb.compiler.kgen.shares import SECONDS, generate_share
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.passes.steps import Schedule

READY = b"ready"
_CONTEXT = multiprocessing.get_context("fork")


def main(descriptor: int) -> None:
    """Serves the compiler at the other end of `descriptor` until it closes that, or ends."""
    channel = Connection(descriptor)
    gc.disable()
    try:
        channel.send_bytes(READY)
        while True:
            _answer(channel, *from_bytes(channel.recv_bytes()))
    except (EOFError, ConnectionError):
        return


def _answer(
    channel: Connection, plan: Schedule, parts: Sequence[Sequence[int]], options: CompileOptions
) -> None:
    """Sends for each of `parts` what it comes to: a `Made`, or an error's text."""
    gc.freeze()  # what is there stays where it is, and its memory is that of all children
    waiting: list[Connection] = []
    for part in parts:
        reader, writer = _CONTEXT.Pipe(duplex=False)
        _CONTEXT.Process(target=_work, args=(channel, writer, plan, part, options), daemon=True).start()
        writer.close()
        waiting.append(reader)
    while waiting:
        ready = wait([channel, *waiting])
        if channel in ready:  # nothing more is asked yet: the compiler is gone
            raise EOFError
        for reader in [reader for reader in waiting if reader in ready]:
            try:
                channel.send_bytes(reader.recv_bytes())
            except EOFError:
                channel.send_bytes(to_bytes("a process that generates kernels ended"))
            waiting.remove(reader)
            reader.close()


def _work(
    channel: Connection, writer: Connection, plan: Schedule, part: Sequence[int], options: CompileOptions
) -> None:
    channel.close()
    seconds = round(2 * SECONDS)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # whoever waits for it has ended by then
    try:
        made = to_bytes(generate_share(plan, part, options))
    except Exception as error:  # whatever it is, the compiler meets it again
        made = to_bytes(f"{type(error).__name__}: {error}")
    writer.send_bytes(made)
