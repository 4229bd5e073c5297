"""A fused group comes in and the kernels for a target go out; kernels join into a translation unit."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from weakref import WeakKeyDictionary

from dlcb.compiler.dtype import FLOAT16
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, ZERO, where
from dlcb.compiler.kgen import (
    cpp,
    cpp_half,
    cpp_tiled,
    cuda,
    cuda_columns,
    cuda_rows,
    cuda_tiled,
    cut,
    interleaved,
    parted,
    prelude,
    split,
    variants,
    windows,
)
from dlcb.compiler.kgen.alike import structure
from dlcb.compiler.kgen.coords import Layouts, Scalars, infer, names
from dlcb.compiler.kgen.kernel import BufferArgument, Kernel, KernelSet, Workspace
from dlcb.compiler.kgen.lower import Lowering
from dlcb.compiler.kgen.schedule import Nest, plan
from dlcb.compiler.options import Target
from dlcb.compiler.passes.steps import Group
from dlcb.compiler.shapes.system import System

# Kernels by the structure of their group and by what they compute: the layers of a model are equal groups,
# and only the first costs time.
_made: WeakKeyDictionary[System, dict[Hashable, KernelSet]] = WeakKeyDictionary()


def generate(
    group: Group, layouts: Layouts, system: System, target: Target, static: bool = False
) -> KernelSet:
    """The kernels of `group`, whose values lie in memory as `layouts` say (row-major where they say nothing).

    With `static` the sizes are literals, and only the variants that fit them are made."""
    return _bound(of_kind(group, layouts, system, target), group)


def of_kind(group: Group, layouts: Layouts, system: System, target: Target) -> KernelSet:
    """The kernels of all groups that are equal to this one, over buffers that are called in0, in1 ...,
    out0, out1 ..., partial0 ..."""
    known, alike = kinds(system), kind(group, layouts, target)
    if alike not in known:
        scalars = infer(group, layouts, system)
        nest = plan(scalars, group, system)
        if target.kind == "cpp":
            scalars, nest = interleaved.written_out(group, layouts, system, scalars, nest)
        key = (target, group.anchor.made_by.op.name, *_content(nest, scalars))
        if key not in known:
            known[key] = _kernels(group, layouts, scalars, nest, system, target)
        known[alike] = known[key]
    return known[alike]


def kind(group: Group, layouts: Layouts, target: Target) -> Hashable:
    """What groups have in common that have the same kernels."""
    return target, structure(group, layouts)


def kinds(system: System) -> dict[Hashable, KernelSet]:
    """What `of_kind` has made, by kind; what another process has made may be put there."""
    return _made.setdefault(system, {})


def _kernels(
    group: Group, layouts: Layouts, scalars: Scalars, nest: Nest, system: System, target: Target
) -> KernelSet:
    operator = group.anchor.made_by.op.name
    if target.kind == "cpp":
        return KernelSet("", tuple(_cpp(operator, scalars, parted.parted(nest, system), system)))
    if _runs_once(group) and not variants.narrow_guards(nest, system):
        plain = [(nest, variants.Variant(), ())]
        return KernelSet("", tuple(_cuda(operator, scalars, plain, system)))
    # the sort is stable: of one width a strip comes first
    choices = [*windows.strips(group, layouts, system, nest), *variants.choose(nest, system)]
    choices.sort(key=lambda choice: (choice[1].index_bits, -choice[1].width))
    return _with_split(operator, scalars, nest, system, tuple(_cuda(operator, scalars, choices, system)))


def _runs_once(group: Group) -> bool:
    """Does it depend on parameters alone? Then it runs when a model is loaded, and the least text is best."""
    stack, seen = list(group.inputs), set(group.inputs)
    while stack:
        value = stack.pop()
        if value.kind == "input" or any(not size.is_const for size in value.shape):
            return False
        before = [v for v in value.producer.inputs if v not in seen] if value.producer is not None else []
        stack += before
        seen.update(before)
    return True


def _with_split(
    operator: str, scalars: Scalars, nest: Nest, system: System, whole: tuple[Kernel, ...]
) -> KernelSet:
    """The kernels of `nest`, and the two halves of it for sizes at which it is split."""
    halves = split.split(nest, system)
    if halves is None:
        return KernelSet("", whole)
    condition, names = halves.condition, {f"out{k}": v.name for k, v in enumerate(halves.partials)}
    before = [
        replace(kernel, buffers=_renamed(kernel.buffers, names), domain=where(condition, kernel.domain, 0))
        for kernel in _cuda(operator, scalars, halves.first, system)
    ]
    both = replace(scalars, tensors=scalars.tensors | {v.name: v for v in halves.partials})
    after = _cuda(operator, both, halves.second, system)
    workspaces = (Workspace(v.name, v.dtype, v.shape[0]) for v in halves.partials)
    return KernelSet("", (*after, *whole), tuple(before), tuple(workspaces))


def _renamed(buffers: Iterable[BufferArgument], names: Mapping[str, str]) -> tuple[BufferArgument, ...]:
    return tuple(replace(b, value_name=names.get(b.value_name, b.value_name)) for b in buffers)


def _content(nest: Nest, scalars: Scalars) -> Iterable[object]:
    yield from (nest.kind, nest.rows, nest.lane, nest.inner)
    yield tuple((*e.parts, e.indices, e.value.dtype) for e in nest.elements)
    yield tuple(value.dtype for value in scalars.tensors.values())


def _bound(kernels: KernelSet, group: Group) -> KernelSet:
    """`kernels` with the names of this group's values, and workspaces of its own."""
    own = {name: value.name for value, name in names(group).items()}
    own |= {f"out{k}": value.name for k, value in enumerate(group.outputs)}
    own |= {workspace.name: f"{group.name}.{workspace.name}" for workspace in kernels.workspaces}

    def bound(kernel: Kernel) -> Kernel:
        checks = tuple(replace(c, label=own[c.label], value_name=own[c.value_name]) for c in kernel.checks)
        return replace(kernel, buffers=_renamed(kernel.buffers, own), checks=checks)

    workspaces = tuple(replace(workspace, name=own[workspace.name]) for workspace in kernels.workspaces)
    made, before = tuple(map(bound, kernels.variants)), tuple(map(bound, kernels.before))
    return KernelSet(group.name, made, before, workspaces)


