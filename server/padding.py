"""Padding by a model's own mask: which axis of which tensor may be filled up so that requests of
different lengths share a batch, and with what. The configuration declares the mask; a worker compares
padded with unpadded results before the model serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dlcb.compiler import Dim, ModelSource, Signature
from dlcb.server.errors import ServerError


class PaddingError(ServerError):
    """The declared mask cannot hide padding in this model; the text says why."""


@dataclass(frozen=True)
class Padding:
    """Inputs and outputs that carry the padded dim, with its axis; `values` is what fills each input up: 0 in
    the mask, a legal value elsewhere."""

    symbol: str
    mask: str
    input_axes: Mapping[str, int]
    output_axes: Mapping[str, int]
    values: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Padding:
        return Padding(**data)


def padding_of(signature: Signature, source: ModelSource, mask: str) -> Padding:
    """How requests may be padded when `mask` is 0 at padding. PaddingError when that cannot work."""
    batch = signature.batch
    specs = {spec.name: spec for spec in signature.inputs}
    if batch is None:
        raise PaddingError(f"mask '{mask}': the compiler found no batch axis, so there is nothing to pad for")
    if mask not in specs or mask not in batch.input_axes:
        raise PaddingError(f"mask '{mask}' is not an input with rows; those are {_listed(batch.input_axes)}")
    free = [
        dim.symbol for dim in specs[mask].dims or () if isinstance(dim, Dim) and dim.symbol != batch.symbol
    ]
    if len(free) != 1:
        raise PaddingError(
            f"mask '{mask}' has {len(free)} free dims beside the batch, expected one: the dim that is padded"
        )
    (symbol,) = free
    for guard in signature.guards:
        if symbol in guard.expression:
            raise PaddingError(f"mask '{mask}': '{symbol}' must hold {guard.expression}, so it is not padded")
    declared = {entry.name: entry for entry in source.inputs}
    input_axes, values = {}, {}
    for name in batch.input_axes:
        axes = [
            axis
            for axis, dim in enumerate(specs[name].dims or ())
            if isinstance(dim, Dim) and dim.symbol == symbol
        ]
        if len(axes) > 1:
            raise PaddingError(f"mask '{mask}': input '{name}' has '{symbol}' on {len(axes)} axes")
        if axes:
            legal = declared[name].values
            input_axes[name] = axes[0]
            values[name] = legal[0] if legal and name != mask else 0
    return Padding(symbol, mask, input_axes, _output_axes(signature, symbol), values)


def _output_axes(signature: Signature, symbol: str) -> dict[str, int]:
    axes: dict[str, int] = {}
    for spec in signature.outputs:
        texts = signature.output_dims.get(spec.name)
        if texts is None or None in texts:
            raise PaddingError(f"output '{spec.name}' has dims that are known only at run time")
        for axis, text in enumerate(texts):
            if text == symbol and spec.name not in axes:
                axes[spec.name] = axis
            elif text is not None and symbol in text:
                raise PaddingError(f"output '{spec.name}' has the dim {text}, which cannot be cut back")
    return axes


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(f"'{name}'" for name in names)
