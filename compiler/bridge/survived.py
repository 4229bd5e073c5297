"""Calls that PyTorch does not survive: it reads memory that is not there, or divides by zero, and a signal
ends the process. Where a module may make such a call it is refused before, in words that say why, as PyTorch
refuses others."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode

_BAGS = ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
_RECURRENT_LAYER = "mkldnn_rnn_layer"
_MEAN, _MAX = 1, 2
_NARROW = (torch.float32, torch.float16, torch.bfloat16)


def surviving(module: nn.Module) -> AbstractContextManager[Any]:
    """What a forward of `module` on real tensors runs in."""
    return _Surviving() if _may_end_the_process(module) else nullcontext()


def surviving_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """An ATen operator that raises RuntimeError where PyTorch would end the process."""
    require = _requirement(call)
    if require is None:
        return call

    def kept(*arguments: Any, **keywords: Any) -> Any:
        require(arguments)
        return call(*arguments, **keywords)

    return kept


class _Surviving(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if require := _requirement(func):
            require(args)
        return func(*args, **(kwargs or {}))


@cache
def _requirement(func: Any) -> Callable[[Sequence[Any]], None] | None:
    """What raises RuntimeError for arguments of an operator that PyTorch does not survive; None where there
    are none such."""
    namespace, _, called = str(func).partition(".")
    name = called.partition(".")[0] if namespace == "aten" else ""
    return _require_bags if name in _BAGS else _require_steps if name == _RECURRENT_LAYER else None


def _require_bags(arguments: Sequence[Any]) -> None:
    """PyTorch 2.13 divides indices among bags also where there are none, but in its quick sums of float32 and
    narrower types; and it reads what bags are said to begin and end at."""
    table, indices, offsets = arguments[:3]
    if offsets.numel() and not offsets.is_cuda:
        least, most = (int(x) for x in torch.aminmax(offsets))
        if least < 0 or most > indices.numel():
            raise RuntimeError(
                f"embedding_bag: offsets of bags must lie in 0 to {indices.numel()}, the number of indices, "
                f"found {least if least < 0 else most}"
            )
    mode = arguments[4] if len(arguments) > 4 else 0
    last = len(arguments) > 7 and bool(arguments[7])
    padding = arguments[8] if len(arguments) > 8 else -1
    if table.is_cuda or not indices.numel() or offsets.numel() > last:
        return
    quick = table.dtype in _NARROW and table.stride(1) == 1 and (padding is None or padding < 0)
    if mode > _MEAN or not quick:
        kind = "maxima" if mode == _MAX else "sums"
        raise RuntimeError(
            f"embedding_bag: {kind} of {indices.numel()} indices in 0 bags as {table.dtype}, which PyTorch "
            f"does not survive"
        )


def _require_steps(arguments: Sequence[Any]) -> None:
    """oneDNN divides by the sizes of a recurrence in bfloat16; in other types it refuses them itself."""
    steps, rows = arguments[0].shape[:2]
    if not steps or not rows:
        raise RuntimeError(
            f"{_RECURRENT_LAYER}: {steps} steps of {rows} sequences as {arguments[0].dtype}, which PyTorch "
            f"does not survive"
        )


def _may_end_the_process(module: nn.Module) -> bool:
    for part in module.modules():
        if isinstance(part, (nn.EmbeddingBag, torch.jit.ScriptModule)):
            return True
        if isinstance(part, GraphModule):
            if any(_requirement(node.target) for node in part.graph.nodes):
                return True
        elif _mentions_bags(type(part).__module__):
            return True
    return False


@cache
def _mentions_bags(name: str) -> bool:
    """Whether the file that a class is of mentions bags; PyTorch's own are known by their class."""
    if name.split(".", maxsplit=1)[0] == "torch" or name not in sys.modules:
        return False
    try:
        return "embedding_bag" in inspect.getsource(sys.modules[name])
    except (OSError, TypeError):
        return False
