"""Dims that cannot move freely: those that the program takes at one size alone, those that move only with
others, and those whose change makes another program."""

from __future__ import annotations

from dlcb.compiler.bridge.aligned import Disagreement
from dlcb.compiler.bridge.probes import Bindings, FreeDim
from dlcb.compiler.bridge.relations import followers
from dlcb.compiler.bridge.scope import Scope
from dlcb.compiler.errors import CaptureError, CompilerError, ShapeError
from dlcb.compiler.expr.node import equal
from dlcb.compiler.shapes.system import Provenance


def hold_unmoved(scope: Scope, first: Bindings) -> None:
    """No second trace was possible: every dim that accepts no other size, alone or with others, is
    held."""
    led = relate(scope, first)
    for dim in scope.free:
        if dim.name in led or not _is_stuck(scope, first, dim):
            continue
        if (other := scope.prober.partner(first, dim.name)) is not None:
            _tie(scope, first, dim.name, other)
        elif not _leads(scope, first, dim):
            branched = any(dim.symbol in branch.condition.free for branch in scope.kept)
            # of a dim that is held otherwise another size may be what this one needs to move
            others_held = any(not limit.refused for limit in scope.limits.values())
            why, final = _refusal(scope, first, dim)
            scope.hold(dim.name, first[dim.name], why, refused=final and not (branched or others_held))


def hold_culprits(scope: Scope, first: Bindings, error: CompilerError) -> None:
    """Holds each dim that, changed alone, makes the traces disagree; all of them where none does so
    alone."""
    why = Provenance(error.node or "the graph", error.source_line, error.message)
    moving = [dim for dim in scope.free if dim.name not in scope.limits]
    culprits = [dim for dim in moving if _disagrees(scope, first, dim)] or moving
    if not culprits:
        raise CaptureError(
            f"traces of it are not one program: {error.message}",
            stage=error.stage,
            node=error.node,
            source_line=error.source_line,
        ) from error
    for dim in culprits:
        scope.hold(dim.name, first[dim.name], why, refused=False)


def relate(scope: Scope, first: Bindings) -> set[str]:
    """Dims that cannot change alone, but with others, follow those: a total its parts, an axis its twin.
    Gives those that lead, or move with others otherwise. Where a part is the same for neighbouring totals, as
    of a division, the shape rules say what they need."""
    stuck = {dim.name for dim in scope.free if _is_stuck(scope, first, dim)}
    moves: dict[str, Bindings] = {
        dim.name: found
        for dim in scope.free
        if dim.name in stuck and (found := scope.prober.response(first, dim.name, stuck)) is not None
    }
    if left := stuck - {name for sizes in moves.values() for name in sizes if sizes[name] != first[name]}:
        moves |= _moving_others(scope, first, left)
    following = followers(first, moves)
    leading = {symbol.value for value in following.values() for symbol in value.free}
    unsettled = {dim.name for dim in scope.free} - scope.limits.keys() - scope.prober.tied.keys()
    for name in sorted(stuck - following.keys() - leading):  # in no way that is known: where it was seen to
        sizes: Bindings | None = moves.get(name) or scope.prober.response(first, name, unsettled)
        if sizes is not None and scope.allowed(sizes) and _moves_others(name, first, sizes):
            scope.joined.append(dict(sizes))
            leading.add(name)
    for name, value in following.items():
        if value.op == "size":
            _tie(scope, first, name, value.value)
        else:
            scope.prober.tied[name] = value
            at_one = {**first, name: 1}
            if scope.prober.accepts(at_one):
                scope.joined.append(at_one)
            elif not any(scope.prober.accepts({**first, name: first[name] + step}) for step in (1, -1)):
                scope.ties.append(equal(scope.symbol(name), value))
    return leading


def _moves_others(name: str, first: Bindings, sizes: Bindings) -> bool:
    return any(sizes[other] != own for other, own in first.items() if other != name)


def _moving_others(scope: Scope, first: Bindings, stuck: set[str]) -> dict[str, Bindings]:
    """Other values of dims that move a little by themselves, and further where those of `stuck` do: a total,
    of which a part is the same for its neighbours."""
    moves: dict[str, Bindings] = {}
    for dim in scope.free:
        if dim.name in stuck or dim.name in scope.limits or dim.name in scope.prober.tied:
            continue
        found = scope.prober.response(first, dim.name, stuck)
        if found is not None and any(found[name] != first[name] for name in stuck):
            moves[dim.name] = found
    return moves


def _is_stuck(scope: Scope, first: Bindings, dim: FreeDim) -> bool:
    settled = dim.name in scope.limits or dim.name in scope.prober.tied
    return not settled and scope.prober.varied(first, dim.name, scope.allowed) is None


def _leads(scope: Scope, first: Bindings, dim: FreeDim) -> bool:
    """Whether a later dim has to change with this one; that dim is tied when its turn comes."""
    later = scope.free[list(scope.free).index(dim) + 1 :]
    return any(scope.prober.partner(first, other.name) == dim.name for other in later)


def _tie(scope: Scope, first: Bindings, name: str, other: str) -> None:
    """Two dims that the program takes only when they are equal are one size with two names, unless it
    takes either of them at 1 as well: then they broadcast, and the shape rules say what they need."""
    scope.prober.tied[name] = scope.symbol(other)
    at_one = [{**first, dim: 1} for dim in (name, other)]
    if all(map(scope.prober.accepts, at_one)):
        scope.joined += [sizes for sizes in at_one if sizes != first]
    else:
        scope.ties.append(equal(scope.symbol(name), scope.symbol(other)))


def _refusal(scope: Scope, first: Bindings, dim: FreeDim) -> tuple[Provenance, bool]:
    """What the program said when this dim alone was changed, and whether it says so when it is run as
    well: a branch on what only run time knows ends a trace."""
    for key, outcome in scope.prober.programs.items():
        sizes = dict(key)
        only = all(sizes[name] == size for name, size in first.items() if name != dim.name)
        if isinstance(outcome, CaptureError) and only and sizes[dim.name] != first[dim.name]:
            why = f"refuses {dim.name} = {sizes[dim.name]}: {outcome.message}"
            final = not scope.prober.runs(sizes)
            return Provenance("the program", outcome.source_line, why), final
    return Provenance("the program", "", f"accepts no other size of '{dim.name}' that was tried"), True


def _disagrees(scope: Scope, first: Bindings, dim: FreeDim) -> bool:
    varied = scope.prober.varied(first, dim.name, scope.allowed)
    if varied is None:
        return False
    try:
        scope.lower([first, varied], scope.kept)
    except (Disagreement, ShapeError):
        return True
    return False
