"""Holds the oracle against PyTorch, one operator at a time. Kernels and oracle read the same declaration of
an operator, so a wrong one makes both wrong alike; eager PyTorch on the same operands tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dlcb.compiler.bridge.emit import from_torch
from dlcb.compiler.errors import IndexRangeError, ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr, evaluate
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import GraphBuilder
from dlcb.compiler.ir.reference import evaluate as oracle

from . import spelling
from .program import Program, Sizes, Step

# A library may add infinities up in any order, and pads with nothing where we multiply by 0.
_OURS = ("depthwise_nhwc", "convolution_nhwc", "convolution_relu")
_SUMS = {*_OURS, *(name for name, op in ops.OPS.items() if op.kind == "contract")}
# What one operator may round, of an element and of the mean magnitude around it: sums are the worst.
_ALLOWED = {torch.float16: 2**-7, torch.bfloat16: 2**-4, torch.float32: 2**-14, torch.float64: 2**-40}


def misdeclared(program: Program, tensors: Mapping[str, torch.Tensor], sizes: Sizes) -> str:
    """The first operator of which PyTorch makes something else than its declaration says, in words; empty
    where there is none, or none up to one that PyTorch refuses."""
    values = dict(tensors)
    for step in program.steps:
        operands = [values[name] for name in step.operands]
        try:
            eager = values[step.name] = spelling.step(step, operands, sizes)
            declared = _declared(step, operands, sizes)
        except (IndexRangeError, ShapeError, RuntimeError, IndexError, ValueError, ZeroDivisionError):
            return ""
        if eager.shape != declared.shape:
            return f"{step.op}: {list(eager.shape)} in PyTorch, {list(declared.shape)} declared"
        wrong = _differs(eager, declared, max(map(_magnitude, (declared, *operands))))
        if step.op in _SUMS:
            wrong &= eager.isfinite() & declared.isfinite()
        if bool(wrong.any()):
            place = tuple(wrong.nonzero()[0].tolist())
            given = ", ".join(f"{from_torch(x.dtype)}{list(x.shape)}" for x in operands)
            count = f"{int(wrong.sum())} of {wrong.numel()} elements"
            found = f"{eager[place]} in PyTorch, {declared[place]} declared"
            return f"{step.op}({given}; {dict(step.attributes)}): {count}, at {list(place)} {found}"
    return ""


def _declared(step: Step, operands: list[torch.Tensor], sizes: Sizes) -> torch.Tensor:
    build = GraphBuilder(step.name)
    given = [build.input(f"x{k}", x.shape, from_torch(x.dtype)) for k, x in enumerate(operands)]
    attributes = {name: fixed(value, sizes) for name, value in step.attributes.items()}
    made = build.build(build.apply(ops.OPS[step.op], *given, **attributes))
    arrays = {v.name: array(x) for v, x in zip(given, operands, strict=True)}
    return torch.from_numpy(oracle(made, arrays)[0].copy())


def _differs(eager: torch.Tensor, declared: torch.Tensor, scale: float) -> torch.Tensor:
    if not eager.dtype.is_floating_point:
        return eager != declared.to(eager.dtype)
    ideal = declared.to(eager.dtype)
    finite = eager.isfinite() & ideal.isfinite()
    # A type's largest numbers may overflow on the way, in PyTorch, or in what comes out.
    large = declared.abs() > torch.finfo(eager.dtype).max / 16
    odd = eager.isfinite() & ~ideal.isfinite() & ~large
    error = (eager.double() - declared).abs()
    grain = torch.finfo(eager.dtype).smallest_normal
    return odd | finite & (error > _ALLOWED[eager.dtype] * (declared.abs() + scale) + grain)


def _magnitude(x: torch.Tensor) -> float:
    finite = x[x.isfinite()].double().abs()
    return float(finite.mean()) if finite.numel() else 0.0


def array(x: torch.Tensor) -> Any:
    """A tensor as the oracle takes it: floats in float64."""
    return (x.double() if x.is_floating_point() else x).contiguous().numpy()


def fixed(value: Any, sizes: Sizes) -> Any:
    """An attribute with its sizes as constants."""
    if isinstance(value, Expr):
        return as_expr(evaluate(value, sizes))
    return tuple(fixed(item, sizes) for item in value) if isinstance(value, tuple) else value
