"""Starts `dlcb serve` (or any server) as a process of its own, waits until it answers, and stops it again."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HOST = "127.0.0.1"
READY = "/v2/health/ready"


class LaunchError(RuntimeError):
    """The server did not become ready."""


@contextmanager
def server(config: Path, *, log: Path | None = None, ready_within: float = 600.0) -> Iterator[int]:
    """Serves `config` on a free port of the loopback interface; gives the port once every model is ready."""
    port = free_port()
    with process(serve_command(config, port), port, READY, log, ready_within):
        yield port


def serve_command(config: Path, port: int) -> list[str]:
    """How our own server is started on the loopback interface."""
    command = [sys.executable, "-m", "dlcb.server", "serve", "--config", str(config)]
    return [*command, "--host", HOST, "--port", str(port)]


@contextmanager
def process(
    command: list[str],
    port: int,
    ready_path: str,
    log: Path | None = None,
    ready_within: float = 60.0,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `command` until the block ends; enters the block when GET `ready_path` answers 200. `environment`
    is added to this process's own."""
    output = log.open("wb") if log else None
    started = subprocess.Popen(
        command,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
        env={**os.environ, **(environment or {})},
    )
    try:
        _wait(started, f"http://{HOST}:{port}{ready_path}", ready_within, log)
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        if output:
            output.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _wait(started: subprocess.Popen[bytes], url: str, seconds: float, log: Path | None) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (code := started.poll()) is not None:
            raise LaunchError(f"the server ended with exit code {code} before it was ready{_tail(log)}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    raise LaunchError(f"{url} did not answer 200 within {seconds:.0f} s{_tail(log)}")


def _tail(log: Path | None) -> str:
    if log is None:
        return ""
    return ":" + os.linesep + log.read_text("utf-8", "replace")[-2000:]
