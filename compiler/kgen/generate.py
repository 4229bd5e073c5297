"""A fused group comes in and the kernels for a target go out; kernels join into a translation unit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from weakref import WeakKeyDictionary

from dlcb.compiler.dtype import FLOAT16
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, ZERO
from dlcb.compiler.kgen import cpp, cpp_half, cpp_tiled, cuda, cuda_shared, prelude, variants, windows
from dlcb.compiler.kgen.coords import Layouts, Scalars, infer
from dlcb.compiler.kgen.kernel import BufferArgument, Kernel, KernelSet
from dlcb.compiler.kgen.schedule import Nest, plan
from dlcb.compiler.options import Target
from dlcb.compiler.passes.steps import Group
from dlcb.compiler.shapes.system import System

# Kernels by what they compute: the layers of a model are equal groups, and only the first costs time.
_made: WeakKeyDictionary[System, dict[tuple, tuple[Kernel, ...]]] = WeakKeyDictionary()


def generate(
    group: Group, layouts: Layouts, system: System, target: Target, static: bool = False
) -> KernelSet:
    """The kernels of `group`, whose values lie in memory as `layouts` say (row-major where they say nothing).

    With `static` the sizes are literals, and only the variants that fit them are made."""
    scalars = infer(group, layouts, system)
    nest = plan(scalars, group, system)
    anchor = group.anchor.producer
    assert anchor is not None
    known = _made.setdefault(system, {})
    key = (target, anchor.op.name, *_content(nest, scalars))
    if key not in known:
        if target.kind == "cpp":
            made = _cpp(anchor.op.name, scalars, nest, system)
        else:
            strips = windows.strips(group, layouts, system, nest)
            made = _cuda(anchor.op.name, scalars, nest, system, strips)
        known[key] = tuple(made)
    return KernelSet(group.name, tuple(_bound(kernel, scalars) for kernel in known[key]))


def _content(nest: Nest, scalars: Scalars) -> Iterable[object]:
    yield from (nest.kind, nest.rows, nest.lane, nest.inner)
    yield tuple((*e.parts, e.indices, e.value.dtype) for e in nest.elements)
    yield tuple(value.dtype for value in scalars.tensors.values())


def _bound(kernel: Kernel, scalars: Scalars) -> Kernel:
    """`kernel` with the names of this group's values."""
    names = {name: value.name for name, value in scalars.tensors.items()}
    checks = tuple(
        replace(c, label=names.get(c.label, c.label), value_name=names.get(c.value_name, c.value_name))
        for c in kernel.checks
    )
    return replace(kernel, buffers=_buffers(scalars), checks=checks)


def _cpp(operator: str, scalars: Scalars, nest: Nest, system: System) -> Iterable[Kernel]:
    kind = _cpp_kind(scalars, nest)
    lowering = kind(nest, scalars.tensors, system)
    lines = lowering.run()
    name = _content_name(operator, cpp.function("", lowering, lines))
    yield Kernel(
        name=name,
        body=cpp.function(name, lowering, lines),
        buffers=_buffers(scalars),
        parameters=tuple(lowering.parameters),
        guards=(),
        alignment=1,
        grid=(ONE, ONE, ONE),
        block=(1, 1, 1),
        shared_bytes=ZERO,
        checks=tuple(lowering.checks),
        domain=nest.domain,
    )


def _cpp_kind(scalars: Scalars, nest: Nest) -> type[cpp.Cpp]:
    if variants.crossed(nest) is not None:
        return cpp_tiled.Tiled
    return cpp_half.Half if any(b.dtype is FLOAT16 for b in _buffers(scalars)) else cpp.Cpp


def _cuda(
    operator: str, scalars: Scalars, nest: Nest, system: System, strips: Iterable[windows.Choice]
) -> Iterable[Kernel]:
    plain = [(nest, variant, guards) for variant, guards in variants.variants(nest, system)]
    # the sort is stable: of one width a strip comes first
    choices = sorted((*strips, *plain), key=lambda choice: (choice[1].index_bits, -choice[1].width))
    for chosen, variant, guards in choices:
        yield cuda_kernel(operator, scalars, chosen, system, variant, guards)


def cuda_kernel(
    operator: str,
    scalars: Scalars,
    nest: Nest,
    system: System,
    variant: variants.Variant,
    guards: tuple[Expr, ...],
) -> Kernel:
    kind = {"": cuda.Cuda, "columns": cuda_shared.Columns, "tile": cuda_shared.Tiled}[variant.shape]
    lowering = kind(nest, scalars.tensors, system, variant)
    lines = lowering.run()
    name = _content_name(operator, cuda.function("", lowering, lines), variant.suffix)
    widest = max(b.dtype.itemsize for b in _buffers(scalars))
    return Kernel(
        name=name,
        body=cuda.function(name, lowering, lines),
        buffers=_buffers(scalars),
        parameters=tuple(lowering.parameters),
        guards=guards,
        alignment=min(variants.ACCESS, variant.width * widest) if variant.width > 1 else 1,
        grid=(variants.grid(nest, variant), ONE, ONE),
        block=(variant.threads, 1, 1),
        shared_bytes=ZERO,
        checks=tuple(lowering.checks),
        domain=nest.domain,
    )


def _content_name(operator: str, text: str, suffix: str = "") -> str:
    """A name that equal kernels share, so that a unit holds each once: the anchor's operator and a digest of
    the text."""
    return f"{operator}_{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}{suffix}"


def _buffers(scalars: Scalars) -> tuple[BufferArgument, ...]:
    inputs = (BufferArgument(value.name, value.dtype, "in") for value in scalars.tensors.values())
    outputs = (BufferArgument(value.name, value.dtype, "out") for value in scalars.outputs)
    return (*inputs, *outputs)


def translation_unit(kernel_sets: Iterable[KernelSet], target: Target) -> str:
    """The source of all kernels, each distinct one once, under the target's prelude."""
    top = prelude.CPP if target.kind == "cpp" else prelude.CUDA
    bodies = dict.fromkeys(kernel.body for kernels in kernel_sets for kernel in kernels.variants)
    return "\n".join([top, *bodies])
