"""What no static trace shows: one forward under symbolic fake tensors records every condition over sizes
that the user's own code decided, with its line, and the expressions behind the numbers in its calls. Nothing
is computed, and a time limit bounds it. What leaves no condition behind is said."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import sympy
import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import _compiling_state_context
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, SLoc, StatelessSymbolicContext

from dlcb.compiler.bridge import kinds, python_sizes
from dlcb.compiler.bridge.bytecode import Ran, catches, tells_apart
from dlcb.compiler.bridge.capture import bound, short, user_code
from dlcb.compiler.bridge.fake_calls import FakeCalls
from dlcb.compiler.bridge.indexing import ExplicitSlices
from dlcb.compiler.bridge.record import user_place
from dlcb.compiler.bridge.seen import Numbers, Place, Seen, numbers
from dlcb.compiler.bridge.symbolic import Untranslatable, condition, number
from dlcb.compiler.bridge.unchanged import unchanged
from dlcb.compiler.errors import CaptureError
from dlcb.compiler.expr.dag import Expr

_TORCH = f"{Path(torch.__file__).parent}/"
_HERE = f"{Path(__file__).parent}/"
# where Python, or C, asks a symbolic size for a value
_CONVERSIONS = {"__bool__", "__int__", "__index__", "__float__", "__hash__"}
_TAKEN = {"guard_int", "guard_float"}
# what they are given becomes data, whose values may decide more
_MAKE_DATA = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)
_UNHASHED = "/einops/"  # goes the same way with sizes that have no hash, as symbolic ones do in PyTorch
# asks whether it is traced, and gives the same either way
_EITHER_WAY = ("transformers",)
_RELAYED = (kinds.__file__, python_sizes.__file__)  # they ask for the user's code
_SYMBOLIC = ("symbolic_shapes.py", "sym_node.py", "recording.py", "torch/__init__.py")


Met = tuple[str, Place, Numbers]  # a call's operator, the user's line, and its numbers


@dataclass(frozen=True)
class Branch:
    """A condition over sizes that the traced path took for granted, and the user's line that asked."""

    condition: Expr
    source: str


@dataclass(frozen=True)
class Branches:
    """All branches that were met. `missing` says why there may be more; empty when there are none. `seen` are
    the calls that were met, with their numbers as expressions."""

    found: tuple[Branch, ...]
    missing: str = ""
    seen: Seen = field(default_factory=Seen, compare=False)


_TOO_LONG = "the symbolic forward took more"


class _OutOfTime(Exception):
    pass


