"""Inputs whose values lie where normal draws do not reach: magnitudes, infinities, NaN, zeros, ties. A
program and a model that agree at drawn values may still differ there, by a clamp or `nan_to_num` in a branch
that was not followed. Other operations are looked for, not other rounding."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence

import torch

from dlcb.compiler.bridge.agreement import Deviation, Shapes, random_inputs, relative_error
from dlcb.compiler.source import InputDeclaration, ModelSource

Tensors = Sequence[torch.Tensor]
Call = Callable[[Tensors], Tensors | None]  # None where these values are refused

_FAR = 4.0  # times eager's own error
_ROUNDED = 0.05  # of a result's norm, which one element may dominate: half types come to that


def far_deviations(
    source: ModelSource,
    shapes: Shapes,
    names: Sequence[str],
    place: torch.device | str,
    calls: tuple[Call, Call, Call],
) -> list[Deviation]:
    """Where the program gives other results than PyTorch at far values of these shapes. `calls` are the
    program, which reads every index before PyTorch does, eager PyTorch, and the model in float64. Values that
    one of them refuses say nothing, nor do results that eager itself gets wrong."""
    program, model, reference = calls
    for given in far_inputs(source, shapes, place):
        ours = program(given)
        eager = model(given) if ours is not None else None
        if ours is None or eager is None or len(ours) != len(eager):
            continue
        if all(map(_equal, ours, eager)):
            continue
        exact = reference(given)
        if exact is None or len(exact) != len(eager):
            continue
        rows = [
            Deviation(shapes, name, 0, 0, False, reason)
            for name, *row in zip(names, ours, eager, exact, strict=False)
            if (reason := _differs(*row))
        ]
        if rows:
            return rows
    return []


def far_inputs(
    source: ModelSource, shapes: Shapes, place: torch.device | str = "cpu"
) -> Iterator[list[torch.Tensor]]:
    """Tensors of these shapes for each kind of far value, drawn at `place`. What an input declares as its
    range is kept."""
    for seed, draw in enumerate((_wide, _endless, _undefined, _zero, _tied)):
        inputs = random_inputs(source, shapes, seed, place)
        for declared in source.inputs:
            generator = torch.Generator(place).manual_seed(zlib.crc32(declared.name.encode()) + seed)
            inputs[declared.name] = _drawn(draw, declared, inputs[declared.name], generator)
        yield list(inputs.values())


_ENDS = float("inf"), float("-inf")
Draw = Callable[[torch.Tensor, float, torch.Generator], torch.Tensor]


def _drawn(
    draw: Draw, declared: InputDeclaration, x: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """Integers, and floats with a declared range, reach its two ends, and no further."""
    if x.is_floating_point() and declared.values is None:
        far = torch.finfo(x.dtype).max ** 0.25  # its square, and sums of them, are no overflow
        return draw(x.float(), far, generator).to(x.dtype)
    if x.dtype is torch.bool or declared.values is None or draw is not _wide:
        return x
    low, high = declared.values
    ends = torch.tensor([low, high if x.is_floating_point() else high - 1], device=x.device).to(x.dtype)
    chosen = _uniform(x, generator)
    return torch.where(chosen < 0.5, x, ends[(chosen < 0.75).long()])


def _wide(x: torch.Tensor, far: float, generator: torch.Generator) -> torch.Tensor:
    """Of every order of magnitude from 1e-3 to 1e4, if that is not too far."""
    return x.sign() * (10 ** (_uniform(x, generator) * 7 - 3)).clamp(max=far)


def _endless(x: torch.Tensor, far: float, generator: torch.Generator) -> torch.Tensor:
    return _strewn(x, (*_ENDS, far, -far, 1 / far, 0.0), generator)


def _undefined(x: torch.Tensor, far: float, generator: torch.Generator) -> torch.Tensor:
    return _strewn(x, (float("nan"),), generator)


def _zero(x: torch.Tensor, far: float, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros_like(x)


def _tied(x: torch.Tensor, far: float, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(-4, 5, x.shape, generator=generator, device=x.device) / 2


def _strewn(x: torch.Tensor, values: Sequence[float], generator: torch.Generator) -> torch.Tensor:
    """`x` with each of the values once, as far as there are places, and with them in an eighth of these."""
    count = len(values)
    drawn = _uniform(x, generator).flatten() * 8  # below 1, it says which of the values
    table = torch.tensor(values, device=x.device)
    flat = torch.where(drawn < 1, table[(drawn * count).long().clamp(max=count - 1)], x.flatten())
    apart = flat[:: max(x.numel() // count, 1)][:count]
    apart.copy_(table[: len(apart)])
    return flat.view(x.shape)


def _uniform(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """From 0 to 1, of the shape of `x`."""
    return torch.rand(x.shape, generator=generator, device=x.device)


def _equal(ours: torch.Tensor, eager: torch.Tensor) -> bool:
    return ours.dtype == eager.dtype and ours.shape == eager.shape and relative_error(ours, eager) <= 1e-6


def _differs(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> str:
    """In words, how our result differs from eager's where that is the exact one; "" where it does not."""
    if ours.shape != eager.shape or ours.dtype != eager.dtype:
        return (
            f"expected {eager.dtype}{list(eager.shape)} as eager gives, found {ours.dtype}{list(ours.shape)}"
        )
    if eager.shape != exact.shape:
        return ""
    is_float = eager.dtype.is_floating_point
    if is_float and exact.dtype is not torch.float64:
        return ""  # the model rounds to a type that it names: how much that explains is not known
    ours, eager, exact = (x.detach().to(ours.device, torch.float64) for x in (ours, eager, exact))
    if not is_float:
        wrong, rounded = int((ours != eager).sum()), int((eager != exact).sum())
        return f"{wrong} integers differ from eager's at far values" if wrong > _FAR * rounded else ""
    known = (eager.isfinite() & exact.isfinite()) | (eager == exact) | (eager.isnan() & exact.isnan())
    error = relative_error(ours[known], exact[known])
    own = relative_error(eager[known], exact[known])
    return f"error {error:.2e} at far values, eager's own {own:.2e}" if error > _FAR * own + _ROUNDED else ""
