"""The way that the user's code takes through a forward, instruction by instruction. On symbolic sizes and
fake tensors it has to be that of a forward on numbers and real tensors; then the conditions that were asked
say at which sizes it is taken. The identity of objects answers for one size alone, and leaves no condition:
where the user's code asks a size for it, that is told."""

from __future__ import annotations

import gc
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import _GeneratorContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, get_ident
from types import CodeType, FrameType, GeneratorType
from typing import Any, cast

import torch

from dlcb.compiler.bridge.bytecode import (
    Operands,
    catches,
    goes_on,
    identities,
    line_at,
    may_be_size,
    may_swallow,
    names_identity,
)
from dlcb.compiler.bridge.kinds import Tell, is_library

_TORCH = f"{Path(torch.__file__).parent}/"
# what runs the user's code for its own purposes, which differ where tensors are fake
_ASIDE = (
    *(f"{_TORCH}{name}" for name in ("_ops.py", "_library/", "_subclasses/", "_decomp/", "fx/experimental/")),
    f"{Path(__file__).parent}/",
    "<frozen importlib",
)
_UNHASHED = "/einops/"  # goes another way with sizes that have no hash, to the same end
_ASKED = "which object a size is is asked"
_MOST = 2_000_000  # steps that are remembered
_MONITORING: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
_TOOL = 4  # one of its numbers that Python gives to nobody
_ONE_AT_A_TIME = Lock()  # in a process; each hears of its own thread
_BY_IDENTITY = frozenset(map(id, (id, operator.is_, operator.is_not)))


@dataclass(slots=True)
class _Code:
    """What is known of a function."""

    code: CodeType
    kind: str
    identities: dict[int, Operands] | None = None  # None before it is entered
    is_listened: bool = False  # to, for instructions


