"""What a forward returns, as a list of tensors. A dataclass that PyTorch has not been told of is taken for a
mapping of its fields, as registered ones are."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from torch.utils import _pytree as pytree


def flattened(outputs: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves of `outputs`, in their order, and how they were packed."""
    leaves, spec = pytree.tree_flatten(outputs)
    if any(map(_is_packed, leaves)):
        return pytree.tree_flatten(pytree.tree_map(_as_mapping, outputs))
    return leaves, spec


def _is_packed(leaf: Any) -> bool:
    return is_dataclass(leaf) and not isinstance(leaf, type)


def _as_mapping(leaf: Any) -> Any:
    if not _is_packed(leaf):
        return leaf
    return {each.name: pytree.tree_map(_as_mapping, getattr(leaf, each.name)) for each in fields(leaf)}
