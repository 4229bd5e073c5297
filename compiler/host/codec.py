"""Frozen dataclasses to plain JSON values and back, led by their type hints; expressions travel as text. What
comes back equals what went in, expressions included (they are interned), and anything of another form is an
ArtifactError.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any

from dlcb.compiler.dtype import DType, dtype
from dlcb.compiler.errors import ArtifactError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.show import show
from dlcb.compiler.expr.text import parse

_parse = functools.lru_cache(maxsize=65536)(parse)  # a program repeats few texts many times


def encode(value: Any) -> Any:
    """Plain JSON values for a dataclass, a tuple, an expression or a plain value."""
    if isinstance(value, Expr):
        return show(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _encode_field(f, getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    return value


def decode(kind: type, data: Any) -> Any:
    """The dataclass of type `kind` that `data` was encoded from. ArtifactError when it was not."""
    try:
        return _decode(kind, data)
    except ArtifactError:
        raise
    except (
        Exception
    ) as error:  # text that does not parse, a field that is missing: all mean a foreign artifact
        raise ArtifactError(f"not a {kind.__name__}: {error!r}", stage="artifact") from error


# ---- attributes: values of any plain type, told apart by a tag -----------------------------------


def encode_plain(value: Any) -> Any:
    """An operator's attribute: what JSON would lose (tuples, expressions, types, infinities) carries a
    tag."""
    if isinstance(value, Expr):
        return {"expression": show(value)}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, tuple):
        return {"tuple": [encode_plain(item) for item in value]}
    if isinstance(value, list):
        return [encode_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {"mapping": {key: encode_plain(item) for key, item in value.items()}}
    if value is None or isinstance(value, bool | int | str):
        return value
    raise ArtifactError(f"an attribute must be plain data, found {value!r}", stage="artifact")


def decode_plain(data: Any) -> Any:
    """The inverse of `encode_plain`."""
    if isinstance(data, list):
        return [decode_plain(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((tag, body),) = data.items()
    match tag:
        case "expression":
            return _parse(body)
        case "dtype":
            return dtype(body)
        case "float":
            return float.fromhex(body)
        case "tuple":
            return tuple(decode_plain(item) for item in body)
        case "mapping":
            return {key: decode_plain(item) for key, item in body.items()}
    raise ArtifactError(f"unknown tag '{tag}' in an attribute", stage="artifact")


Plain = Any  # the type hint of a field that holds any plain value


def _encode_field(field: dataclasses.Field, value: Any) -> Any:
    return encode_plain(value) if field.type == "Plain" else encode(value)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode(kind: Any, data: Any) -> Any:
    if kind is Plain:
        return decode_plain(data)
    if kind is Expr:
        return _parse(data)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        if set(data) != set(hints):
            raise ArtifactError(
                f"a {kind.__name__} has the fields {sorted(hints)}, found {sorted(data)}", stage="artifact"
            )
        return kind(**{name: _decode(hint, data[name]) for name, hint in hints.items()})
    origin = typing.get_origin(kind)
    if origin is tuple:
        item, *rest = typing.get_args(kind)
        if rest == [Ellipsis]:
            return tuple(_decode(item, entry) for entry in data)
        return tuple(_decode(k, entry) for k, entry in zip((item, *rest), data, strict=True))
    if origin in (types.UnionType, typing.Union):
        return _decode_union(typing.get_args(kind), data)
    if origin is Mapping or origin is dict:
        value_kind = typing.get_args(kind)[1]
        return {key: _decode(value_kind, entry) for key, entry in data.items()}
    if type(data) is not kind:
        raise ArtifactError(f"expected {kind.__name__}, found {data!r}", stage="artifact")
    return data


def _decode_union(kinds: tuple[Any, ...], data: Any) -> Any:
    """One of several: None, a plain type, or the dataclass that has exactly the data's fields."""
    if data is None and type(None) in kinds:
        return None
    for kind in kinds:
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            if isinstance(data, dict) and set(data) == set(_hints(kind)):
                return _decode(kind, data)
        elif kind is not type(None) and (typing.get_origin(kind) or isinstance(data, kind)):
            return _decode(kind, data)
    raise ArtifactError(f"{data!r} is none of {', '.join(map(str, kinds))}", stage="artifact")
