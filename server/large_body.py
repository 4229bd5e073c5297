"""A large body on its way from the socket to where it stays: this stands in for a connection's protocol while
the bytes come that a request's head announced, so that nothing parses or copies them on the way. What comes
after the body is not touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy

from dlcb.server.types import Buffer


class LargeBody(asyncio.BufferedProtocol):
    """Memory for `size` bytes, of which `begun` have come already. `grown` is told how many there are,
    `ended` gets them all; whatever else happens to the connection goes to its own protocol."""

    def __init__(
        self,
        connection: asyncio.Protocol,
        size: int,
        begun: Sequence[Buffer],
        grown: Callable[[int], None],
        ended: Callable[[memoryview], None],
    ) -> None:
        self._connection = connection
        self._grown = grown
        self._ended = ended
        self._view = numpy.empty(size, numpy.uint8).data  # not zeroed, as a bytearray would be
        self._filled = 0
        for part in begun:
            self._view[self._filled : self._filled + len(part)] = part
            self._filled += len(part)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self._grown(self._filled)
        if self._filled == len(self._view):
            self._ended(self._view)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)
