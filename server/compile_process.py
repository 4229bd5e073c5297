"""The compile process: takes model sources, answers with artifact keys, and reports progress on the way. What
the kernel cache has is answered before anything is compiled. The front lowers its priority once workers
serve, and what it makes reaches them through the kernel cache alone.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any

from dlcb.compiler import (
    ChangedCode,
    CompilerError,
    DeclarationError,
    ModelSource,
    ToolchainError,
    made_of,
    modules,
)
from dlcb.kernel_cache import CacheError
from dlcb.server import logs
from dlcb.server.cache import open_described
from dlcb.server.channel import Channel
from dlcb.server.errors import OF_USERS_CODE
from dlcb.server.lost_device import end_if_lost
from dlcb.server.settings import import_beside

MESSAGE_KEPT = 4000
FIRST = {"jit": 0, "load": 1, "probe": 2}  # who waits with a request in hand comes first

log = logging.getLogger("dlcb.compile")


class CompileProcess:
    """One compilation at a time, in the main thread; a second thread reads what is asked next."""

    def __init__(self, channel: Channel, options: Mapping[str, Any]) -> None:
        self._channel = channel
        backend = importlib.import_module(options["backend"])
        self._find_backend, self._compile_backend = backend.find_model, backend.compile_model
        self._pin_backend = backend.pin_model
        # None is the compiler's default, this machine's CPU; a device's architecture is the compiler's to
        # find out.
        self._device = options["device"]
        self._options = None if options["device"] == "cpu" else backend.options_for(options["device"])
        if not options["compile"]:
            self._options = replace(self._options or backend.CompileOptions(), only_stored=True)
        self._store = open_described(options["cache"])
        # who asks, whether it was looked for in vain, its place among those, and what is asked
        self._asked: queue.PriorityQueue[tuple[int, bool, int, dict[str, Any]]] = queue.PriorityQueue()

    def listen(self) -> None:
        """Queue what the front asks; when it closes the socket, end at once: what is half built is not
        published."""
        count = 0
        while True:
            try:
                received = self._channel.receive()
            except OSError:
                received = None
            if received is None:
                os._exit(0)
            count += 1
            self._asked.put((FIRST[received[0]["reason"]], False, count, received[0]))

    def serve(self) -> None:
        while True:
            rank, missing, count, message = self._asked.get()
            self._channel.send({"number": message["number"], "begins": True})
            reply = self._answer(message, missing)
            if reply is None:  # first those that another process may load meanwhile
                self._asked.put((rank, True, count, message))
                continue
            self._channel.send(reply)
            if "error" in reply:
                end_if_lost(self._device)

    def _answer(self, message: dict[str, Any], missing: bool) -> dict[str, Any] | None:
        """What was compiled, or went wrong. What is not known to be `missing` is only looked for: None where
        it is."""
        number, start = message["number"], time.perf_counter()

        def progress(stage: str, fraction: float) -> None:
            self._channel.send({"number": number, "stage": stage, "fraction": fraction})

        try:
            source = ModelSource.from_json(message["source"])
            if said := made_of.rewritten(source, message["code"]):
                raise ChangedCode(said)
            if modules.changed(source.factory):
                return {"number": number, "stale": True}
            if missing:
                compilation = self._compile_backend(source, self._store, self._options, progress)
            else:
                compilation = self._find_backend(source, self._store, self._options)
            if compilation is None:
                return None
            made_of.require_agreement(source, message["code"], compilation.modules)
            self._pin(source, compilation.artifact_key)
        except ToolchainError as error:
            return {"number": number, "error": str(error)[:MESSAGE_KEPT], "kind": "toolchain"}
        except DeclarationError as error:
            kind = {"kind": "declaration", "key": error.key}
            return {"number": number, "error": str(error)[:MESSAGE_KEPT], **kind}
        except ChangedCode as error:
            return {"number": number, "error": str(error)[:MESSAGE_KEPT], "kind": "changed"}
        except CompilerError as error:
            return {"number": number, "error": str(error)[:MESSAGE_KEPT], "kind": "compiler"}
        except OF_USERS_CODE as error:
            log.error(
                "a compilation failed", exc_info=True, extra={"fields": {"model": message["source"]["name"]}}
            )
            text = "".join(traceback.format_exception_only(error)).strip()
            return {"number": number, "error": text[:MESSAGE_KEPT], "kind": "model"}
        return {
            "number": number,
            "artifact": compilation.artifact_key,
            "code": dict(compilation.modules),
            "folder": str(modules.folder_of(source.factory)) if source.factory else "",
            "signature": compilation.signature.to_json(),
            "report": plain(compilation.report),
            "seconds": time.perf_counter() - start,
        }

    def _pin(self, source: ModelSource, artifact_key: str) -> None:
        """The front unpins it when the model goes. Where the folder cannot be written, it serves unpinned."""
        try:
            self._pin_backend(source, artifact_key, self._store, self._options)
        except CacheError as error:
            log.warning("not pinned", extra={"fields": {"model": source.name, "error": str(error)}})


def plain(value: Any) -> Any:
    """A report as JSON: dataclasses to objects, tuples to lists, what JSON has no word for to text."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def main() -> None:
    """`python -m dlcb.server.compile_process CHANNEL`: an inherited socket whose first message holds the
    options."""
    channel = Channel.inherited(int(sys.argv[1]))
    received = channel.receive()
    if received is None:
        return
    options = received[0]
    logs.configure(options["log_level"], options["process"])
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # log to a terminal that stops who is not in its foreground
    import_beside(Path(options["folder"]))
    try:
        process = CompileProcess(channel, options)
    except (CacheError, ImportError) as error:
        channel.send({"event": "broken", "error": str(error)[:MESSAGE_KEPT]})
        return
    channel.send({"event": "started"})
    threading.Thread(target=process.listen, name="listen", daemon=True).start()
    process.serve()


if __name__ == "__main__":
    main()
