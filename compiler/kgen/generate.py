"""Generate a group's kernels for a target, and join kernels into a translation unit that its compiler takes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, ZERO
from dlcb.compiler.kgen import cpp, cuda, prelude
from dlcb.compiler.kgen.coords import Layouts, Scalars, infer
from dlcb.compiler.kgen.kernel import BufferArgument, Kernel, KernelSet
from dlcb.compiler.kgen.schedule import Nest, plan
from dlcb.compiler.options import Target
from dlcb.compiler.passes.steps import Group
from dlcb.compiler.shapes.system import System


def generate(
    group: Group, layouts: Layouts, system: System, target: Target, static: bool = False
) -> KernelSet:
    """The kernels of `group`, whose values lie in memory as `layouts` say (row-major where they say nothing).

    With `static` every size is a literal and only the variant for these sizes is made."""
    scalars = infer(group, layouts, system)
    nest = plan(scalars, group, system)
    if target.kind == "cpp":
        return KernelSet(group.name, (_cpp(group, scalars, nest, system),))
    return KernelSet(group.name, tuple(_cuda(group, scalars, nest, system, *v) for v in cuda.variants(nest, system)))


def _cpp(group: Group, scalars: Scalars, nest: Nest, system: System) -> Kernel:
    lowering = cpp.Cpp(nest, scalars.tensors, system)
    lines = lowering.run()
    name = content_name(group, cpp.function("", lowering, lines, nest.elements))
    return Kernel(
        name=name,
        body=cpp.function(name, lowering, lines, nest.elements),
        buffers=buffers(scalars),
        parameters=tuple(lowering.parameters),
        guards=(),
        alignment=1,
        grid=(ONE, ONE, ONE),
        block=(1, 1, 1),
        shared_bytes=ZERO,
        checks=tuple(lowering.checks),
        domain=nest.domain,
    )


def _cuda(
    group: Group, scalars: Scalars, nest: Nest, system: System, variant: cuda.Variant, guards: tuple[Expr, ...]
) -> Kernel:
    lowering = cuda.Cuda(nest, scalars.tensors, system, variant)
    lines = lowering.run()
    name = content_name(group, cuda.function("", lowering, lines, nest.elements), variant.suffix)
    widest = max(b.dtype.itemsize for b in buffers(scalars))
    return Kernel(
        name=name,
        body=cuda.function(name, lowering, lines, nest.elements),
        buffers=buffers(scalars),
        parameters=tuple(lowering.parameters),
        guards=guards,
        alignment=min(16, variant.width * widest) if variant.width > 1 else 1,
        grid=(cuda.grid(nest, variant, system), ONE, ONE),
        block=(cuda.THREADS, 1, 1),
        shared_bytes=ZERO,
        checks=tuple(lowering.checks),
        domain=nest.domain,
    )


def content_name(group: Group, text: str, suffix: str = "") -> str:
    """A name that equal kernels share, so that a unit holds each once: the anchor's operator and a digest of the text."""
    assert group.anchor.producer is not None
    digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    return f"{group.anchor.producer.op.name}_{digest}{suffix}"


def buffers(scalars: Scalars) -> tuple[BufferArgument, ...]:
    inputs = (BufferArgument(value.name, value.dtype, "in") for value in scalars.tensors.values())
    outputs = (BufferArgument(e.value.name, e.value.dtype, "out") for e in scalars.elements)
    return (*inputs, *outputs)


def translation_unit(kernel_sets: Iterable[KernelSet], target: Target) -> str:
    """The source of all kernels, each distinct one once, under the target's prelude."""
    top = prelude.CPP if target.kind == "cpp" else prelude.CUDA
    bodies = dict.fromkeys(kernel.body for kernels in kernel_sets for kernel in kernels.variants)
    return "\n".join([top, *bodies])
