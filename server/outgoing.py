"""What the front tells a child that does not read just now, as one that is still importing PyTorch while a
hundred models wait for it: it is sent in its order once there is room, and the event loop waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from dlcb.server.channel import Channel


class Outgoing:
    """The sending side of a channel that does not block. Everything runs in the event loop's thread."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._waiting: deque[dict[str, Any]] = deque()

    def send(self, message: dict[str, Any]) -> None:
        """OSError when the peer is known to be gone; whoever reads from it finds out as well."""
        if not self._waiting:
            try:
                self._channel.send(message)
            except BlockingIOError:
                asyncio.get_running_loop().add_writer(self._channel.fileno(), self._send_waiting)
            else:
                return
        self._waiting.append(message)

    def close(self) -> None:
        """What waits is not sent any more; to be called before the channel is closed."""
        if self._waiting:
            self._waiting.clear()
            asyncio.get_running_loop().remove_writer(self._channel.fileno())

    def _send_waiting(self) -> None:
        while self._waiting:
            try:
                self._channel.send(self._waiting[0])
            except BlockingIOError:
                return
            except OSError:
                self.close()
                return
            self._waiting.popleft()
        asyncio.get_running_loop().remove_writer(self._channel.fileno())
