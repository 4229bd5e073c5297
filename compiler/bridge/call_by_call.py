"""What others compile, run call by call: TorchScript's modules, as `torch.jit.load` gives them, and what
torch.compile has wrapped. So they are programs like any other, and no request waits for another compiler."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import Parameter, Signature
from typing import Any

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
