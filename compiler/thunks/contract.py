"""What the user declared of a model's inputs, held against shapes: ranks, pinned sizes, dims of one name,
ranges. Only these are refused outright; what was merely derived from the program is for the tiers to settle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from dlcb.compiler.bridge.declared import UNNAMED
from dlcb.compiler.errors import ContractError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import all_of, as_expr, equal, size
from dlcb.compiler.host.evaluator import compile_expressions
from dlcb.compiler.source import ModelSource


def admission(source: ModelSource) -> Callable[[Sequence[Sequence[int]]], None]:
    """`check_declared` for one source, quick where nothing is broken."""
    ranks = [None if declared.shape is None else len(declared.shape) for declared in source.inputs]
    if None in ranks:
        return lambda shapes: check_declared(source, shapes)
    dims = [dim for declared in source.inputs for dim in declared.shape or ()]
    found = [size(f"<{k}>") for k in range(len(dims))]
    rules: list[Expr] = []
    for dim, here in zip(dims, found, strict=True):
        if isinstance(dim, int):
            rules.append(equal(here, dim))
        elif dim not in UNNAMED:
            low, high = source.dims.get(dim, (0, None))
            rules += [as_expr(low) <= here, *([] if high is None else [here <= as_expr(high)])]
            rules.append(equal(here, found[dims.index(dim)]))
    holds = compile_expressions(all_of(rules), [here.value for here in found])

    def admit(shapes: Sequence[Sequence[int]]) -> None:
        if list(map(len, shapes)) != ranks or not holds(*chain.from_iterable(shapes)):
            check_declared(source, shapes)

    return admit


def check_declared(source: ModelSource, shapes: Sequence[Sequence[int]]) -> None:
    """ContractError that names the input, the axis, the rule and the nearest legal size, where a declaration
    is broken.

    `shapes` are those of the inputs, in the source's order.
    """
    seen: dict[str, tuple[int, str, int]] = {}
    for declared, shape in zip(source.inputs, shapes, strict=True):
        if declared.shape is None:
            continue
        if len(shape) != len(declared.shape):
            raise ContractError(
                f"input '{declared.name}' has rank {len(shape)}, shape {list(shape)}; declared is rank "
                f"{len(declared.shape)}, shape [{', '.join(map(str, declared.shape))}]",
                stage="contract",
            )
        for axis, (dim, found) in enumerate(zip(declared.shape, shape, strict=True)):
            if isinstance(dim, int):
                if found != dim:
                    _refuse(declared.name, axis, found, f"it is declared as {dim}", dim)
                continue
            if dim in UNNAMED:
                continue
            low, high = source.dims.get(dim, (0, None))
            if found < low or (high is not None and found > high):
                limits = f"at least {low}" if high is None else f"{low} to {high}"
                rule = f"'{dim}' is declared as {limits}"
                _refuse(declared.name, axis, found, rule, low if found < low else high)
            first, name, where = seen.setdefault(dim, (found, declared.name, axis))
            if first != found:
                _refuse(declared.name, axis, found, f"'{dim}' is {first} at {_place(name, where)}", first)


def _refuse(name: str, axis: int, found: int, rule: str, nearest: int | None) -> None:
    raise ContractError(
        f"{_place(name, axis)} is {found}, but {rule}; nearest legal size {nearest}", stage="contract"
    )


def _place(name: str, axis: int) -> str:
    return f"axis {axis} of input '{name}'"
