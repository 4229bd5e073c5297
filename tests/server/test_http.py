"""Inference over connections as clients really use them: split and pipelined requests, bodies in chunks,
Expect, HTTP/1.0, early closes. What goes the short way and what does not must not be told apart."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import struct
import subprocess
import time
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from .conftest import LiveServer, Start
from .eager_model import gate_of
from .test_lifecycle import until

SMALL = """
server: {host: 127.0.0.1, port: 0, spares: 0, backend: eager_model, limits: {inflight_bytes: 1000000}}
models:
  - name: identity
    factory: eager_model:identity
    inputs: [{name: x, datatype: FP32, shape: [batch, width]}]
    outputs: [y]
"""
Answer = tuple[int, dict[str, str], bytes]


class Connection:
    """A raw connection: bytes out, whole responses in."""

    def __init__(self, server: LiveServer) -> None:
        url = httpx.URL(server.url)
        self.socket = socket.create_connection((url.host, url.port), timeout=20)
        self._file = self.socket.makefile("rb")

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.socket.sendall(part)

    def response(self) -> Answer:
        status = int(self._file.readline().split()[1])
        headers: dict[str, str] = {}
        while (line := self._file.readline().strip()) != b"":
            name, _colon, text = line.decode().partition(":")
            headers[name.lower()] = text.strip()
        return status, headers, self._file.read(int(headers.get("content-length", "0")))

    def ended(self) -> bool:
        return self._file.read(1) == b""

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@pytest.fixture
def connection(server: LiveServer) -> Iterator[Connection]:
    with closing(Connection(server)) as connection:
        yield connection


def body(*values: float) -> bytes:
    entry = {"name": "x", "shape": [1, len(values)], "datatype": "FP32", "data": values}
    return json.dumps({"inputs": [entry]}).encode()


def request(
    data: bytes, *headers: bytes, model: str = "identity", version: bytes = b"1.1", length: bool = True
) -> bytes:
    lines = [b"POST /v2/models/%b/infer HTTP/%b" % (model.encode(), version), b"host: here", *headers]
    if length:
        lines.append(b"content-length: %d" % len(data))
    return b"\r\n".join([*lines, b"", data])


def data_of(answer: Answer) -> list[float]:
    status, headers, content = answer
    assert status == 200, content
    assert headers["content-type"] == "application/json"
    return list(json.loads(content)["outputs"][0]["data"])


def test_a_connection_serves_one_request_after_the_other(connection: Connection) -> None:
    for number in range(5):
        connection.send(request(body(number)))
        assert data_of(connection.response()) == [number]


def test_a_head_that_comes_again_is_taken_as_before_and_its_body_anew(connection: Connection) -> None:
    """Every request has one head, byte for byte: whole, in pieces, two at once, with a body that starts as a
    head ends, and one that is no JSON."""
    space = b"\r\n" * 3
    connection.send(request(space + body(0)))
    assert data_of(connection.response()) == [0]
    for number in range(1, 4):
        connection.send(request(space + body(number)))
        assert data_of(connection.response()) == [number]
    one, two = request(space + body(4)), request(space + body(5))
    connection.send(one[:-9])
    time.sleep(0.05)  # so that the rest is read by itself
    connection.send(one[-9:])
    assert data_of(connection.response()) == [4]
    connection.send(two + one)
    assert [data_of(connection.response()) for _ in range(2)] == [[5], [4]]
    connection.send(b"\r\n" + two)
    assert data_of(connection.response()) == [5]
    connection.send(two[: -len(body(5))] + b"{" * len(body(5)))
    assert connection.response()[0] == 400
    connection.send(two)
    assert data_of(connection.response()) == [5]


def test_a_request_may_come_byte_by_byte(connection: Connection) -> None:
    whole = request(body(1, 2))
    connection.send(*(whole[at : at + 1] for at in range(len(whole))))
    assert data_of(connection.response()) == [1, 2]


def test_a_large_body_in_pieces_with_the_next_request_behind_it(connection: Connection) -> None:
    """Its head alone, with its beginning, or twice at once: what follows the body is read as what it is."""
    values = list(range(20_000))
    large, small = request(body(*values)), request(body(3))
    assert len(large) > 100_000
    head = len(large) - len(body(*values))
    for cuts in ((head,), (head + 1000, 90_000), (90_000,)):
        for start, end in pairwise((0, *cuts, len(large))):
            connection.send(large[start:end] + (small if end == len(large) else b""))
            time.sleep(0.05)  # so that each piece is read by itself
        assert data_of(connection.response()) == values
        assert data_of(connection.response()) == [3]
    connection.send(large + large)
    assert [data_of(connection.response()) for _ in range(2)] == [values, values]


def test_a_client_that_leaves_within_a_large_body_harms_nobody(
    server: LiveServer, connection: Connection
) -> None:
    large = request(body(*range(40_000)))
    with closing(Connection(server)) as leaver, server.client() as client:
        leaver.send(large[:100_000])
        until(lambda: "dlcb_inflight_bytes 0.0" not in client.get("/metrics").text)
        leaver.close()
        until(lambda: "dlcb_inflight_bytes 0.0" in client.get("/metrics").text)
    connection.send(request(body(2)))
    assert data_of(connection.response()) == [2]


def test_an_answer_that_is_read_late_is_the_one_that_was_given(server: LiveServer) -> None:
    """More than the kernel takes at once; meanwhile its place in shared memory holds another's."""
    first, second = (array("f", [number]) * 3_000_000 for number in (1, 2))
    raw = b"inference-header-content-length: 0"
    with closing(Connection(server)) as late, closing(Connection(server)) as early:
        late.send(request(first.tobytes(), raw))
        for _ in range(3):
            early.send(request(second.tobytes(), raw))
            _status, headers, content = early.response()
            assert content[int(headers["inference-header-content-length"]) :] == second.tobytes()
        status, headers, content = late.response()
    assert status == 200
    assert content[int(headers["inference-header-content-length"]) :] == first.tobytes()


