"""A live server for a whole test session: the real processes, over models that compile at once
(`eager_model`)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

HERE = Path(__file__).parent
START_SECONDS = 170  # the first compilation of real models, on a busy machine


@dataclass
class LiveServer:
    """A started `dlcb serve` and what it has printed."""

    process: subprocess.Popen[str]
    cache: Path
    lines: list[str] = field(default_factory=list)
    url: str = ""
    reader: threading.Thread | None = None

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30)

    def stop(self) -> int:
        """Ask it to drain; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; its exit code."""
        code = self.process.wait(timeout=30)
        if self.reader is not None:
            self.reader.join()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.wait()


Start = Callable[..., LiveServer]


def resident(server: LiveServer) -> int:
    """Bytes of memory that the front and its children hold."""
    front = psutil.Process(server.process.pid)
    return sum(process.memory_info().rss for process in (front, *front.children(recursive=True)))


def start_server(config: Path, cache: Path, *options: str) -> LiveServer:
    """Start a server and wait for its "ready" line; an early end raises RuntimeError with what it printed."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(HERE)))),
        "DLCB_CACHE": str(cache),
        "PYTHONWARNINGS": "default",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "dlcb.server", "serve", "--config", str(config), *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    server = LiveServer(process, cache)
    ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                server.lines.append(line.rstrip())
                found = re.fullmatch(r"ready at (\S+)\s*", line)
                if found:
                    server.url = found[1]
                    ready.set()
        ready.set()

    server.reader = threading.Thread(target=read, daemon=True)
    server.reader.start()
    if not ready.wait(START_SECONDS) or not server.url:
        server.kill()
        raise RuntimeError("the server did not start:\n" + "\n".join(server.lines))
    return server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One server that all tests share; it must be as good as new after each."""
    live = start_server(HERE / "models.yaml", tmp_path_factory.mktemp("cache"))
    yield live
    assert live.stop() == 0, live.lines


@pytest.fixture
def client(server: LiveServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Start]:
    """Start servers of one's own, with text as configuration; what still runs at the end is killed."""
    started: list[LiveServer] = []

    def start(config: str | Path, *options: str, cache: Path = tmp_path / "cache") -> LiveServer:
        path = config if isinstance(config, Path) else tmp_path / "config.yaml"
        if isinstance(config, str):
            path.write_text(config)
        started.append(start_server(path, cache, *options))
        return started[-1]

    yield start
    for live in started:
        live.kill()
