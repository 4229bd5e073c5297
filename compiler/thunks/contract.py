"""What the user declared of a model's inputs, held against shapes: ranks, pinned sizes, dims of one name,
ranges. Only these are refused outright; what was merely derived from the program is for the tiers to settle.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlcb.compiler.bridge.declared import UNNAMED
from dlcb.compiler.errors import ContractError
from dlcb.compiler.source import ModelSource


def check_declared(source: ModelSource, shapes: Sequence[Sequence[int]]) -> None:
    """ContractError that names the input, the axis, the rule and the nearest legal size, where a declaration
    is broken.

    `shapes` are those of the inputs, in the source's order.
    """
    seen: dict[str, tuple[int, str]] = {}
    for declared, shape in zip(source.inputs, shapes, strict=True):
        if declared.shape is None:
            continue
        if len(shape) != len(declared.shape):
            raise ContractError(
                f"input '{declared.name}' has rank {len(shape)}, shape {list(shape)}; declared is rank "
                f"{len(declared.shape)}, shape [{', '.join(map(str, declared.shape))}]",
                stage="contract",
            )
        for axis, (dim, size) in enumerate(zip(declared.shape, shape, strict=True)):
            place = f"axis {axis} of input '{declared.name}'"
            if isinstance(dim, int):
                if size != dim:
                    _refuse(place, size, f"it is declared as {dim}", dim)
                continue
            if dim in UNNAMED:
                continue
            low, high = source.dims.get(dim, (0, None))
            if size < low or (high is not None and size > high):
                limits = f"at least {low}" if high is None else f"{low} to {high}"
                _refuse(place, size, f"'{dim}' is declared as {limits}", low if size < low else high)
            first, where = seen.setdefault(dim, (size, place))
            if first != size:
                _refuse(place, size, f"'{dim}' is {first} at {where}", first)


def _refuse(place: str, size: int, rule: str, nearest: int | None) -> None:
    raise ContractError(f"{place} is {size}, but {rule}; nearest legal size {nearest}", stage="contract")
