"""Sizes at which PyTorch refuses a model that our program would answer: what the load check met there becomes
conditions that hold wherever PyTorch was seen to answer, and an artifact whose program keeps to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from dlcb.compiler.artifact import Artifact
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import evaluate, size
from dlcb.compiler.host.program import Guard, Program
from dlcb.compiler.report import DimLine, GuardLine
from dlcb.compiler.signature import Dim, TensorSpec

Sizes = Mapping[str, int]
_MOST_STEPS = 16  # along one size, to the edge of what is refused


@dataclass(frozen=True)
class Refusal:
    """PyTorch refuses the model unless `condition` holds; `reason` says where and in which words. `least`: a
    size and the least that is accepted, where it is that one size alone, and nothing below was ever
    accepted."""

    condition: Expr
    reason: str
    least: tuple[str, int] | None = None


def refusals(
    refused: Sequence[tuple[Sizes, str]], accepted: Sequence[Sizes], refuses: Callable[[Sizes], bool]
) -> list[Refusal]:
    """The conditions that keep to `accepted` and exclude all of `refused` (sizes, and PyTorch's words).
    `refuses` asks PyTorch."""
    found: list[Refusal] = []
    for sizes, said in refused:
        if any(_fails(known.condition, sizes) for known in found):
            continue
        base = max(accepted, key=lambda other: sum(other.values()))
        found.append(_refusal(dict(sizes), base, said, accepted, refuses))
    return found


def too_small(
    refused: Sequence[tuple[Sizes, str]], accepted: Sequence[Sizes], refuses: Callable[[Sizes], bool]
) -> list[Refusal]:
    """As `refusals`, of sizes whose values may be at fault: only where one that is smaller than any accepted
    is refused alone, whatever the values."""
    smaller = [
        (sizes, said)
        for sizes, said in refused
        if any(all(value < other[name] for other in accepted) for name, value in sizes.items())
        and refuses(sizes)
    ]
    return [found for found in refusals(smaller, accepted, refuses) if found.least]


def _refusal(
    sizes: dict[str, int],
    base: Sizes,
    said: str,
    accepted: Sequence[Sizes],
    refuses: Callable[[Sizes], bool],
) -> Refusal:
    """As many sizes as possible are those of `base`; the others are at fault, together."""
    for name, usual in base.items():
        if sizes[name] != usual and len(_different(sizes, base)) > 1 and refuses({**sizes, name: usual}):
            sizes[name] = usual
    guilty = _different(sizes, base)
    reason = f"PyTorch refuses {', '.join(f'{name} = {sizes[name]}' for name in guilty)}: {said}"
    if len(guilty) == 1:
        (name,) = guilty
        at = sizes[name]
        edge = _edge(sizes, name, base[name], refuses)
        if edge != at:
            reason = f"PyTorch refuses {name} = {min(at, edge)} to {max(at, edge)}, at {at} with: {said}"
        low = edge + 1
        alone = edge < base[name] and all(other[name] >= low for other in accepted)
        return Refusal(_away(name, edge, base[name]), reason, (name, low) if alone else None)
    conditions = [_away(name, sizes[name], base[name]) for name in guilty]
    return Refusal(reduce(lambda a, b: a | b, conditions), reason)


def _different(sizes: Sizes, base: Sizes) -> list[str]:
    return [name for name in base if sizes[name] != base[name]]


def _edge(sizes: Sizes, name: str, usual: int, refuses: Callable[[Sizes], bool]) -> int:
    """The size nearest to `usual` up to which PyTorch goes on refusing."""
    edge, step = sizes[name], 1 if sizes[name] < usual else -1
    for _ in range(_MOST_STEPS):
        if edge + step == usual or not refuses({**sizes, name: edge + step}):
            break
        edge += step
    return edge


def _away(name: str, edge: int, usual: int) -> Expr:
    """On the usual side of the edge."""
    return size(name) >= edge + 1 if edge < usual else size(name) <= edge - 1


def _fails(condition: Expr, sizes: Sizes) -> bool:
    return not evaluate(condition, sizes)


def narrowed(artifact: Artifact, found: Sequence[Refusal]) -> Artifact:
    """The artifact with these conditions: its programs leave other sizes to PyTorch, its signature refuses
    those below a least size, its report says why."""
    guards = tuple(Guard(refusal.condition, False, refusal.reason) for refusal in found)
    least = {refusal.least[0]: (refusal.least[1], refusal.reason) for refusal in found if refusal.least}
    together = {s.value for refusal in found if not refusal.least for s in refusal.condition.free}
    signature, report = artifact.signature, artifact.report
    signature = replace(signature, inputs=tuple(_raised(spec, least) for spec in signature.inputs))
    if signature.batch and signature.batch.symbol in together:
        rows = signature.batch.symbol
        why = next(refusal.reason for refusal in found if size(rows) in refusal.condition.free)
        signature = replace(signature, batch=None, stacking={rows: why})
        report = replace(report, batching=signature.batching_lines())
    return replace(
        artifact,
        program=_guarded(artifact.program, guards) if artifact.program else None,
        others=tuple(_guarded(program, guards) for program in artifact.others),
        unmasked=artifact.unmasked and (artifact.unmasked[0], _guarded(artifact.unmasked[1], guards)),
        signature=signature,
        report=replace(
            report,
            dims=tuple(_raised_line(line, least) for line in report.dims),
            guards=(
                *report.guards,
                *(
                    GuardLine(repr(guard.condition), guard.reason, graph=number)
                    for number in range(1, 1 + len(artifact.programs))
                    for guard in guards
                ),
            ),
        ),
    )


def _guarded(program: Program, guards: tuple[Guard, ...]) -> Program:
    first, *rest = program.segments
    return replace(program, segments=(replace(first, guards=(*first.guards, *guards)), *rest))


def _raised(spec: TensorSpec, least: Mapping[str, tuple[int, str]]) -> TensorSpec:
    if spec.dims is None:
        return spec
    dims = [
        _with_least(dim, *least[dim.symbol]) if isinstance(dim, Dim) and dim.symbol in least else dim
        for dim in spec.dims
    ]
    return replace(spec, dims=tuple(dims))


def _with_least(dim: Dim, low: int, reason: str) -> Dim:
    if low <= dim.low:
        return dim
    if dim.high is None and dim.multiple == 1:
        return replace(dim, low=low, reason=reason)
    return replace(dim, low=low, reason_of_low=reason)


def _raised_line(line: DimLine, least: Mapping[str, tuple[int, str]]) -> DimLine:
    low, reason = least.get(line.size, (0, ""))
    return replace(line, low=low, reason=_also(line, reason)) if line.low < low else line


def _also(limited: DimLine, reason: str) -> str:
    """The reason for the least size, and what is said of others where there is a limit to them as well."""
    if limited.high is None and limited.multiple == 1:
        return reason
    return f"{limited.reason}; {reason}" if limited.reason else reason
