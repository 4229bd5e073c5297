"""What others compile, run call by call: TorchScript's modules, as `torch.jit.load` gives them, and what
torch.compile has wrapped. So they are programs like any other, and no request waits for another compiler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import Parameter, Signature
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn


def uncompiled() -> AbstractContextManager[None]:
    """While it is entered torch.compile's modules and functions run as they were written. On tensors without
    values what it made of them would read memory that is not there."""
    if "torch._dynamo" not in sys.modules:  # nobody has called it, and importing it takes a second
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


class Scripted(nn.Module):
    """A TorchScript module with a forward that Python can be asked about."""

    scripted: torch.jit.ScriptModule

    def __getattr__(self, name: str) -> Any:
        """What else the TorchScript module has; its methods run as its forward does."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "scripted":
                raise
        found = getattr(self.scripted, name)
        return _by_call(found) if isinstance(found, torch._C.ScriptMethod) else found


def may_ask_for_sizes(frame: FrameType) -> bool:
    """Whether TorchScript that runs from this frame may ask for more than the number of axes, for which
    PyTorch asks for all sizes, too."""
    module = frame.f_locals.get("self")
    if not isinstance(module, Scripted):
        return True
    if module not in _asking:
        _asking[module] = _asks(module.scripted)
    return _asking[module]


_asking: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def _asks(scripted: torch.jit.ScriptModule) -> bool:
    """Whether a call that gives a size is left in a forward where what is constant is."""
    try:
        graph = torch.jit.freeze(scripted, optimize_numerics=False).graph
    except (RuntimeError, AttributeError):  # it is frozen already, or cannot be
        graph = scripted.inlined_graph
    return any(f"{call}(" in str(graph) for call in _SIZES)


_SIZES = ("aten::size", "aten::sym_size", "aten::len", "aten::numel", "aten::stride", "prim::shape")


def _by_call(method: Any) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        with _interpreted():
            return method(*arguments, **keywords)

    return call


def parts_in_python(module: nn.Module) -> nn.Module:
    """`module` itself, or where it is one of TorchScript, and in place of its outermost parts that are, what
    Python can be asked about."""
    if isinstance(module, torch.jit.ScriptModule):
        return in_python(module)
    for part in list(module.modules()):
        if isinstance(part, torch.jit.ScriptModule):
            continue
        for name, child in part._modules.items():
            if isinstance(child, torch.jit.ScriptModule):
                part._modules[name] = in_python(child)
    return module


def in_python(scripted: torch.jit.ScriptModule) -> Scripted:
    """A module with the same forward, which Python can be asked about. It is neither profiled nor specialised
    to the sizes that it has met."""
    method: Any = scripted.forward
    names = [argument.name for argument in method.schema.arguments]  # `self` is the first

    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        with _interpreted():
            return self.scripted(*arguments, **keywords)

    forward.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    )
    module = type("Scripted", (Scripted,), {"forward": forward})()
    module.scripted = scripted
    return module


@contextmanager
def _interpreted() -> Iterator[None]:
    """Without what TorchScript makes of a forward at the sizes of its first calls. While PyTorch exports, it
    would call the Python class that the module was made of, which may not be there."""
    exporting = torch.compiler._is_exporting_flag
    torch.compiler._is_exporting_flag = False
    try:
        with torch.jit.optimized_execution(False):
            yield
    finally:
        torch.compiler._is_exporting_flag = exporting
