"""How eager PyTorch spells each operator of the intermediate representation, and a module that runs a whole
random program so: the eager side of the comparison, and what the bridge captures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dlcb.compiler.bridge.emit import from_torch, to_torch
from dlcb.compiler.dtype import DType, promote

from .program import Program, Sizes, Step, numbers

Spelled = Callable[..., torch.Tensor]


def common(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors in the type that they promote to, whatever their ranks."""
    kind = from_torch(tensors[0].dtype)
    for other in tensors[1:]:
        kind = promote(kind, from_torch(other.dtype))
    return [x.to(to_torch(kind)) for x in tensors]


def joined(function: Spelled) -> Spelled:
    return lambda *tensors, **attributes: function(*common(*tensors), **attributes)


def _floating(x: torch.Tensor) -> torch.Tensor:
    return x if x.is_floating_point() else x.float()


def _slice(x: torch.Tensor, axis: int, start: int, stop: int, step: int = 1) -> torch.Tensor:
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


def _pad(x: torch.Tensor, low: Sequence[int], high: Sequence[int], value: float = 0) -> torch.Tensor:
    amounts = [n for pair in reversed(list(zip(low, high, strict=True))) for n in pair]
    return F.pad(x, amounts, value=value)


def _flip(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    return torch.flip(x, axes)


def _prod(x: torch.Tensor, axes: Sequence[int], keepdim: bool = False) -> torch.Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keepdim)
    return x


def _over_axes(name: str) -> Spelled:
    def fold(
        x: torch.Tensor, axes: Sequence[int], keepdim: bool = False, empty: bool = False
    ) -> torch.Tensor:
        return getattr(torch, name)(x, axes, keepdim=keepdim)

    return fold


def _pool(x: torch.Tensor, rank: int, pool: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """`pool` on x seen as [rows, 1, ..] and back: ours pools whatever stands before the pooled axes."""
    rows = x.reshape(-1, 1, *x.shape[x.dim() - rank :])
    pooled = pool(rows)
    return pooled.reshape(*x.shape[: x.dim() - rank], *pooled.shape[2:])


def _max_pool(x: torch.Tensor, window: Sequence[int], **options: Any) -> torch.Tensor:
    pool = {1: F.max_pool1d, 2: F.max_pool2d}[len(window)]
    return _pool(x, len(window), lambda rows: pool(rows, window, **options))


def _avg_pool(
    x: torch.Tensor,
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> torch.Tensor:
    if len(window) == 1:
        return _pool(
            x, 1, lambda rows: F.avg_pool1d(rows, window, stride, padding, ceil_mode, count_include_pad)
        )
    return _pool(
        x, 2, lambda rows: F.avg_pool2d(rows, window, stride, padding, ceil_mode, count_include_pad, divisor)
    )


def _sum_pool(
    x: torch.Tensor,
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool = False,
) -> torch.Tensor:
    flat = len(window) == 1
    window, stride, padding = (
        (n, *given) if flat else given for n, given in ((1, window), (1, stride), (0, padding))
    )
    x = x.unsqueeze(-2) if flat else x
    total = _pool(x, 2, lambda rows: F.avg_pool2d(rows, window, stride, padding, ceil_mode, True, 1))
    return total.squeeze(-2) if flat else total


def _adaptive(x: torch.Tensor, output: Sequence[int]) -> torch.Tensor:
    pool = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d}[len(output)]
    return _pool(x, len(output), lambda rows: pool(rows, output))


def _resize(mode: str) -> Spelled:
    def resize(
        x: torch.Tensor, output: Sequence[int], align_corners: bool | None = None, scales: Any = None
    ) -> torch.Tensor:
        if scales is not None:
            return F.interpolate(x, scale_factor=scales, mode=mode, align_corners=align_corners)
        return F.interpolate(x, size=list(output), mode=mode, align_corners=align_corners)

    return resize


def _convolution(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, **options: Any
) -> torch.Tensor:
    return {3: F.conv1d, 4: F.conv2d}[x.dim()](x, w, bias, **options)


def _convolution_relu(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, *residual: torch.Tensor, **options: Any
) -> torch.Tensor:
    return torch.relu(sum(residual, F.conv2d(x, w, bias, **options)))


def _convolution_nhwc(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, relu: bool = False, **options: Any
) -> torch.Tensor:
    y = F.conv2d(_channels_first(x), _channels_first(w), bias, **options).permute(0, 2, 3, 1)
    return torch.relu(y) if relu else y


def _depthwise_nhwc(x: torch.Tensor, w: torch.Tensor, **options: Any) -> torch.Tensor:
    channels = w.shape[2]
    w = _channels_first(w.permute(2, 0, 1).unsqueeze(3))
    return F.conv2d(_channels_first(x), w, groups=channels, **options).permute(0, 2, 3, 1)


def _channels_first(images: torch.Tensor) -> torch.Tensor:
    """In memory of that order: PyTorch on the CPU misreads some images of one channel in the other."""
    return images.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)


def _layer_norm(x: torch.Tensor, *parameters: torch.Tensor, dims: int, eps: float) -> torch.Tensor:
    return F.layer_norm(x, x.shape[x.dim() - dims :], *parameters, eps=eps)


def _rms_norm(x: torch.Tensor, *parameters: torch.Tensor, dims: int, eps: float) -> torch.Tensor:
    return F.rms_norm(x, x.shape[x.dim() - dims :], *parameters, eps=eps)


def _batch_norm(
    x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, *affine: torch.Tensor, eps: float
) -> torch.Tensor:
    return F.batch_norm(x, mean, variance, *affine, training=False, eps=eps)


