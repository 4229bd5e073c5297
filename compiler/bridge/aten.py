"""The table of ATen operators: for each the function that says it in our own operators. What has no row,
or whose row refuses, becomes an eager node."""

from __future__ import annotations

from dlcb.compiler.bridge import (
    aten_complex,
    aten_create,
    aten_network,
    aten_pointwise,
    aten_reduce,
    aten_shape,
    aten_split,
    aten_write,
)
from dlcb.compiler.bridge.emit import Row

ROWS: dict[str, Row] = {
    **aten_pointwise.ROWS,
    **aten_shape.ROWS,
    **aten_create.ROWS,
    **aten_split.ROWS,
    **aten_reduce.ROWS,
    **aten_network.ROWS,
    **aten_write.ROWS,
}

# Checks that tracing leaves behind. They state facts of the trace (a type, a device) and compute nothing.
ASSERTIONS = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten._assert_async.msg",
        "aten._assert_scalar.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)


def find(target: str, complex: bool = False) -> tuple[Row | None, bool]:
    """The row for an operator such as "aten.add.Tensor", and whether it is an in-place form
    ("aten.add_.Tensor"), which uses the row of the functional one. `complex`: for operands, or a result, that
    are complex."""
    rows = aten_complex.ROWS if complex else ROWS
    if target in rows:
        return rows[target], False
    namespace, _, rest = target.partition(".")
    name, _, overload = rest.partition(".")
    in_place = name.endswith("_") and not name.endswith("__")
    name = name[:-1] if in_place else name
    return rows.get(f"{namespace}.{_SAME.get(name, name)}.{overload}"), in_place


# further names of PyTorch's for the same operators
_SAME = {
    "absolute": "abs",
    "concat": "cat",
    "concatenate": "cat",
    "divide": "div",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "moveaxis": "movedim",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "subtract": "sub",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "true_divide": "div",
}
