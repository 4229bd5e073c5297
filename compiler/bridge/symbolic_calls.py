"""Result types of calls that PyTorch works out slowly on fake tensors, most of all with symbolic sizes: it
takes them apart, and asks its solver at each step. Here the call itself is run at the sample's sizes, without
data, to see that PyTorch takes the operands and gives a result in row-major order; of symbolic sizes the
shape is written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils._python_dispatch import _disable_current_modes

_aten = torch.ops.aten
_REFUSALS = (RuntimeError, TypeError, IndexError, ValueError)
Size = int | torch.SymInt
New = Callable[[Sequence[Size], torch.dtype, torch.device], torch.Tensor]


def result_like(
    func: Any, args: tuple, kwargs: dict[str, Any], new: New, value: Callable[[Any], Any]
) -> torch.Tensor | None:
    """The result of `func` on fake tensors, made by `new`; None where that is left to PyTorch. `value` gives
    a symbolic number's value at the sample's sizes."""
    shape = _SHAPES[func](*args) if _is_written_down(func, args, kwargs) else None
    if shape is None:
        return None
    sampled = Sampled(value)
    found = _at_sample(func, args, sampled)
    if found is None or list(found.shape) != [sampled.of(size) for size in shape]:
        return None
    ones = [type(size) is not int and sampled.of(size) == 1 for size in shape]
    if any(ones) and func not in _KEEP_ONES:  # which it takes for a number, and the user's code meets that
        if func not in ONES_ARE_NUMBERS:
            return None  # in some places
        shape = [1 if one else size for one, size in zip(ones, shape, strict=True)]
    return new(shape, found.dtype, args[0].device)


def type_like(func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor | None:
    """A tensor without data like the result of `func` on fake tensors whose sizes are numbers; None where
    that is left to PyTorch."""
    if not _is_written_down(func, args, kwargs):
        return None
    return _at_sample(func, args, Sampled(lambda number: number))


def view_like(func: Any, args: tuple, mode: FakeTensorMode) -> torch.Tensor | None:
    """The view that `func` gives of a fake tensor of `mode` whose sizes are numbers; None where that is left
    to PyTorch, so that it words refusals."""
    viewed = args[0]
    if func not in _VIEWS or type(viewed) is not FakeTensor or viewed.fake_mode is not mode:
        return None
    device = viewed.device  # in there, that without data
    try:
        with no_python_dispatcher(), in_kernel_invocation_manager(mode):
            found = func(*args)
            return FakeTensor(mode, found, device) if _is_view(found, viewed) else None
    except _REFUSALS:
        return None


def _is_view(found: torch.Tensor, viewed: torch.Tensor) -> bool:
    own = found.untyped_storage()._cdata == viewed.untyped_storage()._cdata
    return found is not viewed and own


def are_alike(a: Any, b: Any) -> bool:
    """Whether two tensors surely have one type and shape."""
    tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    if not tensors or a.dtype is not b.dtype or a.device != b.device or a.dim() != b.dim():
        return False
    return all(map(_same, a.shape, b.shape))


def new_tensor(mode: FakeTensorMode, make: Callable[[], torch.Tensor], device: torch.device) -> torch.Tensor:
    """A fake tensor of `mode` on `device` like the one without data that `make` gives; asked for one, `mode`
    goes a long way round."""
    with torch._C._DisableTorchDispatch(), no_python_dispatcher():
        return FakeTensor(mode, make(), device)


def _is_written_down(func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    places = {argument.device for argument in args if isinstance(argument, torch.Tensor)}
    return func in _SHAPES and not kwargs and len(places) == 1


def _at_sample(func: Any, args: Sequence[Any], sampled: Sampled) -> torch.Tensor | None:
    """What `func` gives at the sample's sizes, without data; None where PyTorch is to word a refusal, so with
    sizes that only run time knows, and where the result's order is not rows first."""
    with _disable_current_modes(), no_python_dispatcher():
        try:
            given = [sampled.of(argument) for argument in args]
            if func in _OF_ROWS and not all(map(_has_rows_first, given)):
                return None
            sure = _SURE[func](*given) if func in _SURE else None
            found = func(*given) if sure is None else torch.empty(sure, dtype=given[0].dtype, device="meta")
        except _REFUSALS:
            return None
    return found if found.is_contiguous() else None


