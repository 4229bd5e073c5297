"""What no static trace shows: one forward under symbolic fake tensors records every condition over sizes
that the user's own code decided, with its line, and the expressions behind the numbers in its calls. Nothing
is computed, and a time limit bounds it. What leaves no condition behind is said."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import sympy
import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import _compiling_state_context
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

from dlcb.compiler.bridge import conversions, kinds, python_sizes
from dlcb.compiler.bridge.branches import Branch, Branches
from dlcb.compiler.bridge.capture import ON_VALUES, bound, user_code
from dlcb.compiler.bridge.fake_calls import FakeCalls
from dlcb.compiler.bridge.indexing import ExplicitSlices
from dlcb.compiler.bridge.places import short
from dlcb.compiler.bridge.real_forward import unlike_real
from dlcb.compiler.bridge.record import ASK_FOR_SIZES, user_place
from dlcb.compiler.bridge.recorder import TOO_LONG, Recorder, line_of, place_of
from dlcb.compiler.bridge.seen import Numbers, Place, Seen, is_result, numbers, result_place, result_sizes
from dlcb.compiler.bridge.stand_ins import HERE, Home, StandIns
from dlcb.compiler.bridge.symbolic import Untranslatable, condition, number
from dlcb.compiler.bridge.symbolic_calls import ONES_ARE_NUMBERS
from dlcb.compiler.bridge.unchanged import unchanged
from dlcb.compiler.bridge.whole_windows import whole_axes, with_numbers
from dlcb.compiler.errors import CaptureError
from dlcb.compiler.expr.dag import Expr

Met = tuple[str, Place, Numbers]  # a call's operator, the user's line, and its numbers


class _Questions(ExplicitSlices):
    """Tells of each call of PyTorch from the user's code, before it is made."""

    def __init__(self, recorder: Recorder, calls: _Calls, spelling: bool) -> None:
        super().__init__(recorder.refuse, spelling)
        self._recorder, self._calls = recorder, calls

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
            whole = whole_axes(func, args, kwargs or {})
            if not whole:
                return super().__torch_function__(func, types, args, kwargs)
            first = len(self._calls.calls)
            args = tuple(with_numbers(recorder.value, each) for each in args)
            kwargs = {name: with_numbers(recorder.value, each) for name, each in (kwargs or {}).items()}
            result = super().__torch_function__(func, types, args, kwargs)
            return self._calls.pooled(first, whole, result)
        finally:
            recorder.within -= 1


_OF_LAYOUT = (torch.Tensor.is_contiguous, torch.Tensor.stride)


