"""A forward on real tensors and numbers beside a symbolic one at the same sizes: whether the user's code goes
one way in both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import _compiling_state_context
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from dlcb.compiler.bridge.agreement import without_fast_path
from dlcb.compiler.bridge.capture import bound, user_code
from dlcb.compiler.bridge.conversions import symbolic as symbolic_numbers
from dlcb.compiler.bridge.fake_calls import FakeCalls
from dlcb.compiler.bridge.indexing import ExplicitSlices
from dlcb.compiler.bridge.kinds import as_real
from dlcb.compiler.bridge.stand_ins import CPU, HERE, Home, StandIns
from dlcb.compiler.bridge.symbolic_calls import type_like
from dlcb.compiler.bridge.unchanged import unchanged
from dlcb.compiler.bridge.ways import Way, parted
from dlcb.compiler.errors import CaptureError

_WIDTH, _MOST_ELEMENTS = 1024, 1 << 18  # of inputs up to which a forward does not take long


def unlike_real(
    module: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    symbolic: Way,
    home: Home = HERE,
    casts: bool = False,
) -> str:
    """How a forward at these inputs, of tensors that say that they are at `home`, goes another way than the
    `symbolic` one, or why that is not known; "" where both are one. What the forward asks is told to whom the
    symbolic way tells. `casts`: PyTorch makes some of its own accord, by the rules for its device."""
    # what is imported and remembered at first is not met again
    for calls in (_Unreckoned, _Unreckoned, ExplicitSlices):
        way = Way(symbolic.tell, builtins=True)
        given = inputs if calls is _Unreckoned else _drawn(inputs)
        failed = _forward(module, given, way, calls(), home, casts)
        place = "" if failed else parted(symbolic, way)
        if not failed and not place:
            break
    if place:
        return f"a forward on symbolic sizes goes another way at {place}"
    return failed or ("" if way.is_whole else "the forward is too long to be followed")


class _Unreckoned(ExplicitSlices):
    """Zeros in place of products by weights, which are most of a forward's time. On fake tensors no value is
    known, so a way that depends on one is another than theirs already."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = type_like(_PRODUCTS[func], args, kwargs or {}) if func in _PRODUCTS else None
        if found is None:
            return super().__torch_function__(func, types, args, kwargs)
        return torch.zeros(found.shape, dtype=found.dtype, device=args[0].device)


_PRODUCTS = {
    functional.linear: torch.ops.aten.linear.default,
    functional.conv2d: torch.ops.aten.conv2d.default,
}


def _forward(
    module: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    way: Way,
    calls: ExplicitSlices,
    home: Home,
    casts: bool,
) -> str:
    """Follows a forward as traces are recorded, on real tensors of the CPU where that does not take long.
    What it said if it failed."""
    given = inputs
    data: AbstractContextManager = home.labelled()
    if _is_large(inputs) or (casts and home.device != CPU):
        stand_ins = StandIns(FakeTensorMode(allow_non_fake_inputs=True), home.device)
        mode = stand_ins.mode
        given = {name: stand_ins.input(mode.from_tensor(tensor)) for name, tensor in inputs.items()}
        calls, data = ExplicitSlices(), _without_data(module, stand_ins, home)
    arguments, keywords = bound(module, given)
    try:
        with (
            user_code("the forward"),
            unchanged(module),
            torch.no_grad(),
            without_fast_path(),
            as_real(),
            symbolic_numbers(_unheard),
            _compiling_state_context(),
            data,
            calls,
            way.followed(),
        ):
            module(*arguments, **keywords)
    except CaptureError as error:
        return error.message
    return ""


@contextmanager
def _without_data(module: nn.Module, stand_ins: StandIns, home: Home) -> Iterator[None]:
    """While it is entered, calls give results without data, as in a trace."""
    with (
        stand_ins.placed(module),
        stand_ins.mode,
        enable_python_dispatcher(),
        home.entered(),
        FakeCalls(stand_ins, symbolic=False),
    ):
        yield


def _unheard(frame: FrameType, said: Any) -> None:
    pass


def _is_large(inputs: Mapping[str, torch.Tensor]) -> bool:
    """Whether a forward may take long; an index stands for a row of a table."""
    rows = (x.numel() * (1 if x.is_floating_point() else _WIDTH) for x in inputs.values())
    return sum(rows) > _MOST_ELEMENTS


def _drawn(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Other values, as zeros have no inverse; indices stay what is legal."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(x.shape, generator=generator).to(x.dtype) if x.is_floating_point() else x
        for name, x in inputs.items()
    }
