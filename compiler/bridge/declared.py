"""The dims that a user declared, as size variables: equal names are one variable, and every dim without a
size starts free."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from dlcb.compiler.bridge.probes import FreeDim
from dlcb.compiler.errors import CaptureError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.shapes.system import Provenance, System
from dlcb.compiler.source import InputDeclaration, ModelSource

UNNAMED = ("", "?", "*", "_")  # spellings of a dim without a name
NO_WISH = "?"  # behind a name that says nothing of what the user wants: the program may pin such a dim


def declare(
    source: ModelSource,
    inputs: Sequence[InputDeclaration],
    system: System,
    exported: Mapping[str, tuple[int, int | None]] | None = None,
) -> tuple[dict[str, list[Expr | int]], list[FreeDim]]:
    """The dims of every input as size variables or integers, and the free ones. Equal names are one
    variable. A range that is in `exported`, those of a .pt2 file, is said to be the file's."""
    dims: dict[str, list[Expr | int]] = {}
    symbols: dict[str, Expr] = {}
    places: dict[str, list[tuple[str, int]]] = {}
    unnamed = itertools.count()
    for declared in inputs:
        if declared.shape is None:
            raise CaptureError(
                f"input '{declared.name}' has no rank: only its ranks can be compiled, one by one",
                stage="generalize",
            )
        dims[declared.name] = []
        for axis, size in enumerate(declared.shape):
            if isinstance(size, int):
                dims[declared.name].append(size)
                continue
            named = size not in UNNAMED
            name = size.removesuffix(NO_WISH) if named else f"s{next(unnamed)}"
            if name not in symbols:
                low, high = source.dims.get(name, (0, None)) if named else (0, None)
                of_file = (low, high) == (exported or {}).get(name)
                why = Provenance("exported" if of_file else "declared", detail=f"the range of '{name}'")
                symbols[name] = system.fresh(name, low, high, why)
            places.setdefault(name, []).append((declared.name, axis))
            dims[declared.name].append(symbols[name])
    return dims, [
        FreeDim(
            symbol=symbol,
            low=source.dims.get(name, (0, None))[0],
            high=source.dims.get(name, (0, None))[1],
            declared=any(name in (declared.shape or ()) for declared in inputs),
            places=tuple(places[name]),
            leading=all(axis == 0 and len(dims[input_name]) > 1 for input_name, axis in places[name]),
        )
        for name, symbol in symbols.items()
    ]