class _Calls(FakeCalls):
    """Notes each call that has a size among its arguments or results, and what the number of pieces of a
    tensor says of its size."""

    def __init__(self, stand_ins: StandIns, recorder: Recorder) -> None:
        super().__init__(stand_ins, symbolic=True)
        self.recorder = recorder
        self.calls: list[Met] = []
        self.units: list[Any] = []  # sizes that are numbers in results

    def call(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        self.recorder.hurry()
        given = numbers(args, kwargs)
        if getattr(func, "overloadpacket", None) is torch.ops.aten.squeeze:
            self._squeezed(*args)
        if func is torch.ops.aten.view_as_complex.default:
            self._paired(args[0])
        if func in ASK_FOR_SIZES and isinstance(size := args[0].shape[args[1]], torch.SymInt):
            self.recorder.asked.append((size.node.expr, self.recorder.value(size), "TorchScript"))
        met = len(self.recorder.units)
        result = super().call(func, args, kwargs)
        self._lost(func, args, result, self.recorder.units[met:])
        given |= result_sizes(result)  # PyTorch may run it, and then only PyTorch knows them
        if given:
            self.calls.append((str(func), user_place(sys._getframe(1)), given))
        if isinstance(result, (list, tuple)):
            self._pieces(func, args, len(result))
        return result

    def pooled(self, first: int, whole: Mapping[int, tuple[Any, Any]], result: torch.Tensor) -> torch.Tensor:
        """The result of the call of pooling that was noted as the `first`: with the sizes and strides of
        whole axes in place of the numbers that it was given, and with 1 as its own size there."""
        given = self.calls[first][2]
        count = sum(path[0] == 1 for path in given)
        shape = list(result.shape)
        for axis, symbolic in whole.items():
            shape[axis] = 1
            given.pop(result_place(0, axis + result.dim()), None)
            for place, size in enumerate(symbolic, 1):
                if (place, axis + count) in given:
                    given[place, axis + count] = size
        made = result.new_empty(shape)
        del self.calls[first + 1 :]
        return made

    def _lost(self, func: Any, args: tuple, result: Any, units: Sequence[Any]) -> None:
        """Sizes of 0 or 1 that PyTorch asked for, and that are no more in the result: there they are numbers,
        whatever follows from them."""
        tensors = result if isinstance(result, (list, tuple)) else (result,)
        sizes: list[Any] = [size for each in tensors if isinstance(each, torch.Tensor) for size in each.shape]
        if func in ONES_ARE_NUMBERS:
            given: list[Any] = [size for size in args[0].shape if isinstance(size, torch.SymInt)]
            units = [*units, *(size.node.expr for size in given if self.recorder.value(size) == 1)]
        if not units or all(isinstance(size, torch.SymInt) for size in sizes):
            return
        left = [each.node.expr for each in sizes if isinstance(each, torch.SymInt)]
        for unit in dict.fromkeys(units):
            if unit.free_symbols and not any(each.has(unit) for each in left):
                self.units.append(sympy.Eq(unit, unit.xreplace(self.recorder.hints)))

    def _squeezed(self, x: torch.Tensor, axes: Any = None) -> None:
        """Code may go by the number of axes that are left."""
        which = range(x.dim()) if axes is None else axes if isinstance(axes, (list, tuple)) else (axes,)
        for size in (x.shape[axis] for axis in which):
            if isinstance(size, torch.SymInt):
                other = sympy.Ne(size.node.expr, 1)
                answer = other.xreplace(self.recorder.hints)
                self.recorder.asked.append((other, answer, place_of(sys._getframe(2))))

    def _paired(self, x: torch.Tensor) -> None:
        """Of real numbers that lie in pairs PyTorch makes complex ones: every axis has to step over pairs."""
        *steps, last = x.stride()
        where = place_of(sys._getframe(2))
        even: list[Any] = []
        for step in (*reversed(steps), x.storage_offset()):
            if isinstance(step % 2 == 0, torch.SymBool) and not any(
                (step.node.expr / inner).is_integer for inner in even
            ):
                even.append(step.node.expr)
        said = [sympy.Eq(sympy.Mod(step, 2), 0) for step in even]
        if isinstance(last, torch.SymInt):
            said.append(sympy.Eq(last.node.expr, 1))
        self.recorder.asked += [(each, sympy.true, where) for each in said if each.free_symbols]

    def _pieces(self, func: Any, args: tuple, count: int) -> None:
        """Code may go by the number of pieces alone, which is in no trace."""
        cut, where = getattr(func, "overloadpacket", None), place_of(sys._getframe(2))
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
    converting: set[str] | None = None,
    home: Home = HERE,
) -> Branches:
    """The branches that `module` takes on the device of `home` at these inputs, as conditions over the size
    variables in `dims` (one entry an axis), found in at most `seconds` of processor time for a forward: a
    busy machine must not change the answer. `converting` are modules that are known to make plain numbers of
    sizes; those found are added.

    Never raises: what could not be followed is said in `missing`."""
    known = set() if converting is None else converting
    follow = partial(_forward, module, inputs, dims, home)
    forward = follow(time.thread_time() + seconds, known)
    if forward.on_values:  # data that were made of sizes decide: taken for numbers, these are held
        forward = follow(time.thread_time() + seconds, known, spelling=False)
    if fresh := forward.recorder.converting - known:  # it would cost too much to look into every module
        again = follow(time.thread_time() + seconds, known | fresh)
        if not again.missing:
            forward = again
            known |= fresh
    recorder, symbols, missing = forward.recorder, forward.symbols, forward.missing
    if missing == TOO_LONG:
        missing = f"{TOO_LONG} than {seconds:g} s of processor time"
    found: dict[Expr, Branch] = {}
    for expression, answer, place in recorder.asked:
        try:
            assumed = condition(expression, answer, symbols)
        except Untranslatable as error:
            missing = missing or f"the condition {error} at {place} has no counterpart"
            continue
        if not assumed.is_const:
            taken = bool(getattr(answer, "is_number", type(answer) in (int, float)))
            found.setdefault(assumed, Branch(assumed, place, taken))
    units: list[Expr] = []
    for expression in forward.units:
        with suppress(Untranslatable):
            unit = condition(expression, True, symbols)
            units += [] if unit.is_const else [unit]
    seen, unsaid = _seen(forward.calls, symbols)
    missing = missing or unsaid
    seen.complete = not missing  # else numbers in it may follow sizes unseen
    return Branches(tuple(found.values()), missing, seen, tuple(dict.fromkeys(units)))


