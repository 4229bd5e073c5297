"""PyTorch without compilation: single ATen operators by name between compiled steps, and the whole module as
the last tier. Only names of the `aten` namespace, and of installed libraries', are accepted, with plain
arguments.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from dlcb.compiler import modules
from dlcb.compiler.bridge.agreement import as_tuple, without_fast_path
from dlcb.compiler.bridge.capture import bound
from dlcb.compiler.bridge.one_device import Arguments, called, settle
from dlcb.compiler.bridge.partition import find, is_installed
from dlcb.compiler.bridge.survived import surviving, surviving_call
from dlcb.compiler.bridge.unchanged import State
from dlcb.compiler.errors import ArtifactError, GuardError, IndexRangeError, UnsupportedOperator
from dlcb.compiler.runtime.calls import Binder
from dlcb.compiler.runtime.executor import Ran, Shapes
from dlcb.compiler.runtime.types import TORCH
from dlcb.compiler.thunks.reads import Reads, Watched, is_seen
from dlcb.compiler.thunks.thunk import Forecast

# the device's trouble, not the caller's
NOT_REFUSALS = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)
_OF_INDICES = re.compile(r"index|indices|idx|out of (bounds|range)", re.IGNORECASE)
_TARGET = re.compile(r"(?:aten|([A-Za-z_][\w.]*):\w+)\.\w+\.\w+", re.ASCII)


def refusal_words(error: Exception) -> str:
    """The first line of what PyTorch, or the user's code, said."""
    words = str(error).strip().splitlines()
    return words[0] if words else type(error).__name__


@functools.cache
def resolve(target: str) -> Callable[..., Any]:
    """The ATen operator called "aten.name.overload", or that of an installed library's,
    "module:namespace.name.overload". ArtifactError for any other name."""
    match = _TARGET.fullmatch(target)
    if match is None or (match[1] and not is_installed(match[1])):
        raise ArtifactError(
            f"'{target}' is not the name of an ATen operator, nor of an installed library's", stage="load"
        )
    try:
        return find(target)
    except (UnsupportedOperator, ImportError) as error:
        raise ArtifactError(
            f"PyTorch {torch.__version__} has no operator '{target}'", stage="load"
        ) from error


def binder(target: str, arguments: Sequence[Any], device: torch.device) -> Binder:
    """How one step of a plan binds its calls of an ATen operator; a call raises GuardError where PyTorch
    refuses its operands.

    In `arguments`, also inside tuples, "$k" is operand k, "#k" the number that it holds, "dtype:float32" an
    element type, "complex:1j" a complex number and "device" the device we run on; a trailing ("name=", value)
    is a keyword argument.
    """
    call = surviving_call(resolve(target))
    keywords = {argument[0][:-1]: argument[1] for argument in arguments if _is_keyword(argument)}
    positional = [argument for argument in arguments if not _is_keyword(argument)]
    fixed = {name: _decoded(value, (), device) for name, value in keywords.items() if not _reads(value)}
    values = [value if _reads(value) else _decoded(value, (), device) for value in positional]
    read = [(place, value) for place, value in enumerate(positional) if _reads(value)]
    named = [(name, value) for name, value in keywords.items() if _reads(value)]

    def bind(operands: Sequence[torch.Tensor], out: torch.Tensor | None) -> Callable[[], Any]:
        given, by_name = list(values), dict(fixed)
        for place, value in read:
            given[place] = _decoded(value, operands, device)
        for name, value in named:
            by_name[name] = _decoded(value, operands, device)
        return partial(_run, target, partial(call, *given, **by_name))

    return bind


