"""The steps of a plan that PyTorch runs: functions over a frame, the list of tensors that one run works with.
Operands are known when the plan is prepared, or only during a run; results come back in the layout that later
steps expect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dlcb.compiler.errors import GuardError
from dlcb.compiler.host.index_error import index_error
from dlcb.compiler.host.interpreter import View
from dlcb.compiler.host.program import Definition, IndexCheck
from dlcb.compiler.runtime.quick import reinterpret

Tensors = Sequence[torch.Tensor]
# operands and, where the result has memory of ours, that: gives the call itself, which returns what it made
Binder = Callable[[Tensors, torch.Tensor | None], Callable[[], Any]]
# a tensor, the slot in which a run has it, or what gives it during a run
Operand = torch.Tensor | int | Callable[[], torch.Tensor]


def as_view(base: torch.Tensor, view: View) -> torch.Tensor:
    """The view in the memory that starts where `base` does."""
    if base.shape == view.shape and base.stride() == view.strides and not view.offset:
        return base
    return reinterpret(base, view.shape, view.strides, view.offset)


def viewed(frame: list, slot: int, view: View) -> torch.Tensor:
    """A view of what lies in a slot of the frame."""
    return as_view(frame[slot], view)


def in_rows(frame: list, slot: int, view: View) -> torch.Tensor:
    """What lies in a slot of the frame in row-major order, as those expect it who know no other layout."""
    return frame[slot].contiguous()


def copied(frame: list, slot: int, view: View) -> torch.Tensor:
    """As `viewed`, in memory of its own."""
    return as_view(frame[slot], view).clone()


def cloned(parameter: torch.Tensor, frame: list, slot: int, view: View) -> torch.Tensor:
    """As `copied`, of a parameter, which lies in no slot."""
    return as_view(parameter, view).clone()


def forget(frame: list, slots: tuple[int, ...]) -> None:
    """Let go of tensors that no later step reads."""
    for slot in slots:
        frame[slot] = None


def now(frame: list, operand: Operand) -> torch.Tensor:
    """The operand's tensor in this run."""
    if isinstance(operand, int):
        return frame[operand]
    return operand if isinstance(operand, torch.Tensor) else operand()


def run_late(bind: Binder, frame: list, operands: Sequence[Operand], out: Operand | None) -> Any:
    """A call whose operands are known only during a run."""
    tensors = [now(frame, operand) for operand in operands]
    return bind(tensors, None if out is None else now(frame, out))()


def deliver(run: Callable[[], torch.Tensor], take: Callable[[torch.Tensor], None]) -> None:
    """A library call that returns memory of its own."""
    take(run())


def run_eager(
    bind: Binder,
    frame: list,
    operands: Sequence[Operand],
    accepts: Sequence[Callable[[torch.Tensor], None]],
) -> None:
    """An ATen call. It may return a view of an operand, whose memory is not its own: that is copied, unless
    it is a complex tensor's, to which nobody writes."""
    tensors = [now(frame, operand) for operand in operands]
    made = bind(tensors, None)()
    borrowed = {tensor.untyped_storage().data_ptr() for tensor in tensors if not tensor.is_complex()}
    for take, tensor in zip(accepts, [made] if isinstance(made, torch.Tensor) else made, strict=True):
        if tensor is None:  # weights of attention over nothing, which nobody reads
            continue
        take(tensor.clone() if tensor.untyped_storage().data_ptr() in borrowed else tensor)


def accept(
    frame: list,
    pointers: memoryview,
    slot: int,
    cells: Sequence[int],
    view: View,
    dtype: torch.dtype,
    contiguous: bool,
    name: str,
    tensor: torch.Tensor,
) -> None:
    """Put a returned tensor where later steps look for it, in the layout that they expect."""
    as_expected = tensor.shape == view.shape and tensor.stride() == view.strides
    if not as_expected or tensor.dtype is not dtype:
        _require(tensor, view, dtype, name)
    if tensor.is_complex():  # only PyTorch reads it
        tensor = tensor.resolve_conj().resolve_neg()
    elif contiguous:
        tensor = tensor.contiguous()
    elif not as_expected and not same_strides(view, tensor.stride()):
        laid_out = torch.empty_strided(view.shape, view.strides, dtype=tensor.dtype, device=tensor.device)
        tensor = laid_out.copy_(tensor)
    frame[slot] = tensor
    address = tensor.data_ptr()
    for cell in cells:
        pointers[cell] = address


def keep(frame: list, slot: int, view: View, dtype: torch.dtype, name: str, tensor: torch.Tensor) -> None:
    """Put a returned tensor where the caller gets it, as PyTorch laid it out: no step reads it."""
    if tensor.shape != view.shape or tensor.dtype is not dtype:
        _require(tensor, view, dtype, name)
    frame[slot] = tensor


def _require(tensor: torch.Tensor, view: View, dtype: torch.dtype, name: str) -> None:
    """GuardError where the program was made for other sizes than these, or for what PyTorch does in another
    mode: eager PyTorch serves the call."""
    found = tensor.shape
    if len(found) != len(view.shape) or any(
        wanted not in (-1, size) for wanted, size in zip(view.shape, found, strict=True)
    ):
        raise GuardError(
            f"{name} was expected to have shape {list(view.shape)}, PyTorch returned {list(found)}",
            stage="run",
        )
    if tensor.dtype is not dtype:
        raise GuardError(f"{name} was expected to be {dtype}, PyTorch returned {tensor.dtype}", stage="run")


def same_strides(view: View, strides: Sequence[int]) -> bool:
    """Whether strides address the same elements: those of axes of size 1 do not matter, nor any of an empty
    tensor."""
    return all(
        size == 1 or expected == found
        for size, expected, found in zip(view.shape, view.strides, strides, strict=True)
    )


def check_indices(
    frame: list,
    indices: Operand,
    check: IndexCheck,
    limits: tuple[int, int],
    sizes: Mapping[str, int],
    definitions: Sequence[Definition],
    ignored: int | None = None,
) -> None:
    """IndexRangeError for the first index outside `limits` that is not `ignored`, before an operator reads
    through it."""
    tensor = now(frame, indices)
    low, high = limits
    if tensor.numel() == 0:
        return
    least, most = (int(x) for x in torch.aminmax(tensor))
    if least >= low and most < high:
        return
    flat = tensor.reshape(-1)
    bad = (flat < low) | (flat >= high)
    if ignored is not None:
        bad &= flat != ignored
        if not bool(bad.any()):
            return
    position = int(bad.nonzero()[0])
    raise index_error(check, position, int(flat[position]), sizes, definitions)