@dataclass(frozen=True)
class _Forward:
    """What one symbolic forward was asked, and what it called. `symbols`: what PyTorch's stand for;
    `on_values`: it ended where values of tensors decide; `units`: what made numbers of sizes in results."""

    recorder: Recorder
    symbols: Mapping[Any, Expr]
    calls: Sequence[Met]
    missing: str
    on_values: bool
    units: Sequence[Any] = ()


def _forward(
    module: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    dims: Mapping[str, Sequence[Expr | int]],
    home: Home,
    deadline: float,
    converting: Collection[str] = (),
    spelling: bool = True,
) -> _Forward:
    recorder = Recorder(deadline, _forward.__code__)
    symbols: dict[Any, Expr] = {}
    missing, on_values = "", False
    calls: list[Met] = []
    forward: _Calls | None = None
    try:
        with user_code("the symbolic forward"), unchanged(module), torch.no_grad():
            mode = FakeTensorMode(shape_env=recorder, allow_non_fake_inputs=True)
            mode.cache_enabled = False  # `FakeCalls` keeps what comes again; PyTorch's costs more than a call
            stand_ins = StandIns(mode, home.device)
            fakes = {
                name: stand_ins.input(_symbolic(mode, name, tensor, dims[name], symbols, recorder.hints))
                for name, tensor in inputs.items()
            }
            arguments, keywords = bound(module, fakes)
            forward = _Calls(stand_ins, recorder)
            calls = forward.calls
            # as traces are recorded: some code takes another way under a compiler
            asking = python_sizes.answered(
                recorder.value, recorder.tell, recorder.divides, lambda f: bool(line_of(f))
            )
            with (
                stand_ins.placed(module),
                asking,
                kinds.as_real(recorder.traced),
                conversions.symbolic(recorder.takes, converting),
                _compiling_state_context(),
                kinds.compiling(recorder.traced),
                mode,
                enable_python_dispatcher(),
                home.entered(),
                _Questions(recorder, forward, spelling),
                forward,
                forward.told(),
                recorder.way.followed(),
            ):
                module(*arguments, **keywords)
    except CaptureError as error:
        missing, on_values = error.message, type(error.__cause__).__name__ in ON_VALUES
    missing = missing or next(iter(recorder.refused), "")
    if not (missing or recorder.unfollowed):
        casts = forward is not None and forward.casts.made
        missing = unlike_real(module, inputs, recorder.way, home, casts)
    missing = next(iter(recorder.unfollowed), missing)
    units = forward.units if forward is not None else ()
    return _Forward(recorder, symbols, calls, missing, on_values, units)


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
                    if is_result(path):  # a size that only run time knows, and measures
                        continue
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