class _Recorder(ShapeEnv):
    """A shape environment that notes which conditions the user's code asked for."""

    def __init__(self, deadline: float) -> None:
        super().__init__(specialize_zero_one=False)
        self.deadline = deadline
        self.asked: list[tuple[Any, Any, str]] = []
        self.hints: dict[Any, sympy.Integer] = {}  # the sample's sizes
        self.unfollowed: list[str] = []  # what left no condition behind
        self.refused: list[str] = []  # calls that raised
        self.ran: dict[int, Ran] = {}  # the user's functions that call PyTorch
        self.within = 0  # calls of PyTorch that are running
        self._places: set[tuple[int, int]] = set()  # of the user's code that were looked at

    def create_symbol(self, *arguments: Any, **keywords: Any) -> Any:
        """Of a size PyTorch supposes that it is positive, and answers `n == 0` itself."""
        return super().create_symbol(*arguments, **{**keywords, "positive": None})

    def value(self, number: Any) -> Any:
        """What a symbolic number is at the sample's sizes."""
        found = number.node.expr.xreplace(self.hints)
        return int(found) if found.is_Integer else float(found) if found.is_number else found

    def tell(self, frame: FrameType, what: str) -> bool:
        """Note that the code of this frame asked for `what`, if it is the user's."""
        asker = _behind(frame)
        place = "" if asker is None or _UNHASHED in asker.f_code.co_filename else _line(asker)
        if place:
            self.unfollowed.append(f"{what} at {place}")
        return bool(place)

    def refuse(self, func: Any, frame: FrameType) -> None:
        """Note a call that raised: where the program goes on all the same, it may go otherwise elsewhere."""
        self.refused.append(f"{getattr(func, '__name__', func)} is refused, and caught, at {_place(frame)}")

    def traced(self, frame: FrameType, what: str) -> bool:
        """Note that the code of this frame asked whether it is a real forward that it is in."""
        asker = _behind(frame)
        return asker is not None and not _goes_either_way(asker.f_globals) and self.tell(asker, what)

    def divides(self, frame: FrameType, divisor: Any) -> None:
        """Note that the user's code divides by a size, which Python refuses where that is zero."""
        if place := _line(_behind(frame)):
            nonzero = sympy.Ne(divisor.node.expr, 0)
            self.asked.append((nonzero, nonzero.xreplace(self.hints), place))

    def sized(self, tensor: torch.Tensor, frame: FrameType | None) -> None:
        """Note that something is asked of a tensor's layout, which is another where a size is 0 or 1."""
        for size in tensor.shape:
            if isinstance(size, torch.SymInt) and (place := _line(frame)):
                many = sympy.Ge(size.node.expr, 2)
                self.asked.append((many, many.xreplace(self.hints), place))

    def met(self, frame: FrameType | None, may_raise: bool = True) -> None:
        """Note which of the user's functions are on the way to a call of PyTorch, and whether any would catch
        what that refuses at other sizes."""
        while frame is not None and frame.f_code is not _COLLECT:
            code = frame.f_code
            if not code.co_filename.startswith((_TORCH, _HERE, "<frozen")):
                if id(code) not in self.ran:
                    self.ran[id(code)] = Ran(code, frame.f_globals, _callables(frame))
                key = (id(code), frame.f_lasti)
                if may_raise and key not in self._places:
                    self._places.add(key)
                    if catches(frame):
                        self.unfollowed.append(f"what PyTorch refuses is caught at {_line(frame)}")
            frame = frame.f_back

    def hurry(self) -> None:
        if time.thread_time() > self.deadline:
            self.unfollowed.append(_TOO_LONG)  # the user's code may go on
            raise _OutOfTime

    def evaluate_expr(self, expression: Any, *arguments: Any, **keywords: Any) -> Any:  # type: ignore[override]
        self.hurry()
        # The path that is followed takes the sample's sizes for granted; PyTorch's own solver is what makes
        # symbolic traces slow.
        answer = expression.xreplace(self.hints) if isinstance(expression, sympy.Basic) else expression
        if not (answer.is_number or answer.is_Boolean):  # holds what only run time knows
            answer = super().evaluate_expr(expression, *arguments, **keywords)
        if isinstance(expression, sympy.Basic) and expression.free_symbols:
            place = _asker(sys._getframe(1))
            if place:
                self.asked.append((expression, answer, place))
            elif not self.within:
                self.met(sys._getframe(1))
        return answer

    def _get_stack_summary(self, *_: Any, **__: Any) -> tuple[SLoc, str]:
        """Whom PyTorch would name in a message: it loads its compilers to tell its own files from others."""
        return SLoc(None, None), ""


def _behind(frame: FrameType | None) -> FrameType | None:
    """Who asks, where what we put in PyTorch's or Python's place stands between."""
    while frame is not None and frame.f_code.co_filename in _RELAYED:
        frame = frame.f_back
    return frame


def _callables(frame: FrameType) -> tuple[Any, ...]:
    """What a function was given, or holds in its closure, that it may call."""
    return tuple(
        each for each in frame.f_locals.values() if callable(each) and not isinstance(each, nn.Module)
    )


def _is_harmless(file: str, scope: Mapping[str, Any]) -> bool:
    return kinds.is_library(file) or _goes_either_way(scope)


def _goes_either_way(scope: Mapping[str, Any]) -> bool:
    """Whether this is code of a library that asks how it is run, and gives the same."""
    return str(scope.get("__name__", "")).partition(".")[0] in _EITHER_WAY


def _asker(frame: FrameType | None) -> str:
    """ "file:line" of the user's code, where that asked a symbolic size for a Python value; empty for
    PyTorch's own questions."""
    asked: set[str] = set()
    while frame is not None and frame.f_code.co_filename.endswith(_SYMBOLIC):
        asked.add(frame.f_code.co_name)
        frame = frame.f_back
    frame = _behind(frame)
    if frame is None:
        return ""
    converted = not asked.isdisjoint(_CONVERSIONS)
    if frame.f_code is ExplicitSlices.__torch_function__.__code__:  # a call with the size as an argument
        if not converted and frame.f_locals["func"] not in _MAKE_DATA:
            return ""
        frame = frame.f_back and frame.f_back.f_back  # `_Questions` stands between
    return _line(frame) if converted or not asked.isdisjoint(_TAKEN) else ""


