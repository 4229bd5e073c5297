"""A fused group comes in and the kernels for a target go out; kernels join into a translation unit."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable
from dataclasses import replace
from weakref import WeakKeyDictionary

from dlcb.compiler.dtype import FLOAT16
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, ZERO
from dlcb.compiler.ir.graph import Value
from dlcb.compiler.kgen import cpp, cpp_half, cpp_tiled, cuda, cuda_shared, prelude, variants, windows
from dlcb.compiler.kgen.alike import structure
from dlcb.compiler.kgen.coords import Layouts, Scalars, infer, names
from dlcb.compiler.kgen.kernel import BufferArgument, Kernel, KernelSet
from dlcb.compiler.kgen.schedule import Nest, plan
from dlcb.compiler.options import Target
from dlcb.compiler.passes.steps import Group
from dlcb.compiler.shapes.system import System

# Kernels by the structure of their group and by what they compute: the layers of a model are equal groups,
# and only the first costs time.
_made: WeakKeyDictionary[System, dict[Hashable, tuple[Kernel, ...]]] = WeakKeyDictionary()


def generate(
    group: Group, layouts: Layouts, system: System, target: Target, static: bool = False
) -> KernelSet:
    """The kernels of `group`, whose values lie in memory as `layouts` say (row-major where they say nothing).

    With `static` the sizes are literals, and only the variants that fit them are made."""
    known = _made.setdefault(system, {})
    alike = (target, structure(group, layouts))
    if alike not in known:
        scalars = infer(group, layouts, system)
        nest = plan(scalars, group, system)
        key = (target, group.anchor.made_by.op.name, *_content(nest, scalars))
        if key not in known:
            known[key] = tuple(_kernels(group, layouts, scalars, nest, system, target))
        known[alike] = known[key]
    return KernelSet(group.name, tuple(_bound(kernel, group) for kernel in known[alike]))


def _kernels(
    group: Group, layouts: Layouts, scalars: Scalars, nest: Nest, system: System, target: Target
) -> Iterable[Kernel]:
    operator = group.anchor.made_by.op.name
    if target.kind == "cpp":
        return _cpp(operator, scalars, nest, system)
    return _cuda(operator, scalars, nest, system, windows.strips(group, layouts, system, nest))


def _content(nest: Nest, scalars: Scalars) -> Iterable[object]:
    yield from (nest.kind, nest.rows, nest.lane, nest.inner)
    yield tuple((*e.parts, e.indices, e.value.dtype) for e in nest.elements)
    yield tuple(value.dtype for value in scalars.tensors.values())


def _bound(kernel: Kernel, group: Group) -> Kernel:
    """`kernel` with the names of this group's values."""
    own = {name: value.name for value, name in names(group).items()}
    checks = tuple(replace(c, label=own[c.label], value_name=own[c.value_name]) for c in kernel.checks)
    return replace(kernel, buffers=_buffers(group.inputs, group.outputs), checks=checks)


def _cpp(operator: str, scalars: Scalars, nest: Nest, system: System) -> Iterable[Kernel]:
    kind = _cpp_kind(scalars, nest)
    lowering = kind(nest, scalars.tensors, system)
    lines = lowering.run()
    name = _content_name(operator, cpp.function("", lowering, lines))
    yield Kernel(
        name=name,
        body=cpp.function(name, lowering, lines),
        buffers=_buffers(scalars.tensors.values(), scalars.outputs),
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
    return (
        cpp_half.Half
        if any(b.dtype is FLOAT16 for b in _buffers(scalars.tensors.values(), scalars.outputs))
        else cpp.Cpp
    )


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
    widest = max(b.dtype.itemsize for b in _buffers(scalars.tensors.values(), scalars.outputs))
    return Kernel(
        name=name,
        body=cuda.function(name, lowering, lines),
        buffers=_buffers(scalars.tensors.values(), scalars.outputs),
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


def _buffers(inputs: Iterable[Value], outputs: Iterable[Value]) -> tuple[BufferArgument, ...]:
    return (
        *(BufferArgument(value.name, value.dtype, "in") for value in inputs),
        *(BufferArgument(value.name, value.dtype, "out") for value in outputs),
    )


def translation_unit(kernel_sets: Iterable[KernelSet], target: Target) -> str:
    """The source of all kernels, each distinct one once, under the target's prelude."""
    top = prelude.CPP if target.kind == "cpp" else prelude.CUDA
    bodies = dict.fromkeys(kernel.body for kernels in kernel_sets for kernel in kernels.variants)
    return "\n".join([top, *bodies])