def _run(target: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except NOT_REFUSALS:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        raise GuardError(f"{target} refuses: {refusal_words(error)}", stage="eager call") from error


def _reads(value: Any) -> bool:
    """Whether an argument is, or holds, an operand."""
    if isinstance(value, str):
        return value.startswith(("$", "#"))
    return isinstance(value, tuple | list) and any(map(_reads, value))


def _decoded(value: Any, operands: Sequence[torch.Tensor], device: torch.device) -> Any:
    if isinstance(value, str):
        if value.startswith("$"):
            return operands[int(value[1:])]
        if value.startswith("#"):
            return operands[int(value[1:])].item()
        if value.startswith("dtype:"):
            return TORCH[value.removeprefix("dtype:")]
        if value.startswith("complex:"):
            return complex(value.removeprefix("complex:"))
        return device if value == "device" else value
    if isinstance(value, tuple | list):
        return [_decoded(item, operands, device) for item in value]
    return value


def _is_keyword(argument: Any) -> bool:
    if not isinstance(argument, tuple | list) or len(argument) != 2:
        return False
    return isinstance(argument[0], str) and argument[0].endswith("=")


class EagerThunk:
    """The user's module as PyTorch runs it, made by `load` when it is first needed: it costs the module's
    memory. What a forward leaves in the module is put back: no answer depends on the requests before it.

    It lives on `device`; inputs on another device are brought there and outputs back. `check` is asked, after
    a forward that has loaded files of the user's, whether its answer may be given. `watched`: no operator
    reads through a bad index, which on CUDA, where it is so by default, would end the process.
    """

    tier = "eager"

    def __init__(
        self,
        load: Callable[[], torch.nn.Module],
        names: Sequence[str],
        device: torch.device,
        check: Callable[[], None] = lambda: None,
        watched: bool | None = None,
    ) -> None:
        self._load, self._names, self._device = load, tuple(names), device
        self._watched = device.type == "cuda" if watched is None else watched
        self._check, self._checked = check, -1  # files that were loaded when all was as it should be
        self._seen = False  # whether Python makes all calls of the module
        self._surviving: AbstractContextManager[Any] = nullcontext()
        self._module: torch.nn.Module | None = None
        self._state: State | None = None  # the module's, as it was loaded

    @property
    def module(self) -> torch.nn.Module:
        if self._module is None:
            self._module = settle(self._load(), self._device)
            self._state = State(self._module)
            self._seen = is_seen(self._module)
            self._surviving = surviving(self._module)
        return self._module

    def run(self, inputs: Sequence[torch.Tensor]) -> Ran:
        """GuardError with PyTorch's own words where it refuses these inputs, of which the module gets copies:
        it may write to them. IndexRangeError where one of them, or what is made of them, is a bad index."""
        module = self.module
        here: dict[str, torch.Tensor] = {}

        def arguments() -> Arguments:
            copies = (tensor.to(self._device, copy=True) for tensor in inputs)
            here.update(zip(self._names, copies, strict=True))
            return bound(module, here)

        def forward(reads: AbstractContextManager[Any]) -> tuple[torch.Tensor, ...]:
            with without_fast_path(), self._surviving, reads:
                return as_tuple(called(module, self._device, arguments))

        def name_index() -> None:
            self._restore()
            naming = Reads(here, at_once=True)
            try:
                forward(naming)
            finally:
                if naming.found is not None:
                    raise naming.found

        reads = Reads(here) if self._watched else None
        seed = torch.initial_seed()
        try:
            try:
                made = forward(self._within(reads))
            except NOT_REFUSALS:
                raise
            except Exception as error:
                bad = reads is not None and reads.any_bad()
                if not bad and not _OF_INDICES.search(str(error)):
                    raise
                name_index()  # if it was one
                raise
            if reads is not None and reads.any_bad():
                name_index()
                raise GuardError("an index lies outside of the axis that it reads", stage="eager")
        except (IndexRangeError, *NOT_REFUSALS):
            raise
        except Exception as error:  # the user's code may raise anything
            shapes = ", ".join(
                f"'{name}' {list(tensor.shape)}" for name, tensor in zip(self._names, inputs, strict=True)
            )
            raise GuardError(
                f"PyTorch refuses inputs {shapes}: {refusal_words(error)}", stage="eager"
            ) from error
        finally:
            self._restore()
            if torch.initial_seed() != seed:  # what others draw must not repeat because this module seeds
                torch.seed()
        if self._checked != (loads := modules.loads()):
            self._check()
            self._checked = loads
        place = inputs[0].device if inputs else self._device
        return Ran(tuple(tensor.to(place) for tensor in made), False)

    def _within(self, reads: Reads | None) -> AbstractContextManager[Any]:
        if reads is None:
            return nullcontext()
        return Watched(reads) if self._seen else reads

    def _restore(self) -> None:
        if self._state is not None:
            self._state.restore()

    def forecast(self, shapes: Shapes) -> Forecast:
        """Nothing is known about eager PyTorch before it runs."""
        return Forecast(self.tier, (), 0, False)