def _cpp(operator: str, scalars: Scalars, nest: Nest, system: System) -> Iterable[Kernel]:
    kind = _cpp_kind(scalars, nest)
    if kind is cpp.Cpp:
        nest = cut.cut(nest, system)
    lowering = kind(nest, scalars.tensors, system)
    lines = lowering.run()
    name = _content_name(operator, cpp.function("", lowering, lines))
    yield Kernel(
        name=name,
        body=cpp.function(name, lowering, lines),
        buffers=_buffers(lowering),
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
    half = any(value.dtype is FLOAT16 for value in (*scalars.tensors.values(), *scalars.outputs))
    return cpp_half.Half if half else cpp.Cpp


def _cuda(
    operator: str, scalars: Scalars, choices: Iterable[variants.Choice], system: System
) -> Iterable[Kernel]:
    for nest, variant, guards in choices:
        yield cuda_kernel(operator, scalars, nest, system, variant, guards)


def cuda_kernel(
    operator: str,
    scalars: Scalars,
    nest: Nest,
    system: System,
    variant: variants.Variant,
    guards: tuple[Expr, ...],
) -> Kernel:
    lowering = _cuda_kind(nest, variant)(nest, scalars.tensors, system, variant)
    lines = lowering.run()
    name = _content_name(operator, cuda.function("", lowering, lines), variant.suffix)
    buffers = _buffers(lowering)
    widest = max(buffer.dtype.itemsize for buffer in buffers)
    return Kernel(
        name=name,
        body=cuda.function(name, lowering, lines),
        buffers=buffers,
        parameters=tuple(lowering.parameters),
        guards=guards,
        alignment=min(variants.ACCESS, variant.width * widest) if variant.width > 1 else 1,
        grid=(variants.grid(nest, variant), ONE, ONE),
        block=(variant.threads, 1, 1),
        shared_bytes=ZERO,
        checks=tuple(lowering.checks),
        domain=nest.domain,
    )


def _cuda_kind(nest: Nest, variant: variants.Variant) -> type[cuda.Cuda]:
    if nest.kind == "row":
        return cuda_rows.Rows
    return {"": cuda.Cuda, "columns": cuda_columns.Columns, "tile": cuda_tiled.Tiled}[variant.shape]


def _content_name(operator: str, text: str, suffix: str = "") -> str:
    """A name that equal kernels share, so that a unit holds each once: the anchor's operator and a digest of
    the text."""
    return f"{operator}_{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}{suffix}"


def _buffers(lowering: Lowering) -> tuple[BufferArgument, ...]:
    return (
        *(BufferArgument(name, value.dtype, "in") for name, value in lowering.tensors.items()),
        *(BufferArgument(name, value.dtype, "out") for value, name in lowering.results.items()),
    )


def translation_unit(kernel_sets: Iterable[KernelSet], target: Target) -> str:
    """The source of all kernels, each distinct one once, under the target's prelude."""
    top = prelude.CPP if target.kind == "cpp" else prelude.CUDA
    bodies = dict.fromkeys(kernel.body for kernels in kernel_sets for kernel in kernels.kernels)
    if target.kind == "cpp" and any("fmodf(" in body for body in bodies):
        top += prelude.REMAINDERS
    return "\n".join([top, *bodies])
