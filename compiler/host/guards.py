"""What to say when a guard does not hold: the condition and its reason, where the sizes in it were read, and
for each of them the nearest value that would make it hold.
"""

from __future__ import annotations

from collections.abc import Mapping

from dlcb.compiler.errors import ContractError, GuardError, RequestError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.host.evaluator import compile_expressions
from dlcb.compiler.host.program import Guard, Program

_NEAREST_LIMIT = 4096  # sizes tried on either side


def broken(guard: Guard, program: Program, sizes: Mapping[str, int]) -> RequestError:
    """The error for a guard that does not hold at these sizes: ContractError for a declared one, GuardError
    for a derived one, with where the sizes were read and the nearest that would do."""
    places = places_of(program)
    definitions = {d.name: d.value for d in program.definitions}
    involved = roots_of(guard.condition, definitions)
    twins = _twins(guard.condition, places, definitions)
    found = ", ".join(
        f"{name} = {sizes[root]} ({places.get(name, 'found at run time')})"
        for root in involved
        for name in twins.get(root, (root,))
    ) or ", ".join(f"{free.value} is {definitions[free.value]!r} here" for free in guard.condition.free)
    nearest = _nearest(guard.condition, involved, sizes, definitions)
    advice = "".join(
        f"; nearest legal {name}: {value}" for root, value in nearest for name in twins.get(root, (root,))
    )
    why = f" ({guard.reason})" if guard.reason else ""
    kind = ContractError if guard.declared else GuardError
    return kind(f"{guard.condition!r} must hold{why}, but {found}{advice}", stage="host")


def _twins(
    condition: Expr, places: Mapping[str, str], definitions: Mapping[str, Expr]
) -> dict[str, list[str]]:
    """Of size variables what the condition calls them, where it names axes that are read by these names and
    are defined to be equal to others'."""
    twins: dict[str, list[str]] = {}
    for name in sorted(free.value for free in condition.free):
        same = definitions.get(name)
        if same is None:
            twins.setdefault(name, []).insert(0, name)
        elif same.op == "size" and same.value not in definitions and name in places:
            twins.setdefault(same.value, []).append(name)
    return twins


def places_of(program: Program) -> dict[str, str]:
    """Where each size variable is read: "axis 1 of input 'ids'"."""
    return {
        dim.value: f"axis {axis} of input '{given.name}'"
        for given in reversed(program.inputs)
        for axis, dim in reversed(tuple(enumerate(given.dims)))
        if dim.op == "size"
    }


def roots_of(e: Expr, definitions: Mapping[str, Expr]) -> list[str]:
    """The size variables that `e` depends on, through definitions, in a stable order."""
    names: dict[str, None] = {}
    for free in sorted(e.free, key=repr):
        if free.value in definitions:
            names |= dict.fromkeys(roots_of(definitions[free.value], definitions))
        else:
            names[free.value] = None
    return list(names)


def _nearest(
    condition: Expr, names: list[str], sizes: Mapping[str, int], definitions: Mapping[str, Expr]
) -> list[tuple[str, int]]:
    """For a condition that fails: each size variable that alone could mend it, with its nearest such
    value."""
    if not names:
        return []  # nothing that a caller chooses
    holds = compile_expressions([condition], names, list(definitions.items()))
    found: list[tuple[str, int]] = []
    for position, name in enumerate(names):
        numbers = [sizes[n] for n in names]
        for distance in range(1, _NEAREST_LIMIT):
            for candidate in (sizes[name] + distance, sizes[name] - distance):
                numbers[position] = candidate
                if candidate >= 0 and holds(*numbers)[0]:
                    found.append((name, candidate))
                    break
            else:
                continue
            break
    return found
