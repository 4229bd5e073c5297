"""What is asked of symbolic sizes in a forward: each condition that the user's own code decides, with its
line, and each question that leaves no condition behind."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv, SLoc

from dlcb.compiler.bridge import call_by_call, conversions, kinds, python_sizes
from dlcb.compiler.bridge.indexing import ExplicitSlices
from dlcb.compiler.bridge.places import short
from dlcb.compiler.bridge.record import user_place
from dlcb.compiler.bridge.ways import Way

_TORCH = f"{Path(torch.__file__).parent}/"
_HERE = f"{Path(__file__).parent}/"
# where Python, or C, asks a symbolic size for a value
_CONVERSIONS = {"__bool__", "__int__", "__index__", "__float__", "__hash__"}
_TO_NUMBERS = {"__int__", "__float__", "__index__"}
_TAKEN = {"guard_int", "guard_float"}
# what they are given becomes data, whose values may decide more
_MAKE_DATA = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)
_UNHASHED = "/einops/"  # goes the same way with sizes that have no hash, as symbolic ones do in PyTorch
# asks whether it is traced, and gives the same either way
_EITHER_WAY = ("transformers",)
# they ask for the user's code
_RELAYED = (conversions.__file__, kinds.__file__, python_sizes.__file__)
_CONTAINERS = "torch/nn/modules/container.py"  # what they hold is chosen by whoever asks them
_SYMBOLIC = ("symbolic_shapes.py", "sym_node.py", "recording.py", "torch/__init__.py")

TOO_LONG = "the symbolic forward took more"


class OutOfTime(Exception):
    pass


class Recorder(ShapeEnv):
    """A shape environment that notes which conditions the user's code asked for."""

    def __init__(self, deadline: float, beneath: CodeType) -> None:
        """`deadline` is of this thread's processor time; the user's frames are those above `beneath`."""
        super().__init__(specialize_zero_one=False)
        self.deadline, self.beneath = deadline, beneath
        # by the clock it is not reached before, and the clock costs less
        self._earliest = time.monotonic() + deadline - time.thread_time()
        self.asked: list[tuple[Any, Any, str]] = []
        self.hints: dict[Any, sympy.Integer] = {}  # the sample's sizes
        self.unfollowed: list[str] = []  # what left no condition behind
        self.refused: list[str] = []  # calls that raised
        self.units: list[Any] = []  # sizes that PyTorch's own code took for the number 0 or 1
        self.way = Way(self.traced)
        self.converting: set[str] = set()  # the user's modules that make plain numbers of symbolic ones
        self.within = 0  # calls of PyTorch that are running
        self._values: dict[Any, Any] = {}  # expressions at the sample's sizes
        self._places: set[tuple[int, int]] = set()  # of the user's code that were looked at

    def create_symbol(self, *arguments: Any, **keywords: Any) -> Any:
        """Of a size PyTorch supposes that it is positive, and answers `n == 0` itself."""
        return super().create_symbol(*arguments, **{**keywords, "positive": None})

    def value(self, number: Any) -> Any:
        """What a symbolic number is at the sample's sizes."""
        found = self._at_sample(number.node.expr)
        return int(found) if found.is_Integer else float(found) if found.is_number else found

    def _at_sample(self, expression: sympy.Basic) -> Any:
        found = self._values.get(expression)
        if found is None:
            found = expression.xreplace(self.hints)
            if not found.free_symbols:  # else more may be known of them later
                self._values[expression] = found
        return found

    def tell(self, frame: FrameType, what: str) -> bool:
        """Note that the code of this frame asked for `what`, if it is the user's."""
        asker = _behind(frame)
        place = "" if asker is None or _UNHASHED in asker.f_code.co_filename else line_of(asker)
        if place:
            self.unfollowed.append(f"{what} at {place}")
        return bool(place)

    def refuse(self, func: Any, frame: FrameType) -> None:
        """Note a call that raised: where the program goes on all the same, it may go otherwise elsewhere."""
        self.refused.append(f"{getattr(func, '__name__', func)} is refused, and caught, at {place_of(frame)}")

    def traced(self, frame: FrameType, what: str) -> bool:
        """Note that the code of this frame asked whether it is a real forward that it is in."""
        asker = _behind(frame)
        return asker is not None and not goes_either_way(asker.f_globals) and self.tell(asker, what)

    def divides(self, frame: FrameType, divisor: Any) -> None:
        """Note that the user's code divides by a size, which Python refuses where that is zero."""
        if place := line_of(_behind(frame)):
            nonzero = sympy.Ne(divisor.node.expr, 0)
            self.asked.append((nonzero, nonzero.xreplace(self.hints), place))

    def takes(self, frame: FrameType, said: Any) -> None:
        """Note what Python requires of the symbolic number that the user's code gives it."""
        if place := line_of(_behind(frame)):
            self.asked.append((said, sympy.true, place))

    def sized(self, tensor: torch.Tensor, frame: FrameType | None) -> None:
        """Note that something is asked of a tensor's layout, which is another where a size is 0 or 1."""
        for size in tensor.shape:
            if isinstance(size, torch.SymInt) and (place := line_of(frame)):
                many = sympy.Ge(size.node.expr, 2)
                self.asked.append((many, many.xreplace(self.hints), place))

    def met(self, frame: FrameType | None, may_raise: bool = True) -> None:
        """Note whether any of the functions on the way to a call of PyTorch would catch what that refuses at
        other sizes."""
        while frame is not None and frame.f_code is not self.beneath:
            code = frame.f_code
            if not code.co_filename.startswith((_TORCH, _HERE, "<frozen")):
                key = (id(code), frame.f_lasti)
                if may_raise and key not in self._places:
                    self._places.add(key)
                    if self.way.catches(frame):
                        self.unfollowed.append(f"what PyTorch refuses is caught at {line_of(frame)}")
            frame = frame.f_back

    def hurry(self) -> None:
        if time.monotonic() > self._earliest and time.thread_time() > self.deadline:
            self.unfollowed.append(TOO_LONG)  # the user's code may go on
            raise OutOfTime

    def evaluate_expr(self, expression: Any, *arguments: Any, **keywords: Any) -> Any:  # type: ignore[override]
        self.hurry()
        # The path that is followed takes the sample's sizes for granted; PyTorch's own solver is what makes
        # symbolic traces slow.
        answer = self._at_sample(expression) if isinstance(expression, sympy.Basic) else expression
        if not (answer.is_number or answer.is_Boolean):  # holds what only run time knows
            answer = super().evaluate_expr(expression, *arguments, **keywords)
        if isinstance(expression, sympy.Basic) and expression.free_symbols:
            asker, asked = _asker(sys._getframe(1))
            if place := line_of(asker) or _in_torchscript(asker):
                if (
                    asker is not None
                    and not asked.isdisjoint(_TO_NUMBERS)
                    and conversions.may_be_in(asker.f_code)
                ):
                    self.converting.add(asker.f_globals.get("__name__", ""))
                self.asked.append((expression, answer, place))
            else:
                self._unit(expression)
                if not self.within:
                    self.met(sys._getframe(1))
        return answer

    def _unit(self, expression: Any) -> None:
        """Note a size that PyTorch asks whether it is 0 or 1, where it is so at the sample: a broadcast goes
        by the answer, and no condition is left behind."""
        if not isinstance(expression, (sympy.Eq, sympy.Ne)):
            return
        for size, unit in (expression.args, reversed(expression.args)):
            if unit in (0, 1) and self._at_sample(size) == unit:
                self.units.append(size)

    def _get_stack_summary(self, *_: Any, **__: Any) -> tuple[SLoc, str]:
        """Whom PyTorch would name in a message: it loads its compilers to tell its own files from others."""
        return SLoc(None, None), ""


