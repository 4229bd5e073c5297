"""One server, from start to exit: opens the door, brings the models up, says ready, and on SIGTERM stops
being ready, serves for a grace period, answers what it accepted and ends. The exit codes are the promise: 0
drained, 1 failed, 2 unusable TLS files, 3 no compiler, 4 a cache folder that cannot be used.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Iterator, Mapping
from typing import Protocol

import uvicorn
import uvloop
from uvicorn.protocols.http import httptools_impl

from dlcb.compiler import DeclarationError, ToolchainError
from dlcb.kernel_cache import CacheError, LayeredStore, stat
from dlcb.server.app import Application
from dlcb.server.batcher import Batcher
from dlcb.server.cache import describe, open_described
from dlcb.server.dataplane import Dataplane
from dlcb.server.errors import ConfigError, ServerError
from dlcb.server.exit_codes import BAD_CACHE, BAD_CONFIG, DONE, FAILED, NO_COMPILER
from dlcb.server.metrics import Metrics
from dlcb.server.model import ServedModel
from dlcb.server.protocol import TensorProtocol
from dlcb.server.registry import LoadFailed, Registry
from dlcb.server.repository import Repository
from dlcb.server.settings import Model, Settings, device_of
from dlcb.server.supervisor import Supervisor

BACKLOG = 2048
READ_AHEAD = 4 << 20  # bytes of a body that uvicorn takes before it waits for us
COUNTERS_EVERY = 2.0  # seconds between looks at the workers' counters and the cache's statistics
CACHE_PAUSE = 100  # times as long as a look at the cache takes, until the next: a large one takes a while
START_STEP = 0.05  # seconds between looks at workers that come up
KEEP_ALIVE = 75  # seconds an idle connection stays open

log = logging.getLogger("dlcb.serve")


class Screen(Protocol):
    """Who is told what happens on the way to ready."""

    def progress(self, model: str, stage: str, fraction: float) -> None: ...

    def workers_started(self) -> None: ...

    def loaded(self, model: ServedModel) -> None: ...

    def left_out(self, model: str, line: str) -> None: ...

    def ready(self, url: str) -> None: ...

    def stopping(self, seconds: float) -> None: ...

    def failed(self, line: str) -> None: ...


class StoppedError(ServerError):
    """The server could not start; `code` is the process's exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class DoorServer(uvicorn.Server):
    """uvicorn with its signal handling left out: signals are this module's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Front:
    """The parts of one server, wired."""

    def __init__(self, settings: Settings, store: LayeredStore, log_level: str) -> None:
        self.settings = settings
        self.store = store
        self.metrics = Metrics()
        self.batcher = Batcher(self.metrics, settings.server.limits.inflight_bytes)
        self.supervisor = Supervisor(settings, self.batcher, self.metrics, device_of(settings), log_level)
        self.registry = Registry(Repository(settings), self.supervisor, self.batcher, self.metrics, store)
        self.dataplane = Dataplane(self.registry, self.batcher)
        self.accepting = True  # false from SIGTERM on
        self.started = False
        self.application = Application(self.dataplane, self.metrics, settings.server, self.is_ready)
        self.metrics.before_scrape.append(self._refresh)
        self._cache_statistics: Mapping[str, int] = {}

    def is_ready(self) -> bool:
        """Whether every wanted model takes requests and nobody has asked the server to stop."""
        return self.accepting and self.started and bool(self.batcher.lanes) and self.registry.all_ready()

    async def bring_up(self, screen: Screen) -> None:
        """Start the workers, and compile and load every wanted model. StoppedError when a worker fails, or a
        model that the server is not to go on without; all of them are that."""
        try:
            if self.settings.server.exit_on_error:
                await asyncio.gather(*self.loads(screen))
            else:
                await self._load_what_loads(screen)
        except ServerError as error:
            raise self.stopped(error) from error
        self.started = True
        self.supervisor.settle()

    def loads(self, screen: Screen) -> list[Awaitable[None]]:
        """What starts the workers, and what compiles, loads and probes each wanted model. Each ends in a
        ServerError where it fails."""
        workers = asyncio.ensure_future(self.supervisor.start())
        self.supervisor.when_started = workers
        workers.add_done_callback(lambda _: screen.workers_started())
        return [workers, *(self._load(entry, screen) for entry in self._wanted())]

    def _wanted(self) -> list[Model]:
        return [entry for entry in self.settings.models if entry.load]

    async def _load(self, entry: Model, screen: Screen) -> None:
        try:
            screen.loaded(await self.registry.load(entry, screen.progress))
        except LoadFailed as error:
            if isinstance(error.cause, DeclarationError):
                raise self.settings.at_key(entry, error.cause.key, str(error)) from error
            raise

    async def _load_what_loads(self, screen: Screen) -> None:
        """The same as `loads`, but for models that fail: they are left out, if there is another."""
        wanted = self._wanted()
        started, *found = await asyncio.gather(*self.loads(screen), return_exceptions=True)
        failed: list[tuple[Model, BaseException]] = []
        for entry, outcome in zip(wanted, found, strict=True):
            last = outcome
            if isinstance(outcome, LoadFailed) and isinstance(outcome.cause, ServerError):
                # its worker ended, perhaps under another model
                (last,) = await asyncio.gather(self._load(entry, screen), return_exceptions=True)
            if last is not None:
                failed.append((entry, last))
        for error in (started, *(outcome for _entry, outcome in failed)):
            if error is not None and (error is started or not isinstance(error, ServerError)):
                raise error
        if failed and len(failed) == len(wanted):
            raise failed[0][1]
        for entry, outcome in failed:
            self.registry.leave_out(entry)
            fields = {"model": entry.name, "version": entry.version, "error": str(outcome)}
            log.error("a model is left out", extra={"fields": fields})
            screen.left_out(entry.name, str(outcome))
        while not self.batcher.lanes:  # the last that failed has ended the worker
            await asyncio.sleep(START_STEP)

    def stopped(self, error: ServerError) -> StoppedError:
        """What ends a start that meets this error."""
        if isinstance(error, ConfigError):
            return StoppedError(str(error), BAD_CONFIG)
        lacks_compiler = isinstance(error, LoadFailed) and isinstance(error.cause, ToolchainError)
        return StoppedError(str(error), NO_COMPILER if lacks_compiler else FAILED)

    async def keep_counting(self) -> None:
        """Fetch what only others know, at intervals, so that a scrape never waits for a worker or a disk."""
        loop, due = asyncio.get_running_loop(), 0.0
        while True:
            self.supervisor.request_counters()
            await self.registry.look_for_changes()
            if loop.time() >= due:
                began = loop.time()
                await self._look_at_cache()
                due = loop.time() + CACHE_PAUSE * (loop.time() - began)
            await asyncio.sleep(COUNTERS_EVERY)

    async def _look_at_cache(self) -> None:
        try:
            found = await asyncio.to_thread(stat, self.store)
        except CacheError as error:
            log.warning("the cache's statistics are not to be had", extra={"fields": {"error": str(error)}})
        else:
            names = ("bytes", "entries", "hits", "misses", "evictions", "corrupt")
            self._cache_statistics = {name: getattr(found, name) for name in names}

    def _refresh(self) -> None:
        self.metrics.ready.cell().value = self.is_ready()
        for name, value in self._cache_statistics.items():
            family = getattr(self.metrics, f"cache_{name}")
            family.cell().value = value


def run(settings: Settings, screen: Screen, log_level: str = "INFO") -> int:
    """Serve until told to stop; the process's exit code."""
    try:
        store = open_described(describe(settings.cache))
    except CacheError as error:
        screen.failed(f"the kernel cache cannot be used: {error}")
        return BAD_CACHE
    tune_memory()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, store, screen, log_level))
    except StoppedError as error:
        screen.failed(str(error))
        return error.code