class Way:
    """One forward's way. `tell` hears where a size's identity is asked for. `builtins`: functions in C are
    watched as well, which takes longer where sizes are symbolic."""

    def __init__(self, tell: Tell, builtins: bool = False) -> None:
        self.steps: list[tuple[CodeType, int]] = []
        self.tell, self._builtins = tell, builtins
        # by the identity of its code, which is held: its hash takes longer the longer it is
        self._codes: dict[int, _Code] = {}
        self._managers: dict[CodeType, set[type | CodeType]] = {}  # contexts that are entered in a function
        self._base: FrameType | None = None
        self._thread = 0
        self._step = self._stepping({})

    @property
    def is_whole(self) -> bool:
        return len(self.steps) < _MOST

    def catches(self, frame: FrameType) -> bool:
        """Whether an exception out of the call that this frame waits for may be caught in it."""
        return catches(frame.f_code, frame.f_lasti, self._swallows(frame.f_code))

    def _swallows(self, code: CodeType) -> bool:
        """Whether a context that is entered in this function may end an exception."""
        return any(
            goes_on(each, self._swallows(each)) if isinstance(each, CodeType) else may_swallow(each)
            for each in self._managers.get(code, ())
        )

    @contextmanager
    def followed(self) -> Iterator[None]:
        """While it is entered, what this thread's calls do is followed. What a collection of garbage would
        run in between is no part of the way."""
        self._base, collects = sys._getframe(2), gc.isenabled()
        gc.disable()
        try:
            if _MONITORING is None:
                with self._traced():
                    yield
            else:
                with _ONE_AT_A_TIME, self._monitored():
                    yield
        finally:
            self._base = None
            if collects:
                gc.enable()

    @contextmanager
    def _traced(self) -> Iterator[None]:
        before = sys.gettrace()
        watched = self._builtins and sys.getprofile() is None  # one that is at work could not be set again
        if watched:
            sys.setprofile(self._profiled)
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)
            if watched:
                sys.setprofile(None)

    @contextmanager
    def _monitored(self) -> Iterator[None]:
        """From Python 3.12 on, where PyTorch's own functions need not be told of more than once."""
        events = _MONITORING.events
        everywhere = events.PY_START | events.PY_RESUME | (events.CALL if self._builtins else 0)
        _MONITORING.use_tool_id(_TOOL, "ways")
        for event, told in (
            (events.PY_START, self._started),
            (events.PY_RESUME, self._started),
            (events.INSTRUCTION, self._reached),
            (events.CALL, self._asked),
        ):
            _MONITORING.register_callback(_TOOL, event, told)
        self._thread = get_ident()
        _MONITORING.set_events(_TOOL, everywhere)
        _MONITORING.restart_events()
        try:
            yield
        finally:
            _MONITORING.set_events(_TOOL, 0)
            for known in self._codes.values():
                if known.is_listened:
                    _MONITORING.set_local_events(_TOOL, known.code, 0)
            _MONITORING.free_tool_id(_TOOL)

    # ---- as Python calls it ------------------------------------------------------------------------

    def _called(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        asked = self._entered_user(frame)
        if asked is None:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._stepping(asked) if asked else self._step

    def _entered_user(self, frame: FrameType) -> dict[int, Operands] | None:
        """Where the user's code that begins here asks for identities; None where it is not followed."""
        code, known = frame.f_code, self._known(frame)
        if code.co_name == "__enter__":
            self._entered(frame)
        if known.kind != "user" or self._is_aside(frame):
            return None
        if known.identities is None:
            known.identities = identities(code)
            if names_identity(code, frame.f_globals):
                self.tell(frame, _ASKED)
        return known.identities

    def _stepping(self, asked: dict[int, Operands]) -> Callable[..., Any]:
        steps = self.steps

        def step(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            if event == "opcode" and len(steps) < _MOST:
                place = frame.f_lasti
                steps.append((frame.f_code, place))
                if place in asked and may_be_size(frame, asked[place]):
                    self.tell(frame, _ASKED)
            return step

        return step

    def _profiled(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and id(argument) in _BY_IDENTITY and frame.f_trace is not None:
            self.tell(frame, _ASKED)

    # ---- as Python tells of it from 3.12 on --------------------------------------------------------

    def _started(self, code: CodeType, place: int) -> Any:
        frame = sys._getframe(1)
        if get_ident() != self._thread:
            return None
        if self._entered_user(frame) is not None:
            frame.f_trace = self._step  # the mark of what is followed
            known = self._known(frame)
            if not known.is_listened:
                known.is_listened = True
                _MONITORING.set_local_events(_TOOL, code, _MONITORING.events.INSTRUCTION)
        elif self._known(frame).kind != "user" and code.co_name != "__enter__":
            return _MONITORING.DISABLE
        return None

    def _reached(self, code: CodeType, place: int) -> None:
        frame = sys._getframe(1)
        if frame.f_trace is None or len(self.steps) >= _MOST or get_ident() != self._thread:
            return
        self.steps.append((code, place))
        asked = self._codes[id(code)].identities
        if asked and place in asked and may_be_size(frame, asked[place]):
            self.tell(frame, _ASKED)

    def _asked(self, code: CodeType, place: int, called: Any, first: Any) -> Any:
        frame = sys._getframe(1)
        if self._known(frame).kind != "user":
            return _MONITORING.DISABLE
        if id(called) in _BY_IDENTITY and frame.f_trace is not None:
            self.tell(frame, _ASKED)
        return None

    # ---- both ways ---------------------------------------------------------------------------------

    def _entered(self, frame: FrameType) -> None:
        """Note whose context is entered by whom; PyTorch's own end no exception."""
        code, into = frame.f_code, frame.f_back
        if into is None or not code.co_varnames or code.co_filename.startswith(_TORCH):
            return
        manager = frame.f_locals.get(code.co_varnames[0])
        known = self._managers.setdefault(into.f_code, set())
        if isinstance(manager, _GeneratorContextManager):
            known.add(cast(GeneratorType, manager.gen).gi_code)
        else:
            known.add(type(manager))

    # ---- whose code it is --------------------------------------------------------------------------

    def _known(self, frame: FrameType) -> _Code:
        code = frame.f_code
        known = self._codes.get(id(code))
        if known is None:
            known = self._codes[id(code)] = _Code(code, _kind(code.co_filename, frame.f_globals))
        return known

    def _is_aside(self, frame: FrameType) -> bool:
        """Whether the user's code is run by what differs where tensors are fake."""
        above = frame.f_back
        while above is not None and above is not self._base:
            kind = self._known(above).kind
            if kind == "user":
                return above.f_trace is None
            if kind == "aside":
                return True
            above = above.f_back
        return False


@contextmanager
def unheard() -> Iterator[None]:
    """While it is entered, nothing is told to a way that is followed, which would leave out what runs here,
    one call after another. Up to Python 3.11 it would be told of each."""
    listener = sys.gettrace()
    if not isinstance(getattr(listener, "__self__", None), Way):
        yield
        return
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(listener)


def parted(one: Way, other: Way) -> str:
    """ "file:line" of the user's code at which two ways part; "" where they are one."""
    if one.steps == other.steps:
        return ""
    pairs = zip(one.steps, other.steps, strict=False)
    place = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(one.steps), len(other.steps)))
    steps = one.steps if place < len(one.steps) else other.steps
    return line_at(*steps[max(place - 1, 0)])


def _kind(file: str, scope: dict[str, Any]) -> str:
    """ "user", "library", or "aside" """
    if file.startswith(_ASIDE):
        return "aside"
    if file.startswith("<") and not file.startswith("<eval_with_key>"):  # made from text, on whose account?
        name = str(scope.get("__name__", ""))
        file = scope.get("__file__") or (file if not name.startswith("namedtuple_") else "<frozen")
        if file.startswith("<lambdifygenerated"):
            return "library"
    return "library" if is_library(file) or _UNHASHED in file else "user"
