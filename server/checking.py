"""What `dlcb check` does: everything that a start does, but for opening the door. So it says of a file what a
start would say, in the same words and with the same exit codes, and that of every model that would not load
instead of the first."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import uvloop

from dlcb.kernel_cache import CacheError, LayeredStore, ls
from dlcb.server.cache import describe, open_described
from dlcb.server.errors import ServerError
from dlcb.server.exit_codes import BAD_CACHE, DONE
from dlcb.server.screen import Terminal
from dlcb.server.serve import Front, StoppedError, door_config
from dlcb.server.settings import Settings


def check(settings: Settings, screen: Terminal, log_level: str = "INFO") -> int:
    """Compile, load and probe what `settings` wants loaded, in one worker, and let go of it again; the exit
    code of a start, 0 where it would serve."""
    try:
        store = open_described(describe(settings.cache))
        held = _owners(store)
    except CacheError as error:
        screen.failed(f"the kernel cache cannot be used: {error}")
        return BAD_CACHE
    server = settings.server.model_copy(update={"workers": 1, "spares": 0})
    settings = settings.model_copy(update={"server": server})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        failures = runner.run(_check(settings, store, screen, log_level, held))
    for failure in failures:
        screen.failed(str(failure))
    if not failures:
        count = sum(model.load for model in settings.models)
        screen.passed(f"{count} model{'s' if count != 1 else ''} would start")
    return failures[0].code if failures else DONE


async def _check(
    settings: Settings, store: LayeredStore, screen: Terminal, log_level: str, held: Collection[str]
) -> list[StoppedError]:
    """Why a start would end, one a model; none where it would serve."""
    front = Front(settings, store, log_level)
    try:
        door_config(front)
        found = await asyncio.gather(*front.loads(screen), return_exceptions=True)
    except StoppedError as error:
        return [error]
    finally:
        await front.supervisor.close()
        await front.registry.close(keep=held)
    failures = [front.stopped(error) for error in found if isinstance(error, ServerError)]
    unknown = [
        error for error in found if isinstance(error, BaseException) and not isinstance(error, ServerError)
    ]
    if unknown:
        raise unknown[0]
    return failures


def _owners(store: LayeredStore) -> frozenset[str]:
    """Who has pinned entries of the cache, as a server does that runs beside: what it holds stays."""
    return frozenset(owner for entry in ls(store) for owner in entry.pinned_by)