def _behind(frame: FrameType | None) -> FrameType | None:
    """Who asks, where what we put in PyTorch's or Python's place stands between."""
    while frame is not None and frame.f_code.co_filename in _RELAYED:
        frame = frame.f_back
    return frame


def goes_either_way(scope: Mapping[str, Any]) -> bool:
    """Whether this is code of a library that asks how it is run, and gives the same."""
    return str(scope.get("__name__", "")).partition(".")[0] in _EITHER_WAY


def _asker(frame: FrameType | None) -> tuple[FrameType | None, set[str]]:
    """The code that asked a symbolic size for a Python value, if any that is not PyTorch's, and the functions
    of PyTorch's that it asked."""
    asked: set[str] = set()
    while frame is not None and frame.f_code.co_filename.endswith(_SYMBOLIC):
        asked.add(frame.f_code.co_name)
        frame = frame.f_back
    frame = _behind(frame)
    while frame is not None and frame.f_code.co_filename.endswith(_CONTAINERS):
        frame = frame.f_back
    if frame is None:
        return None, asked
    converted = not asked.isdisjoint(_CONVERSIONS)
    if frame.f_code is ExplicitSlices.__torch_function__.__code__:  # a call with the size as an argument
        if not converted and frame.f_locals["func"] not in _MAKE_DATA:
            return None, asked
        frame = frame.f_back and frame.f_back.f_back  # `_Questions` stands between
    return frame if converted or not asked.isdisjoint(_TAKEN) else None, asked


def _in_torchscript(frame: FrameType | None) -> str:
    """Where TorchScript's interpreter asks, which has no frames."""
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):  # fake tensors' own
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename != call_by_call.__file__:
        return ""
    return "TorchScript" if call_by_call.may_ask_for_sizes(frame) else ""


def line_of(frame: FrameType | None) -> str:
    """ "file:line" of the user's code; empty for PyTorch's own and ours."""
    if frame is None or frame.f_code.co_filename.startswith((_TORCH, _HERE)):
        return ""
    return f"{short(frame.f_code.co_filename)}:{frame.f_lineno}"


def place_of(frame: FrameType) -> str:
    """ "file:line" of the innermost code that is neither PyTorch's nor ours."""
    place = user_place(frame)
    return f"{short(place[0])}:{place[1]}" if place is not None else ""
