"""Which ATen operators read or write through index values, and the range that these must keep to. On CUDA a
bad index would stop the device for good, so it is found before the operator runs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Indexed:
    """Positions in the operator's arguments: the `indices`, the `table` they point into, and the axis: fixed,
    or given by an argument. `flat`: they count through the whole table. `wraps`: negative ones count from the
    end."""

    indices: int
    table: int
    axis: int = 0
    axis_argument: int | None = None
    flat: bool = False
    wraps: bool = False


_ALONG = (Indexed(indices=2, table=0, axis_argument=1),)  # f(table, axis, indices, ...)

INDEXED: dict[str, tuple[Indexed, ...]] = {
    "aten.embedding.default": (Indexed(indices=1, table=0),),
    "aten.embedding_bag.default": (Indexed(indices=1, table=0),),
    "aten.index_select.default": _ALONG,
    "aten.gather.default": _ALONG,
    "aten.index_add.default": _ALONG,
    "aten.index_copy.default": _ALONG,
    "aten.index_fill.int_Scalar": _ALONG,
    "aten.index_fill.int_Tensor": _ALONG,
    "aten.scatter.src": _ALONG,
    "aten.scatter.value": _ALONG,
    "aten.scatter_add.default": _ALONG,
    "aten.scatter_reduce.two": _ALONG,
    "aten.take.default": (Indexed(indices=1, table=0, flat=True, wraps=True),),
    "aten.take_along_dim.default": (Indexed(indices=1, table=0, axis_argument=2),),
    "aten.index.Tensor": (Indexed(indices=1, table=0, wraps=True),),
    "aten.index_put.default": (Indexed(indices=1, table=0, wraps=True),),
}
