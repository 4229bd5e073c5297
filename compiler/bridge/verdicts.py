"""What became of every input dim: free or pinned, its range and divisibility, why, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dlcb.compiler.bridge.probes import FreeDim
from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import evaluate
from dlcb.compiler.shapes.system import Guard, Provenance, System

PROVEN = "proven"
AS_FAR_AS_SHOWN = "as far as the graph shows"
BY_SHAPE = "confirmed shape by shape"  # what eager PyTorch gives there was seen to be the same
_READABLE = 60  # letters of a condition
_PROBED = 1 << 21  # sizes above are taken to be allowed when this one is
_SCANNED = 1 << 12  # the least legal size is looked for below


@dataclass(frozen=True)
class DimVerdict:
    """One axis of one input. `size` is the size variable's name, or the integer that the dim is pinned to;
    `low` to `high` (None: unbounded) and `multiple` say which sizes the graph serves. `beyond` says what
    becomes of others: "refused", or "eager" where the program may take them. `certainty`: "proven", "as
    far as the graph shows", "confirmed shape by shape"."""

    input: str
    axis: int
    size: str | int
    low: int
    high: int | None
    multiple: int
    reason: str
    source: str
    beyond: str
    certainty: str
    symbol: str = ""  # the size variable that the dim started as; "" where its size was declared

    def __str__(self) -> str:
        place = f"{self.input}[{self.axis}]"
        if isinstance(self.size, int):
            what = f"pinned to {self.size}"
        else:
            what = f"free as {self.size}, {self.low} to {'any' if self.high is None else self.high}"
            what += f", a multiple of {self.multiple}" if self.multiple > 1 else ""
        why = f": {self.reason}" if self.reason else ""
        line = f" ({self.source})" if self.source else ""
        return f"{place} {what}{why}{line} [{self.certainty}]"


def judge(
    system: System,
    dims: Mapping[str, Sequence[Expr | int]],
    free: Sequence[FreeDim],
    certainty: str,
    limited: Callable[[str], bool],
) -> tuple[DimVerdict, ...]:
    """The verdict for every axis of every input. Raises ShapeError where the program itself pins a dim
    that the user declared free. `limited(name)`: sizes beyond the range may still be right for the
    program."""
    solution = system.solve()
    by_name = {dim.name: dim for dim in free}
    found: dict[str, tuple] = {}
    for name, dim in by_name.items():
        verdict = solution.verdicts[name]
        if verdict.kind == "literal":
            size = verdict.value.value
            if dim.declared and not limited(name):
                _refuse(dim, f"{size} only", verdict.reason)
            found[name] = (size, size, size, 1, _words(verdict.reason), verdict.reason.source)
            continue
        finite = next((guard for guard in solution.guards if _is_product(guard.condition, dim.symbol)), None)
        if finite is not None and dim.declared:
            _refuse(dim, f"{finite.condition!r} only", finite.why)
        found[name] = (name, *_range(dim.symbol, solution.guards, system.divisor(dim.symbol)))
    result = []
    for input_name, sizes in dims.items():
        for axis, size in enumerate(sizes):
            if isinstance(size, int):
                result.append(
                    DimVerdict(input_name, axis, size, size, size, 1, "declared", "", "refused", "proven")
                )
                continue
            what, low, high, multiple, reason, source = found[size.value]
            beyond = "eager" if limited(size.value) else "refused"
            result.append(
                DimVerdict(
                    *(input_name, axis, what, low, high, multiple, reason, source, beyond, certainty),
                    symbol=size.value,
                )
            )
    return tuple(result)


def _refuse(dim: FreeDim, allowed: str, why: Provenance) -> None:
    places = ", ".join(f"axis {axis} of '{name}'" for name, axis in dim.places)
    raise ShapeError(
        f"'{dim.name}' ({places}) is declared free, and the program takes {allowed}: "
        f"{why.operator}, {why.detail}",
        stage="generalize",
        node=why.operator,
        source_line=why.source,
    )


def _is_product(condition: Expr, symbol: Expr) -> bool:
    """Whether the condition says that a product with `symbol` in it is a constant: then finitely many
    sizes pass."""
    if condition.op != "eq" or not condition.args[1].is_const or symbol not in condition.free:
        return False
    stack = [condition.args[0]]
    while stack:
        part = stack.pop()
        if part.op == "mul":
            stack.extend(part.args)
        elif part.op not in ("size", "const"):
            return False
    return bool(condition.args[1].value)


def _range(symbol: Expr, guards: Sequence[Guard], multiple: int) -> tuple[int, int | None, int, str, str]:
    """(low, high, multiple, reason, source) from the guards that mention this size."""
    alone = [guard for guard in guards if guard.condition.free == {symbol}]
    shared = [guard for guard in guards if symbol in guard.condition.free and len(guard.condition.free) > 1]

    def breaks(size: int) -> Guard | None:
        return next((guard for guard in alone if not _holds(guard, symbol.value, size)), None)

    low = next((size for size in range(_SCANNED) if breaks(size) is None), 0)
    step = max(multiple, 1)
    high = _top(low, step, breaks)
    edges = [
        *([low - 1] if low else []),
        *([low + 1] if step > 1 else []),
        *([high + step] if high is not None else []),
    ]
    why = list(dict.fromkeys(guard for size in edges if (guard := breaks(size)) is not None))
    why += [guard for guard in alone if guard not in why] if not why else []
    reasons = [_words(guard.why, guard.condition) for guard in why]
    reasons += [_relation(symbol, guard) for guard in shared[:2]]
    source = next((guard.why.source for guard in [*why, *shared] if guard.why.source), "")
    return low, high, step, "; ".join(dict.fromkeys(reasons)) or "nothing in the program limits it", source


def _top(low: int, multiple: int, breaks: Callable[[int], Guard | None]) -> int | None:
    """The greatest size that no guard refuses; None where there seems to be none."""
    probe = low + multiple * (_PROBED // multiple)
    if breaks(probe) is None:
        return None
    inside, outside = 0, (probe - low) // multiple
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if breaks(low + middle * multiple) is None:
            inside = middle
        else:
            outside = middle
    return low + inside * multiple


def _holds(guard: Guard, name: str, size: int) -> bool:
    try:
        return bool(evaluate(guard.condition, {name: size}))
    except ZeroDivisionError:
        return False


def _relation(symbol: Expr, guard: Guard) -> str:
    """A guard over several sizes; a long one by the sizes in it."""
    said = repr(guard.condition)
    if len(said) > _READABLE:
        others = sorted(other.value for other in guard.condition.free if other is not symbol)
        return f"checked together with {', '.join(others)}: {guard.why.operator}"
    return f"together with others, {said}: {_words(guard.why)}"


def _words(why: Provenance, condition: Expr | None = None) -> str:
    said = why.detail or (repr(condition) if condition is not None else "")
    return f"{why.operator}: {said}" if why.operator else said