async def _serve(settings: Settings, store: LayeredStore, screen: Screen, log_level: str) -> int:
    listener = _listen(settings)
    front = Front(settings, store, log_level)
    try:
        server = DoorServer(door_config(front))
    except StoppedError:
        listener.close()
        raise
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    _on_signals(loop, front, stop)
    door = asyncio.ensure_future(server.serve(sockets=[listener]))
    counting: asyncio.Task[None] | None = None
    try:
        up = asyncio.ensure_future(front.bring_up(screen))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({up, stopping, door}, return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            await up
            screen.ready(_url(settings, listener))
            counting = asyncio.ensure_future(front.keep_counting())
            await asyncio.wait({stopping, door}, return_when=asyncio.FIRST_COMPLETED)
            screen.stopping(settings.server.grace_seconds)
            await asyncio.sleep(settings.server.grace_seconds)
        else:
            up.cancel()
        server.should_exit = True
        await door
        return DONE
    finally:
        server.should_exit = True
        if counting is not None:
            counting.cancel()
        await asyncio.gather(door, return_exceptions=True)
        await front.supervisor.close()
        await front.registry.close()


def door_config(front: Front) -> uvicorn.Config:
    """How HTTP comes in, with its files read. StoppedError where those of TLS are not what they should be."""
    server = front.settings.server
    config = uvicorn.Config(
        front.application,
        interface="asgi3",
        http=TensorProtocol.for_routes(front.application.tensors),
        proxy_headers=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(server.drain_seconds)),
        ssl_certfile=server.tls_certificate,
        ssl_keyfile=server.tls_key,
        ws="none",
    )
    httptools_impl.HIGH_WATER_LIMIT = (
        READ_AHEAD  # large bodies come in a few pieces: a third less time for them
    )
    try:
        config.load()
    except OSError as error:  # as an error of TLS is: certificate and key are not what they should be
        raise StoppedError(f"cannot serve https with the configured files: {error}", BAD_CONFIG) from error
    return config


def _on_signals(loop: asyncio.AbstractEventLoop, front: Front, stop: asyncio.Event) -> None:
    """The first signal begins the drain; the second ends the process and its children at once."""

    def handle(number: int) -> None:
        if not front.accepting:
            log.warning("ending at once")
            front.supervisor.kill()
            os._exit(128 + number)
        log.info("draining", extra={"fields": {"signal": signal.Signals(number).name}})
        front.accepting = False
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle, number)


def _listen(settings: Settings) -> socket.socket:
    host, port = settings.server.host, settings.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StoppedError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; --port takes another, 0 a free one",
            FAILED,
        ) from error
    listener.listen(BACKLOG)
    return listener


def _url(settings: Settings, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.server.tls_certificate else "http"
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{scheme}://{host}:{port}"


def tune_memory() -> None:
    """Let glibc keep freed memory of large bodies instead of giving it back each time: page faults cost more
    than the copying does. Elsewhere than on glibc nothing happens."""
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(mmap_threshold, 32 << 20)
        mallopt(trim_threshold, 64 << 20)
        mallopt(top_pad, 4 << 20)