def _group_norm(x: torch.Tensor, *affine: torch.Tensor, groups: int, eps: float) -> torch.Tensor:
    return F.group_norm(x, groups, *affine, eps=eps)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, is_causal=causal)


def _advanced_index(x: torch.Tensor, *indices: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    chosen = dict(zip(axes, indices, strict=True))
    return x[tuple(chosen.get(axis, slice(None)) for axis in range(max(axes) + 1))]


def _arange(start: int, stop: int, step: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(start, stop, step, dtype=dtype)


_BY_NAME = [
    "neg",
    "abs",
    "sign",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "erf",
    "floor",
    "ceil",
    "trunc",
    "round",
    "isnan",
    "isinf",
    "logical_not",
    "bitwise_not",
    "reciprocal",
    "relu",
    "sigmoid",
    "logical_and",
    "logical_or",
    "logical_xor",
]
_JOINED = [
    "add",
    "sub",
    "mul",
    "fmod",
    "pow",
    "minimum",
    "maximum",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "matmul",
]

SPELLED: dict[str, Spelled] = {
    **{name: getattr(torch, name) for name in _BY_NAME},
    **{name: joined(getattr(torch, name)) for name in _JOINED},
    "contiguous": torch.Tensor.contiguous,
    "silu": F.silu,
    "gelu": F.gelu,
    "cast": lambda x, dtype: x.to(dtype),
    "div": joined(torch.div),
    "atan2": joined(torch.atan2),
    "floordiv": joined(torch.floor_divide),
    "mod": joined(torch.remainder),
    "where": lambda condition, yes, no: torch.where(condition, *common(yes, no)),
    "reshape": lambda x, shape: x.reshape(shape),
    "permute": lambda x, order: x.permute(order),
    "expand": lambda x, shape: x.expand(shape),
    "slice": _slice,
    "select": lambda x, axis, index: x.select(axis, index),
    "concat": lambda *xs, axis: torch.cat(common(*xs), axis),
    "pad": _pad,
    "flip": _flip,
    "repeat": lambda x, counts: x.repeat(counts),
    "roll": lambda x, axis, shift: torch.roll(x, shift, axis),
    "windows": lambda x, axis, size, step, dilation: x.unfold(axis, dilation * (size - 1) + 1, step)[
        ..., ::dilation
    ],
    "diagonal": lambda x, offset: x.diagonal(offset, -2, -1),
    "tril": torch.tril,
    "triu": torch.triu,
    "upsample_nearest": _resize("nearest"),
    "upsample_bilinear": _resize("bilinear"),
    "full": lambda shape, value, dtype: torch.full(shape, value, dtype=dtype),
    "arange": _arange,
    "eye": lambda rows, columns, dtype: torch.eye(rows, columns, dtype=dtype),
    "sum": _over_axes("sum"),
    "prod": _prod,
    "any": _over_axes("any"),
    "all": _over_axes("all"),
    "max": _over_axes("amax"),
    "min": _over_axes("amin"),
    "max_pool": _max_pool,
    "sum_pool": _sum_pool,
    "avg_pool": _avg_pool,
    "adaptive_avg_pool": _adaptive,
    "mean": lambda x, axes, keepdim=False: torch.mean(_floating(x), axes, keepdim=keepdim),
    "var": lambda x, axes, keepdim=False, correction=1: torch.var(
        x, axes, keepdim=keepdim, correction=correction
    ),
    "argmax": lambda x, axis, keepdim=False: torch.argmax(x, axis, keepdim=keepdim),
    "argmin": lambda x, axis, keepdim=False: torch.argmin(x, axis, keepdim=keepdim),
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "attention": _attention,
    "take_along": lambda x, index, axis: torch.take_along_dim(x, index.long(), axis),
    "embedding": lambda table, ids: F.embedding(ids, table),
    "gather": lambda x, index, axis: torch.gather(x, axis, index.long()),
    "index_select": lambda x, index, axis: torch.index_select(x, axis, index),
    "advanced_index": _advanced_index,
    "one_hot": lambda ids, classes: F.one_hot(ids.long(), classes),
    "linear": F.linear,
    "convolution": _convolution,
    "convolution_nhwc": _convolution_nhwc,
    "convolution_relu": _convolution_relu,
    "depthwise_nhwc": _depthwise_nhwc,
    "cumsum": torch.cumsum,
}


def run(program: Program, tensors: Mapping[str, torch.Tensor], sizes: Sizes) -> list[torch.Tensor]:
    """The program's outputs by eager PyTorch, from its inputs and parameters by name."""
    values = dict(tensors)
    for each in program.steps:
        values[each.name] = step(each, [values[name] for name in each.operands], sizes)
    return [values[name] for name in program.outputs]


def step(each: Step, operands: Sequence[torch.Tensor], sizes: Sizes) -> torch.Tensor:
    """One operator of a program by eager PyTorch."""
    attributes = {name: _attribute(value, sizes) for name, value in each.attributes.items()}
    return SPELLED[each.op](*operands, **attributes)


def _attribute(value: Any, sizes: Sizes) -> Any:
    return to_torch(value) if isinstance(value, DType) else numbers(value, sizes)


class Spelt(nn.Module):
    """A random program as a PyTorch module. Sizes are read from the inputs."""

    def __init__(self, program: Program, parameters: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.program = program
        for name, tensor in parameters.items():
            self.register_buffer(name, tensor)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = {x.name: tensor for x, tensor in zip(self.program.given, tensors, strict=True)}
        sizes: dict[str, Any] = {}
        for x in self.program.given:
            for dim, extent in zip(x.shape, given[x.name].shape, strict=True):
                if dim.op == "size":
                    sizes.setdefault(dim.value, extent)
        return tuple(run(self.program, {**dict(self.named_buffers()), **given}, sizes))