def test_pipelined_requests_are_answered_in_order(connection: Connection) -> None:
    """The first takes longest; between them goes one that is no inference."""
    other = b"GET /v2/health/live HTTP/1.1\r\nhost: here\r\n\r\n"
    connection.send(
        request(body(60), model="sleepy") + request(body(2)) + other + request(body(3)) + request(b"{")
    )
    assert data_of(connection.response()) == [60]
    assert data_of(connection.response()) == [2]
    assert json.loads(connection.response()[2]) == {"live": True}
    assert data_of(connection.response()) == [3]
    assert connection.response()[0] == 400


def test_clients_that_break_off_what_they_have_pipelined_leave_no_errors_in_the_log(
    server: LiveServer, connection: Connection
) -> None:
    at_once = struct.pack("ii", 1, 0)  # what has been sent is reset
    for number in range(100):
        leaving = Connection(server)
        leaving.send(request(body(number)) * 5)
        time.sleep(number * 1e-4)
        leaving.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        leaving.close()
    connection.send(request(body(3)))
    assert data_of(connection.response()) == [3]
    assert not [line for line in server.lines if "Exception in ASGI" in line]


def test_a_chunked_body(connection: Connection) -> None:
    data = body(5, 6)
    chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:7], data[7:30], data[30:])]
    connection.send(request(b"", b"transfer-encoding: chunked", length=False), *chunks, b"0\r\n\r\n")
    assert data_of(connection.response()) == [5, 6]


def test_expect_is_answered_before_the_body_comes(connection: Connection) -> None:
    data = body(7)
    head = request(data, b"expect: 100-continue")
    connection.send(head[: -len(data)])
    assert connection.response()[0] == 100
    connection.send(data)
    assert data_of(connection.response()) == [7]


def test_expect_is_refused_when_the_request_is(connection: Connection) -> None:
    data = body(7)
    connection.send(request(data, b"expect: 100-continue", model="nobody")[: -len(data)])
    assert connection.response()[0] == 404


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_client_that_wants_it_closed(connection: Connection, version: bytes) -> None:
    connection.send(request(body(8), b"connection: close", version=version))
    assert data_of(connection.response()) == [8]
    assert connection.ended()


def test_errors_leave_the_connection_usable(connection: Connection) -> None:
    for wrong, status in (
        (request(b"{"), 400),
        (request(body(1), model="nobody"), 404),
        (request(body(1), b"inference-header-content-length: x"), 400),
    ):
        connection.send(wrong)
        got, headers, content = connection.response()
        assert got == status and list(json.loads(content)) == ["error"]
        assert headers["content-type"] == "application/json"
        connection.send(request(body(9)))
        assert data_of(connection.response()) == [9]


def test_too_large_a_body_is_refused_from_its_length(connection: Connection) -> None:
    connection.send(request(b"", b"content-length: 99999999999", length=False))
    assert connection.response()[0] == 413


