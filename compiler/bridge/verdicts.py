"""What became of every input dim: free or pinned, its range and divisibility, why, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dlcb.compiler.bridge.probes import FreeDim
from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import evaluate
from dlcb.compiler.shapes.system import Guard, Provenance, System

_PROBED = 1 << 21  # sizes above are taken to be allowed when this one is
_SCANNED = 1 << 12  # the least legal size is looked for below


@dataclass(frozen=True)
class DimVerdict:
    """One axis of one input. `size` is the size variable's name, or the integer that the dim is pinned to; `low` to `high`
    (None: unbounded) and `multiple` say which sizes the graph serves. `beyond` says what becomes of others: "refused", or
    "eager" where the program may take them. `certainty`: "proven", "as far as the graph shows", "branches not proven: ..."."""

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
    """The verdict for every axis of every input. Raises ShapeError where the program itself pins a dim that the user declared
    free. `limited(name)`: sizes beyond the range may still be right for the program."""
    solution = system.solve()
    by_name = {dim.name: dim for dim in free}
    found: dict[str, tuple] = {}
    for name, dim in by_name.items():
        verdict = solution.verdicts[name]
        if verdict.kind == "literal" and dim.declared and not limited(name):
            _refuse(dim, verdict.value.value, verdict.reason)
        if verdict.kind == "literal":
            value = verdict.value.value
            found[name] = (value, value, value, 1, _words(verdict.reason), verdict.reason.source)
            continue
        own = dim.symbol if verdict.kind == "residual" else verdict.value
        found[name] = (name, *_range(dim.symbol, solution.guards, own, dict(solution.substitution)), )
    result = []
    for input_name, sizes in dims.items():
        for axis, size in enumerate(sizes):
            if isinstance(size, int):
                result.append(DimVerdict(input_name, axis, size, size, size, 1, "declared", "", "refused", "proven"))
                continue
            what, low, high, multiple, reason, source = found[size.value]
            beyond = "eager" if limited(size.value) else "refused"
            result.append(DimVerdict(input_name, axis, what, low, high, multiple, reason, source, beyond, certainty))
    return tuple(result)


def _refuse(dim: FreeDim, size: int, why: Provenance) -> None:
    places = ", ".join(f"axis {axis} of '{name}'" for name, axis in dim.places)
    raise ShapeError(
        f"'{dim.name}' ({places}) is declared free, and the program pins it to {size}: {why.operator}, {why.detail}",
        stage="generalize", node=why.operator, source_line=why.source,
    )  # fmt: skip


def _range(
    symbol: Expr, guards: Sequence[Guard], own: Expr, substitution: Mapping[Expr, Expr]
) -> tuple[int, int | None, int, str, str]:
    """(low, high, multiple, reason, source) from the guards that mention this size alone."""
    alone = [guard for guard in guards if guard.condition.free == {symbol}]

    def breaks(size: int) -> Guard | None:
        return next((guard for guard in alone if not _holds(guard, symbol.value, size)), None)

    low = next((size for size in range(_SCANNED) if breaks(size) is None), 0)
    following = [size for size in range(low + 1, low + _SCANNED) if breaks(size) is None]
    multiple = following[0] - low if following and low % (following[0] - low) == 0 else 1
    high: int | None = None
    if (top := _top(low, multiple, breaks)) is not None:
        high = top
    ends = [guard for guard in (breaks(low - 1) if low else None, breaks(high + multiple) if high is not None else None) if guard]
    ends += [guard for guard in [breaks(low + 1)] if guard is not None and multiple > 1]
    ends = list(dict.fromkeys(ends))
    reason = "; ".join(_words(guard.why, guard.condition) for guard in ends) or "nothing in the graph depends on it"
    return low, high, multiple, reason, next((guard.why.source for guard in ends if guard.why.source), "")


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


def _words(why: Provenance, condition: Expr | None = None) -> str:
    said = why.detail or (repr(condition) if condition is not None else "")
    return f"{why.operator}: {said}" if why.operator else said
