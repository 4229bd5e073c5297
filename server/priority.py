"""How the processes of a server give way to each other. Linux may share processors out by sessions first
(autogroup): each child has a session of its own, and nice values inside say nothing between two of them. Then
the session's own value does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

GENTLE = 10  # nice value of a thread that works beside jobs
# That of a session: a third of what another gets that wants the same processor. Less would serve jobs little
# better, and others' sessions, which are in this as well, would hold up a load for minutes.
GENTLE_SESSION = 5
PAUSE = 0.2  # seconds until the system takes another value, where it has taken one just before


def set_session(pid: int, nice: Callable[[], int | None]) -> None:
    """Give the session that this process leads a nice value, as soon as the system takes one: what `nice`
    says by then, None when there is nothing to set any more. Where there are no such values, or none is
    allowed, nothing happens. To be called in the event loop."""
    value = nice()
    if value is None:
        return
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(value), encoding="ascii")
    except BlockingIOError:
        asyncio.get_running_loop().call_later(PAUSE, set_session, pid, nice)
    except OSError:
        return
