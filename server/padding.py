"""Which axes of which tensors may be filled up so that requests of different sizes share a batch, and with
what: where the compiler proved that it changes nothing, or behind the model's own mask that the configuration
declares. Either way a worker compares padded with unpadded results before the model serves. What does not
hold is said, and the model serves without padding: nothing here keeps it from serving.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dlcb.compiler import Dim, Signature
from dlcb.compiler.signature import symbols_of
from dlcb.server.errors import ServerError
from dlcb.server.settings import Batching


class PaddingError(ServerError):
    """Padding would change this model's results, or its mask does not fit; the text says why."""


@dataclass(frozen=True)
class Padding:
    """The sizes that are padded, and the axes of each input that have one; `values` is what fills each input
    up: what hides padding in the mask, a legal value elsewhere. `mask` is "" where the compiler proved that
    none is needed."""

    symbols: Sequence[str]
    mask: str
    input_axes: Mapping[str, Sequence[int]]
    values: Mapping[str, float]

    def lengths(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Of all sizes of a request those that are padded."""
        return tuple(sizes[symbol] for symbol in self.symbols)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Padding:
        return Padding(**data)


def choose(signature: Signature, mask: str | None) -> tuple[Padding | None, str]:
    """How requests are padded, and why not behind the declared `mask` where that cannot work: then what the
    compiler proved, which needs no mask, is still used."""
    if mask is None:
        return proven(signature), ""
    try:
        return masked(signature, mask), ""
    except PaddingError as error:
        return proven(signature), str(error)


def declared_lines(batching: Batching, padding: Padding | None, unpadded: str) -> list[str]:
    """What the configuration makes of the compiler's proofs, for people. `unpadded` says why the mask that
    it declares, or padding that was proven, is not used."""
    if not batching.stacks:
        key = "enabled: false" if not batching.enabled else "batch_invariant: true"
        return [f"each request runs alone: the configuration says `{key}`"]
    lines = []
    if padding is not None and padding.mask:
        lines.append(
            f"'{padding.symbols[0]}' is padded behind the mask '{padding.mask}' of the configuration"
        )
    return [*lines, f"not padded: {unpadded}"] if unpadded else lines


def masked(signature: Signature, mask: str) -> Padding:
    """How requests may be padded when `mask` is 0 at padding, or 1 where the compiler found that to hide it.
    PaddingError when that cannot work."""
    batch = signature.batch
    specs = {spec.name: spec for spec in signature.inputs}
    if batch is None:
        raise PaddingError(f"mask '{mask}': each request runs alone, so there is nothing to pad for")
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
        if symbol in guard.symbols:
            raise PaddingError(f"mask '{mask}': '{symbol}' must hold {guard.expression}, so it is not padded")
    for name in batch.input_axes:
        axes = _axes(signature, name, free)
        if len(axes) > 1:
            raise PaddingError(f"mask '{mask}': input '{name}' has '{symbol}' on {len(axes)} axes")
    for spec in signature.outputs:
        texts = signature.output_dims.get(spec.name)
        if texts is None or None in texts:
            raise PaddingError(f"output '{spec.name}' has dims that are known only at run time")
        for text in texts:
            if text is not None and text != symbol and symbol in symbols_of(text):
                raise PaddingError(f"output '{spec.name}' has the dim {text}, which cannot be cut back")
    return _padding(signature, free, mask)


def proven(signature: Signature) -> Padding | None:
    """How requests may be padded by the compiler's proof alone; None where it proved nothing of use."""
    batch = signature.batch
    texts = [text for dims in signature.output_dims.values() for text in dims or (None,)]
    if batch is None or None in texts or not texts:
        return None
    rowless = [spec.name for spec in signature.inputs if spec.name not in batch.input_axes]
    dims = (dim.symbol for spec in signature.inputs for dim in spec.dims or () if isinstance(dim, Dim))
    symbols = [  # in the order of the inputs, whichever way the signature came
        name
        for name in dict.fromkeys(dims)
        if not signature.padding.get(name, "unknown")
        and name != batch.symbol
        and not any(_axes(signature, given, [name]) for given in rowless)
    ]
    padding = _padding(signature, symbols, "")
    return padding if padding.input_axes else None


def _padding(signature: Signature, symbols: Sequence[str], mask: str) -> Padding:
    assert signature.batch is not None
    unproven = any(signature.padding.get(symbol, "unknown") for symbol in symbols)
    input_axes, values = {}, {}
    for name in signature.batch.input_axes:
        axes = _axes(signature, name, symbols)
        if axes:
            input_axes[name] = axes
            values[name] = 0 if name == mask and unproven else signature.fill.get(name, 0)
    return Padding(symbols, mask, input_axes, values)


def _axes(signature: Signature, name: str, symbols: Sequence[str]) -> list[int]:
    dims = next(spec.dims for spec in signature.inputs if spec.name == name)
    return [axis for axis, dim in enumerate(dims or ()) if isinstance(dim, Dim) and dim.symbol in symbols]


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(f"'{name}'" for name in names)
