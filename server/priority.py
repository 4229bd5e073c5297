"""How the processes of a server give way to each other: who serves jobs has the usual priority, a thread that
loads beside them a low one, who compiles beside them idle priority where cores are few.

Priorities say something only among processes of one group. Linux may share processors out by sessions first
(autogroup); then a process that wakes takes a core from another session's only once that one has had its
slice, and this is looked at every tick: up to 4 ms at each of the hand-overs of a request, whatever the
priorities. Within a session who is at idle priority gives way at once. So no child of the front has a session
of its own.
"""

import contextlib
import os

GENTLE = 10  # nice value
SMALL_MACHINE = 4  # cores


def lower_compiler(pid: int) -> None:
    """The process's main thread and the compilers it starts give way, on a small machine to everything."""
    with contextlib.suppress(OSError):  # it may be gone, or a container may forbid it
        os.setpriority(os.PRIO_PROCESS, pid, GENTLE)
        if (os.cpu_count() or 1) <= SMALL_MACHINE:
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


def lower_thread() -> None:
    """From now on this thread alone gives way: it loads PyTorch or a model beside jobs. Not to everything:
    what holds the interpreter must get on."""
    with contextlib.suppress(OSError):
        os.nice(GENTLE)