def _line(frame: FrameType | None) -> str:
    """ "file:line" of the user's code; empty for PyTorch's own and ours."""
    if frame is None or frame.f_code.co_filename.startswith((_TORCH, _HERE)):
        return ""
    return f"{short(frame.f_code.co_filename)}:{frame.f_lineno}"


def _place(frame: FrameType) -> str:
    """ "file:line" of the innermost code that is neither PyTorch's nor ours."""
    place = user_place(frame)
    return f"{short(place[0])}:{place[1]}" if place is not None else ""


class _Questions(ExplicitSlices):
    """Tells of each call of PyTorch from the user's code, before it is made."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__(recorder.refuse)
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder = self._recorder
        frame = sys._getframe(1)
        if func in _OF_LAYOUT:
            recorder.sized(args[0], frame)
        if recorder.within:
            return super().__torch_function__(func, types, args, kwargs)
        recorder.met(frame, may_raise=getattr(func, "__name__", "") != "__get__")
        recorder.within += 1
        try:
            return super().__torch_function__(func, types, args, kwargs)
        finally:
            recorder.within -= 1


_OF_LAYOUT = (torch.Tensor.is_contiguous, torch.Tensor.stride)


class _Calls(FakeCalls):
    """Notes each call that has a size among its arguments, and what the number of pieces of a tensor says of
    its size."""

    def __init__(self, mode: FakeTensorMode, recorder: _Recorder) -> None:
        super().__init__(mode, symbolic=True)
        self.recorder = recorder
        self.calls: list[Met] = []

    def call(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        self.recorder.hurry()
        given = numbers(args, kwargs)
        if getattr(func, "overloadpacket", None) is torch.ops.aten.squeeze:
            self._squeezed(*args)
        if given:
            self.calls.append((str(func), user_place(sys._getframe(1)), given))
        result = super().call(func, args, kwargs)
        if isinstance(result, (list, tuple)):
            self._pieces(func, args, len(result))
        return result

    def _squeezed(self, x: torch.Tensor, axes: Any = None) -> None:
        """Code may go by the number of axes that are left."""
        which = range(x.dim()) if axes is None else axes if isinstance(axes, (list, tuple)) else (axes,)
        for size in (x.shape[axis] for axis in which):
            if isinstance(size, torch.SymInt):
                other = sympy.Ne(size.node.expr, 1)
                answer = other.xreplace(self.recorder.hints)
                self.recorder.asked.append((other, answer, _place(sys._getframe(2))))

    def _pieces(self, func: Any, args: tuple, count: int) -> None:
        """Code may go by the number of pieces alone, which is in no trace."""
        cut, where = getattr(func, "overloadpacket", None), _place(sys._getframe(2))
        if cut is _UNBIND and isinstance(args[0].shape[args[1] if len(args) > 1 else 0], torch.SymInt):
            self.recorder.unfollowed.append(f"as many tensors as a size says at {where}")
        elif cut in (*_SPLIT, *_CHUNK) and not isinstance(args[1], (list, tuple)):
            size = args[0].shape[args[2] if len(args) > 2 else 0]
            piece = (size + args[1] - 1) // args[1] if cut in _CHUNK else args[1]
            for said in (size <= count * piece, (count - 1) * piece < size if count > 1 else True):
                if isinstance(said, torch.SymBool):
                    self.recorder.asked.append((said.node.expr, sympy.true, where))


_UNBIND = torch.ops.aten.unbind
_SPLIT = torch.ops.aten.split, torch.ops.aten.unsafe_split
_CHUNK = torch.ops.aten.chunk, torch.ops.aten.unsafe_chunk


def collect(
    module: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    dims: Mapping[str, Sequence[Expr | int]],
    seconds: float,
) -> Branches:
    """The branches that `module` takes at these inputs, as conditions over the size variables in `dims` (one
    entry an axis), found in at most `seconds` of processor time: a busy machine must not change the answer.

    Never raises: what could not be followed is said in `missing`."""
    recorder = _Recorder(time.thread_time() + seconds)
    symbols: dict[Any, Expr] = {}
    missing = ""
    calls: list[Met] = []
    try:
        with user_code("the symbolic forward"), unchanged(module), torch.no_grad():
            mode = FakeTensorMode(shape_env=recorder, allow_non_fake_inputs=True)
            mode.cache_enabled = False  # `FakeCalls` keeps what comes again; PyTorch's costs more than a call
            fakes = {
                name: _symbolic(mode, name, tensor, dims[name], symbols, recorder.hints)
                for name, tensor in inputs.items()
            }
            arguments, keywords = bound(module, fakes)
            forward = _Calls(mode, recorder)
            calls = forward.calls
            # as traces are recorded: some code takes another way under a compiler
            asking = python_sizes.answered(
                recorder.value, recorder.tell, recorder.divides, lambda f: bool(_line(f))
            )
            with (
                asking,
                kinds.as_real(recorder.traced),
                _compiling_state_context(),
                kinds.compiling(recorder.traced),
                mode,
                enable_python_dispatcher(),
                _Questions(recorder),
                forward,
            ):
                module(*arguments, **keywords)
    except CaptureError as error:
        missing = error.message
    missing = next(iter(recorder.unfollowed), missing or next(iter(recorder.refused), ""))
    if not missing and (asker := tells_apart(recorder.ran.values(), _methods(module), _is_harmless)):
        missing = f"sizes may be told from numbers at {_start(asker)}"
    if missing == _TOO_LONG:
        missing = f"{_TOO_LONG} than {seconds:g} s of processor time"
    found: dict[Expr, Branch] = {}
    for expression, answer, place in recorder.asked:
        try:
            assumed = condition(expression, answer, symbols)
        except Untranslatable as error:
            missing = missing or f"the condition {error} at {place} has no counterpart"
            continue
        if not assumed.is_const:
            found.setdefault(assumed, Branch(assumed, place))
    seen, unsaid = _seen(calls, symbols)
    missing = missing or unsaid
    seen.complete = not missing  # else numbers in it may follow sizes unseen
    return Branches(tuple(found.values()), missing, seen)


_COLLECT = collect.__code__


def _methods(module: nn.Module) -> dict[str, list[Any]]:
    """What attributes of a module's parts may be called, by name."""
    parts = list(module.modules())
    bases = {base for part in parts for base in type(part).__mro__}
    own = [base for base in bases if base.__module__.partition(".")[0] not in ("torch", "builtins")]
    found: dict[str, list[Any]] = {}
    for scope in (*map(vars, own), *map(vars, parts)):
        for name, value in scope.items():
            if callable(value) or isinstance(value, (property, staticmethod, classmethod)):
                found.setdefault(name, []).append(value)
    return found