def test_too_large_a_body_is_refused_while_it_comes(server: LiveServer) -> None:
    chunk = b"%x\r\n%b\r\n" % (1 << 20, b" " * (1 << 20))
    with closing(Connection(server)) as connection:
        connection.send(request(b"", b"transfer-encoding: chunked", length=False))
        try:
            connection.send(*[chunk] * 66)
        except OSError:
            pass  # refused, and closed while we still sent
        else:
            assert connection.response()[0] == 413


WAYS = {  # headers that send a request the short way or uvicorn's, and how many numbers it holds
    "short": ((), 128),
    "uvicorn": ((b"content-encoding: identity",), 128),
    "short, large": ((), 40_000),
    "uvicorn, large": ((b"content-encoding: identity",), 40_000),
    "HTTP/1.0": ((), 128),
}


@contextmanager
def worker_busy(server: LiveServer, number: int) -> Iterator[None]:
    """The server's only worker runs a request from when the block begins until it ends."""
    gate = gate_of(server.process.pid, number)
    begun = Path(f"{gate}.begun")
    with closing(Connection(server)) as busy:
        try:
            busy.send(request(body(number), model="gated"))
            until(begun.exists)
            yield
        finally:
            gate.touch()
        assert data_of(busy.response()) == [number]
    gate.unlink()
    begun.unlink()


def final(connection: Connection) -> Answer:
    """The next response that is no interim one."""
    while (answer := connection.response())[0] == 100:
        pass
    return answer


@pytest.mark.parametrize("seconds", [0.0, 0.3])
@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_has_ended_its_side_gets_its_answer(
    server: LiveServer, way: str, seconds: float
) -> None:
    headers, count = WAYS[way]
    version = b"1.0" if way == "HTTP/1.0" else b"1.1"
    with closing(Connection(server)) as client:
        with worker_busy(server, 101):
            client.send(request(body(*range(count)), *headers, version=version))
            client.socket.shutdown(socket.SHUT_WR)
            time.sleep(seconds)
        assert data_of(final(client)) == list(range(count))
        assert client.ended()


def test_a_client_that_has_ended_its_side_gets_all_that_it_asked_for(connection: Connection) -> None:
    connection.send(request(body(60), model="sleepy") + request(body(2)) + request(body(3)))
    connection.socket.shutdown(socket.SHUT_WR)
    assert [data_of(final(connection)) for _ in range(3)] == [[60], [2], [3]]
    assert connection.ended()


@pytest.mark.parametrize("body_sent", [0, 10])
def test_a_client_that_has_ended_its_side_too_early_is_let_go(connection: Connection, body_sent: int) -> None:
    whole = request(body(2))
    connection.send(whole[: len(whole) - len(body(2)) + body_sent])
    connection.socket.shutdown(socket.SHUT_WR)
    assert connection.ended()


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("way", [way for way in WAYS if way != "HTTP/1.0"])
def test_V3_a_client_that_leaves_takes_its_waiting_request_along(
    server: LiveServer, way: str, reset: bool
) -> None:
    def dropped(client: httpx.Client) -> float:
        lines = client.get("/metrics").text.splitlines()
        start = 'dlcb_dropped_requests_total{cause="disconnect",model="identity"} '
        return next((float(line.removeprefix(start)) for line in lines if line.startswith(start)), 0.0)

    headers, count = WAYS[way]
    with server.client() as client:
        before = dropped(client)
        with worker_busy(server, 102):
            leaver = Connection(server)
            leaver.send(request(body(*[0.5] * count), *headers))
            until(lambda: 'dlcb_queue_depth{model="identity"} 1.0' in client.get("/metrics").text)
            if reset:
                leaver.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            leaver.close()
            until(lambda: dropped(client) == before + 1)


def test_half_a_request_harms_nobody(server: LiveServer, connection: Connection) -> None:
    for cut in (10, 60, 90):
        half = Connection(server)
        half.send(request(body(1))[:cut])
        half.close()
    connection.send(request(body(2)))
    assert data_of(connection.response()) == [2]


def test_bytes_that_are_no_http_get_an_error_in_words(connection: Connection) -> None:
    connection.send(b"\x16\x03\x01 what is this\r\n\r\n")
    status, headers, content = connection.response()
    assert status == 400 and headers["content-type"] == "application/json"
    assert json.loads(content) == {"error": "the request is not HTTP"}
    assert connection.ended()


