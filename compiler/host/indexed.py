"""Which ATen operators read or write through index values, and the range that these must keep to. On CUDA a
bad index would stop the device for good, so it is found before the operator runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Indexed:
    """Positions in the operator's arguments: the `indices`, the `table` they point into, and the axis: fixed,
    or given by an argument. `flat`: they count through the whole table, or through the `sizes` of an
    argument. `wraps`: negative ones count from the end. `ends`: they may be the place behind the last one.
    `ignored`: an argument has a value that means nothing."""

    indices: int
    table: int
    axis: int = 0
    axis_argument: int | None = None
    flat: bool = False
    wraps: bool = False
    ends: bool = False
    sizes: int | None = None
    ignored: int | None = None


def axes(first: int, spanned: Iterable[int]) -> Iterable[int]:
    """The axis that each entry of a list of indices reads, from `first` on: each follows those that the ones
    before it span, which is one axis, and of a mask as many as it has."""
    return accumulate(spanned, initial=first)


IGNORED = -100  # where the argument is left out

_ALONG = (Indexed(indices=2, table=0, axis_argument=1),)  # f(table, axis, indices, ...)
_ALONG_FROM_THE_END = (Indexed(indices=2, table=0, axis_argument=1, wraps=True),)
_FLAT = (Indexed(indices=1, table=0, flat=True, wraps=True),)
_BAGS = (Indexed(indices=1, table=0), Indexed(indices=2, table=1, ends=True))  # and where each bag begins
_CLASSES = (Indexed(indices=1, table=0, axis=1, ignored=4),)  # axis 0 of a table without rows

INDEXED: dict[str, tuple[Indexed, ...]] = {
    "aten.embedding.default": (Indexed(indices=1, table=0),),
    "aten.embedding_bag.default": _BAGS,
    "aten.embedding_bag.padding_idx": _BAGS,
    "aten.index_select.default": _ALONG,
    "aten.gather.default": _ALONG,
    "aten.index_add.default": _ALONG,
    "aten.index_copy.default": _ALONG,
    "aten.index_fill.int_Scalar": _ALONG_FROM_THE_END,
    "aten.index_fill.int_Tensor": _ALONG_FROM_THE_END,
    "aten.index_reduce.default": _ALONG,
    "aten.scatter.src": _ALONG,
    "aten.scatter.value": _ALONG,
    "aten.scatter.reduce": _ALONG,
    "aten.scatter.value_reduce": _ALONG,
    "aten.scatter_add.default": _ALONG,
    "aten.scatter_reduce.two": _ALONG,
    "aten.take.default": _FLAT,
    "aten.put.default": _FLAT,
    "aten.take_along_dim.default": (Indexed(indices=1, table=0, axis_argument=2),),
    "aten.index.Tensor": (Indexed(indices=1, table=0, wraps=True),),
    "aten.index_put.default": (Indexed(indices=1, table=0, wraps=True),),
    "aten.cross_entropy_loss.default": _CLASSES,
    "aten.nll_loss.default": _CLASSES,
    "aten.nll_loss_nd.default": _CLASSES,
    "aten.nll_loss2d.default": _CLASSES,
    "aten.multi_margin_loss.default": (Indexed(indices=1, table=0, axis=1),),
    "aten.max_unpool2d.default": (Indexed(indices=1, table=0, sizes=2),),
    "aten.max_unpool3d.default": (Indexed(indices=1, table=0, sizes=2),),
}
