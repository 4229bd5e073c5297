"""Who takes part in the race: our own server, a bare ASGI application, and the peers, each started as a
process of its own that serves the same models with the same weights.

The peers run in an environment of their own (their packages ask for other versions than ours do); what each
is and how it is spoken to is a row of `CONTESTANTS`.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from dlcb.loadtest import launch
from dlcb.loadtest.wire import Encoding, decode, encode

CONFIG = Path(__file__).with_name("race.yaml")
SCRIPTS = Path(__file__).with_name("peers")


@dataclass(frozen=True)
class Contestant:
    """`script` lies in `peers`, and none is our own server. `binary` says how it takes binary tensors: in the
    protocol's words, as the bare bytes of one tensor, or not at all."""

    name: str
    script: str = ""
    ready: str = launch.READY
    binary: str = "protocol"
    peer: bool = True

    def takes(self, encoding: Encoding) -> bool:
        return encoding == "json" or bool(self.binary)

    def request(self, model: str, x: np.ndarray, encoding: Encoding) -> tuple[str, dict[str, str], bytes]:
        """Path, headers and body that ask `model` for its output at `x` [1, width]."""
        if encoding == "binary" and self.binary == "bytes":
            return f"/{model}/bytes", {"Content-Type": "application/octet-stream"}, x.tobytes()
        return f"/v2/models/{model}/infer", *encode({"x": x}, encoding)

    def output(self, headers: Mapping[str, str], body: bytes, encoding: Encoding) -> np.ndarray:
        """The row in an answer. WireError where the protocol does not allow the answer."""
        if encoding == "binary" and self.binary == "bytes":
            return np.frombuffer(body, np.float32)
        (output,) = decode(headers, body).values()
        return output.ravel()

    @contextmanager
    def serving(self, python: Path, weights: Path) -> Iterator["Running"]:
        """Started, and stopped when the block ends. LaunchError when it does not answer."""
        port = launch.free_port()
        command = [str(python), str(SCRIPTS / self.script), str(port), str(weights)]
        if not self.script:
            command = launch.serve_command(CONFIG, port)
        log = weights.with_name(f"{self.name}.log")
        # One row is no work for two threads, and idle ones spin.
        threads = {"OPENBLAS_NUM_THREADS": "1"} if self.script else {}
        with launch.process(command, port, self.ready, log, environment=threads) as process:
            running = Running(self, port, psutil.Process(process.pid))
            try:
                yield running
            finally:
                running.end_children()


@dataclass(frozen=True)
class Running:
    """A contestant that has started."""

    contestant: Contestant
    port: int
    process: psutil.Process

    def processes(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Lets it run while the block does; outside of its turn it is stopped, since some poll when idle."""
        for one in self.processes():
            one.resume()
        yield
        self.stop()

    def stop(self) -> None:
        for one in self.processes():
            one.suspend()

    def end_children(self) -> None:
        """Some leave theirs behind when told to end."""
        children = self.process.children(recursive=True)
        for one in (self.process, *children):
            one.resume()
        if self.contestant.peer:
            for one in children:
                with suppress(psutil.NoSuchProcess):
                    one.kill()

    def cpu_seconds(self) -> float:
        """What all of its processes have used so far, in user and kernel mode."""
        times = [one.cpu_times() for one in self.processes()]
        return sum(one.user + one.system for one in times)


CONTESTANTS = (
    Contestant("raw-asgi", "raw_asgi.py", ready="/", peer=False),
    Contestant("dlcb", peer=False),
    Contestant("triton", "triton_server.py"),
    Contestant("mosec", "mosec_server.py", ready="/", binary="bytes"),
    Contestant("litserve", "litserve_server.py", ready="/health", binary=""),
)


def write_weights(file: Path) -> list[np.ndarray]:
    """The perceptron's weights as the peers read them: of each layer the matrix, to be multiplied from the
    right, and the bias."""
    models = importlib.import_module("dlcb.loadtest.models")  # brings PyTorch, which takes seconds
    values = models.perceptron([128, 256, 128]).state_dict().values()
    weights = [np.ascontiguousarray(value.numpy().T) for value in values]
    np.savez(file, *weights)
    return weights


def expected(model: str, x: np.ndarray, weights: Sequence[np.ndarray]) -> np.ndarray:
    """The output's row, in float64."""
    row = x[0].astype(np.float64)
    if model == "perceptron":
        first, first_bias, second, second_bias = (value.astype(np.float64) for value in weights)
        return np.maximum(row @ first + first_bias, 0) @ second + second_bias
    return row if model == "identity" else row.mean(keepdims=True)
