"""A control socket between two of the server's processes: JSON messages with their boundaries kept, and files
beside them. Tensors never pass through it, and neither does anything that runs when it is read.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import orjson

MAX_PACKET = 96 << 10  # well under what the kernel lets one packet hold; longer messages go in a file
MAX_FILES = 16
_ANCILLARY_BYTES = socket.CMSG_SPACE((MAX_FILES + 1) * 4)
_IN_FILE = b"file"


class Channel:
    """One end. `send` may be called by one thread at a time, `receive` likewise."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = bytearray(MAX_PACKET)
        self._view = memoryview(self._buffer)

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        """Two connected ends: sequential packets, so that a message is one system call and needs no
        framing."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Channel(ours), Channel(theirs)

    @staticmethod
    def inherited(file: int) -> Channel:
        """The end that a parent process left open for this one."""
        return Channel(socket.socket(fileno=file))

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, blocking: bool) -> None:
        self._socket.setblocking(blocking)

    def send(self, message: dict[str, Any], files: list[int] | None = None) -> None:
        """OSError when the peer is gone; BlockingIOError when it does not read and this end does not
        block."""
        data = orjson.dumps(message)
        if len(data) > MAX_PACKET:
            self._send_long(data, files or [])
        elif files:
            socket.send_fds(self._socket, [data], files)
        else:
            self._socket.send(data)

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """The next message and its files; None when the peer has closed. BlockingIOError when none waits."""
        size, ancillary, _flags, _address = self._socket.recvmsg_into([self._buffer], _ANCILLARY_BYTES)
        if not size:
            return None
        files = _files(ancillary) if ancillary else []
        if size == len(_IN_FILE) and self._view[:size] == _IN_FILE:
            with open(files.pop(0), "rb") as file:
                return orjson.loads(file.read()), files
        return orjson.loads(self._view[:size]), files

    def close(self) -> None:
        self._socket.close()

    def _send_long(self, data: bytes, files: list[int]) -> None:
        with open(os.memfd_create("dlcb-message", os.MFD_CLOEXEC), "wb+") as file:
            file.write(data)
            file.flush()
            file.seek(0)  # the peer's descriptor shares this position
            socket.send_fds(self._socket, [_IN_FILE], [file.fileno(), *files])


def _files(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    files: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % 4
            files += [int.from_bytes(data[at : at + 4], "little", signed=True) for at in range(0, whole, 4)]
    return files