class Sampled:
    """Arguments at the sample's sizes: tensors without data, and numbers."""

    def __init__(self, value: Callable[[Any], Any]) -> None:
        self._value = value

    def of(self, argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            shape, stride = self.of(list(argument.shape)), self.of(list(argument.stride()))
            return torch.empty_strided(shape, stride, dtype=argument.dtype, device="meta")
        if isinstance(argument, (list, tuple)):
            return [self.of(item) for item in argument]
        return self._value(argument) if isinstance(argument, (torch.SymInt, torch.SymFloat)) else argument


def _viewed(x: torch.Tensor, sizes: Sequence[Size]) -> list[Size] | None:
    """One size may be -1: what the others leave."""
    left = [axis for axis, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if not left:
        return list(sizes)
    others = prod(size for axis, size in enumerate(sizes) if axis not in left)
    if isinstance(others, int) and others == 0:
        return None
    shape = list(sizes)
    shape[left[0]] = x.numel() // others
    return shape


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> list[Size] | None:
    return [*x.shape[:-1], weight.shape[0]] if x.dim() > 1 and weight.dim() == 2 else None


def _matmul(a: torch.Tensor, b: torch.Tensor) -> list[Size] | None:
    """Of matrices in equal batches."""
    batched = a.dim() == b.dim() > 2 and all(map(_same, a.shape[:-2], b.shape[:-2]))
    return [*a.shape[:-1], b.shape[-1]] if batched else None


def _same(a: Size, b: Size) -> bool:
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    return type(a) is type(b) and a == b


def _like(x: torch.Tensor, *_: Any) -> list[Size]:
    return list(x.shape)


def _joined(a: torch.Tensor, b: torch.Tensor | float) -> list[Size] | None:
    """Elementwise: the sizes of one operand are the other's, or the number 1."""
    if not isinstance(b, torch.Tensor):
        return list(a.shape) if type(b) in (int, float) else None
    if a.dtype is not b.dtype or not a.dim() == b.dim() > 0:
        return None
    shape: list[Size] = []
    for one, other in zip(a.shape, b.shape, strict=True):
        if not (_same(one, other) or _same(one, 1) or _same(other, 1)):
            return None
        shape.append(other if _same(one, 1) else one)
    return shape


def _convolved(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Sequence[Size] = (1, 1),
    padding: Sequence[Size] = (0, 0),
    dilation: Sequence[Size] = (1, 1),
    groups: int = 1,
) -> list[Size] | None:
    given = (*stride, *padding, *dilation)
    if not x.dim() == weight.dim() == 4 or len(given) != 6 or any(type(each) is not int for each in given):
        return None
    if 0 in stride:
        return None
    axes = zip(x.shape[2:], padding, dilation, weight.shape[2:], stride, strict=True)
    return [x.shape[0], weight.shape[0], *(_windows(n, 2 * p - d * (k - 1), s) for n, p, d, k, s in axes)]


def _windows(size: Size, more: Size, step: Size) -> Size:
    """How many windows start in `size` and so many `more` elements."""
    return size if step == 1 and more == 0 else (size + more - 1) // step + 1


def _averaged(
    x: torch.Tensor,
    window: Sequence[Size],
    stride: Sequence[Size] = (),
    padding: Sequence[Size] = (0,),
    ceil_mode: bool = False,
    *_: Any,
) -> list[Size] | None:
    return _greatest(x, window, stride, padding, (1,), ceil_mode)


def _greatest(
    x: torch.Tensor,
    window: Sequence[Size],
    stride: Sequence[Size] = (),
    padding: Sequence[Size] = (0,),
    dilation: Sequence[Size] = (1,),
    ceil_mode: bool = False,
) -> list[Size] | None:
    """Of windows the last of which may hang over the end: PyTorch asks whether it does, which is no branch of
    the program's."""
    count = len(window)
    given = [list(each) * (count if len(each) == 1 else 1) for each in (stride or window, padding, dilation)]
    if x.dim() < count or any(len(each) != count for each in given):
        return None
    if any(type(number) is not int for each in (window, *given) for number in each) or 0 in given[0]:
        return None
    sizes: list[Size] = []
    for n, k, s, p, d in zip(x.shape[-count:], window, *given, strict=True):
        if not ceil_mode:
            sizes.append(_windows(n, 2 * p - d * (k - 1), s))
            continue
        most = (n + 2 * p - d * (k - 1) + s - 2) // s + 1
        sizes.append(most if d * (k - 1) + 1 >= s + p else torch.sym_min(most, (n + p - 1) // s + 1))
    return [*x.shape[:-count], *sizes]


def _pooled(x: torch.Tensor, sizes: Sequence[Size]) -> list[Size] | None:
    written = len(sizes) == 2 and all(type(size) is int for size in sizes)
    return [*x.shape[:2], *sizes] if x.dim() == 4 and written else None


_SHAPES: dict[Any, Callable[..., list[Size] | None]] = {
    _aten.view.default: _viewed,
    _aten.reshape.default: _viewed,
    _aten.linear.default: _linear,
    _aten.matmul.default: _matmul,
    _aten.layer_norm.default: _like,
    _aten.roll.default: _like,
    _aten.add.Tensor: _joined,
    _aten.mul.Tensor: _joined,
    _aten.conv2d.default: _convolved,
    _aten.adaptive_avg_pool2d.default: _pooled,
    **{getattr(_aten, f"avg_pool{rank}d").default: _averaged for rank in (1, 2, 3)},
    **{getattr(_aten, f"max_pool{rank}d").default: _greatest for rank in (1, 2, 3)},
}
_WINDOWED = frozenset(func for func, shape in _SHAPES.items() if shape in (_convolved, _averaged, _greatest))
_VIEWS = frozenset(
    (
        *(_aten.view.default, _aten.reshape.default, _aten.unflatten.int, _aten.transpose.int),
        *(_aten.permute.default, _aten.unsqueeze.default, _aten.squeeze.dim, _aten.select.int),
        *(_aten.slice.Tensor, _aten.expand.default, _aten.flatten.using_ints, _aten.t.default),
    )
)
_KEEP_ONES = frozenset((_aten.view.default, _aten.reshape.default, _aten.linear.default))
ONES_ARE_NUMBERS = frozenset((_aten.layer_norm.default,))  # on every axis of the result
# the order of the result is that of the operands
_OF_ROWS = _WINDOWED | {_aten.add.Tensor, _aten.mul.Tensor, _aten.adaptive_avg_pool2d.default}


def _has_rows_first(operand: Any) -> bool:
    """Of operands without data, parts of larger ones too; what is no tensor has no order."""
    if not isinstance(operand, torch.Tensor):
        return True
    least = 1
    for size, stride in zip(reversed(operand.shape), reversed(operand.stride()), strict=True):
        if stride < least:
            return False
        least = stride * max(size, 1)
    return True


# ---- calls that PyTorch takes apart in Python even without data --------------------------------------------


def _sure_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> list[int] | None:
    """The shape of a result that PyTorch surely gives; None where it has to be asked."""
    fits = x.dim() > 1 and weight.dim() == 2 and x.shape[-1] == weight.shape[1]
    fits = fits and (bias is None or bias.shape == weight.shape[:1])
    return [*x.shape[:-1], weight.shape[0]] if fits and _are_one_float(x, weight, bias) else None


def _sure_norm(
    x: torch.Tensor,
    shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *_: Any,
) -> list[int] | None:
    ends = list(x.shape[x.dim() - len(shape) :]) == list(shape) and len(shape) > 0
    fits = ends and all(each is None or list(each.shape) == list(shape) for each in (weight, bias))
    return list(x.shape) if fits and _has_rows_first(x) and _are_one_float(x, weight, bias) else None


def _sure_convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> list[int] | None:
    shape = _convolved(x, weight, bias, stride, padding, dilation, groups)
    if shape is None or min(*x.shape, *weight.shape, *shape, *stride, *dilation, groups, *padding) < 0:
        return None
    if 0 in (*x.shape, *weight.shape, *shape, *dilation, groups):
        return None
    fits = x.shape[1] == weight.shape[1] * groups and weight.shape[0] % groups == 0
    fits = fits and (bias is None or bias.shape == weight.shape[:1])
    return [int(size) for size in shape] if fits and _are_one_float(x, weight, bias) else None


def _sure_pooling(x: torch.Tensor, sizes: Sequence[int]) -> list[int] | None:
    shape = _pooled(x, sizes)
    fits = shape is not None and min(*x.shape, *sizes) > 0 and x.is_floating_point()
    return [int(size) for size in shape] if shape is not None and fits else None


def _sure_joined(a: torch.Tensor, b: torch.Tensor | float) -> list[int] | None:
    """Of one size 1 there may be several orders that are rows first."""
    shape = _joined(a, b) if isinstance(b, torch.Tensor) and a.is_floating_point() else None
    return [int(size) for size in shape] if shape is not None and min(shape) > 1 else None


def _are_one_float(x: torch.Tensor, *others: torch.Tensor | None) -> bool:
    return x.is_floating_point() and all(each is None or each.dtype is x.dtype for each in others)


_SURE: dict[Any, Callable[..., list[int] | None]] = {
    _aten.linear.default: _sure_linear,
    _aten.layer_norm.default: _sure_norm,
    _aten.conv2d.default: _sure_convolution,
    _aten.adaptive_avg_pool2d.default: _sure_pooling,
    _aten.add.Tensor: _sure_joined,
    _aten.mul.Tensor: _sure_joined,
}