def test_a_model_may_come_anew_or_go_while_a_body_is_on_its_way(
    server: LiveServer, client: httpx.Client
) -> None:
    path, admin = "/v2/repository/models/spare", {"X-API-Key": "admin-key"}
    assert client.post(f"{path}/load", headers=admin).status_code == 200
    whole = request(body(5), model="spare")
    head = whole.index(b"\r\n\r\n") + 4
    for change, status in (("load", 200), ("unload", 503)):
        with closing(Connection(server)) as connection:
            connection.send(whole[:head])
            time.sleep(0.05)  # so that the head is read by itself
            assert client.post(f"{path}/{change}", headers=admin).status_code == 200
            connection.send(whole[head:])
            assert connection.response()[0] == status


def test_headers_without_end_are_refused(connection: Connection) -> None:
    connection.send(b"GET /v2 HTTP/1.1\r\nHost: x\r\nX: ")
    time.sleep(0.05)  # so that the rest is read by itself
    connection.send(b"x" * 100_000)
    status, _headers, answer = connection.response()
    assert status == 431 and b"too large" in answer


def test_garbage_behind_a_request_that_runs_ends_only_its_connection(server: LiveServer) -> None:
    with closing(Connection(server)) as first, closing(Connection(server)) as second:
        first.send(request(body(100), model="sleepy"))
        time.sleep(0.03)
        first.send(b"\x00\x01 no request\r\n\r\n")
        assert first.response()[0] == 400
        assert first.ended()
        second.send(request(body(4), model="sleepy"))
        assert data_of(second.response()) == [4]


@pytest.mark.parametrize("headers", [(), (b"transfer-encoding: chunked",)], ids=["length", "chunked"])
def test_what_has_come_of_a_body_counts_as_in_flight(launch: Start, headers: tuple[bytes, ...]) -> None:
    """Of 1,000,000 bytes one client holds 600,000 with half a request: another's 600,000 are too many until
    it leaves."""
    server = launch(SMALL)
    data = body(*[0.25] * 100_000)
    assert 590_000 < len(data) < 610_000

    def sent(connection: Connection, share: float) -> None:
        cut = int(share * len(data))
        if headers:
            connection.send(request(b"", *headers, length=False), b"%x\r\n" % cut, data[:cut], b"\r\n")
        else:
            connection.send(request(data)[: -len(data)], data[:cut])

    def in_flight(client: httpx.Client) -> float:
        lines = client.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("dlcb_inflight_bytes "))

    with server.client() as client, closing(Connection(server)) as second:
        with closing(Connection(server)) as first:
            sent(first, 0.95)
            until(lambda: in_flight(client) > 500_000)
            sent(second, 0.9)
            status, fields, content = second.response()
            assert status == 429 and "retry-after" in fields and b"1000000" in content
        until(lambda: in_flight(client) == 0)
        answer = client.post("/v2/models/identity/infer", content=data)
        assert answer.status_code == 200
        assert in_flight(client) == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_large_and_small_bodies_over_tls(launch: Start, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", *curve, *name, *files], check=True, capture_output=True)
    server = launch(SMALL.replace("spares: 0", f"spares: 0, tls_certificate: {certificate}, tls_key: {key}"))
    assert server.url.startswith("https://")
    with httpx.Client(base_url=server.url, verify=ssl.create_default_context(cafile=certificate)) as client:
        for count in (2, 30_000, 2):
            values = list(range(count))
            answer = client.post("/v2/models/identity/infer", content=body(*values))
            assert answer.json()["outputs"][0]["data"] == values


def test_the_access_log_says_what_was_asked(launch: Start) -> None:
    live = launch(SMALL.replace("spares: 0", "spares: 0, grace_seconds: 0, access_log_every: 2"))
    request = {
        "id": "mine",
        "inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}],
    }
    with live.client() as client:
        codes = [client.post("/v2/models/identity/infer", json=request).status_code for _ in range(3)]
        codes.append(client.post("/v2/models/nobody/infer", json=request).status_code)
    assert codes == [200, 200, 200, 404] and live.stop() == 0
    lines = [json.loads(line) for line in live.lines if '"dlcb.access"' in line]
    served, refused = lines
    assert (served["model"], served["status"], served["number"]) == ("identity", 200, 2)
    assert served["id"] == "mine" and served["shapes"] == {"x": [1, 3]} and 0 < served["seconds"] < 30
    assert (refused["model"], refused["status"], refused["number"]) == ("nobody", 404, 4)