def _start(code: CodeType) -> str:
    return f"{short(code.co_filename)}:{code.co_firstlineno}"


def _seen(calls: Sequence[Met], symbols: Mapping[Any, Expr]) -> tuple[Seen, str]:
    """The calls with our expressions in place of PyTorch's, and the first that has no counterpart, which
    stands there as None."""
    seen, unsaid = Seen(), ""
    for target, place, given in calls:
        ours: Numbers = {}
        for path, value in given.items():
            if isinstance(value, (torch.SymInt, torch.SymFloat)):
                try:
                    ours[path] = number(value.node.expr, symbols)
                except Untranslatable as error:
                    ours[path] = None
                    line = f"{short(place[0])}:{place[1]}" if place else target
                    unsaid = unsaid or f"the number {error} at {line} has no counterpart"
            else:
                ours[path] = value
        seen.add(target, place, ours)
    return seen, unsaid


def _symbolic(
    mode: FakeTensorMode,
    name: str,
    tensor: torch.Tensor,
    dims: Sequence[Expr | int],
    symbols: dict[Any, Expr],
    hints: dict[Any, sympy.Integer],
) -> torch.Tensor:
    # it loads all of torch._dynamo, which only a model that is captured needs
    from torch._dynamo.source import ConstantSource  # noqa: PLC0415

    free = [isinstance(dim, Expr) for dim in dims]
    context: Any = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DYNAMIC if each else DimDynamic.STATIC for each in free]
    )
    fake = mode.from_tensor(tensor, source=ConstantSource(name), symbolic_context=context)
    for size, dim, hint in zip(fake.shape, dims, tensor.shape, strict=True):
        if isinstance(dim, Expr) and isinstance(size, torch.SymInt):
            symbols[size.node.expr] = dim
            hints[size.node.expr] = sympy.Integer(hint)
    return fake
