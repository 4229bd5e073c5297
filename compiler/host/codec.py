"""Frozen dataclasses to plain JSON values and back, led by their type hints; expressions travel as text. What
comes back equals what went in, expressions included (they are interned), and anything of another form is an
ArtifactError.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from dlcb.compiler.dtype import DType, dtype
from dlcb.compiler.errors import ArtifactError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.show import show
from dlcb.compiler.expr.text import parse

_parse = functools.lru_cache(maxsize=65536)(parse)  # a program repeats few texts many times
_show = functools.lru_cache(maxsize=65536)(show)


def encode(value: Any) -> Any:
    """Plain JSON values for a dataclass, a tuple, an expression or a plain value."""
    if isinstance(value, Expr):
        return _show(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: write(getattr(value, name)) for name, write in _writers(type(value))}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    return value


@functools.cache
def _writers(kind: type) -> list[tuple[str, Callable[[Any], Any]]]:
    """Of each field of a dataclass."""
    return [(f.name, encode_plain if f.type == "Plain" else encode) for f in dataclasses.fields(kind)]


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
        return {"expression": _show(value)}
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


def _decode(kind: Any, data: Any) -> Any:
    return _decoder(kind)(data)


@functools.cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    """What reads data of one kind: an artifact holds thousands of values of a few kinds."""
    if kind is Plain:
        return decode_plain
    if kind is Expr:
        return _parse
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return functools.partial(_decode_fields, kind)
    origin = typing.get_origin(kind)
    if origin is tuple:
        item, *rest = map(_decoder, (k for k in typing.get_args(kind) if k is not Ellipsis))
        if Ellipsis in typing.get_args(kind):
            return lambda data: tuple(map(item, data))
        return lambda data: tuple(read(x) for read, x in zip((item, *rest), data, strict=True))
    if origin in (types.UnionType, typing.Union):
        return functools.partial(_decode_union, typing.get_args(kind))
    if origin is Mapping or origin is dict:
        value = _decoder(typing.get_args(kind)[1])
        return lambda data: {key: value(entry) for key, entry in data.items()}
    return functools.partial(_decode_as_it_is, kind)


def _decode_fields(kind: type, data: Any) -> Any:
    readers = _readers(kind)
    if data.keys() != readers.keys():
        raise ArtifactError(
            f"a {kind.__name__} has the fields {sorted(readers)}, found {sorted(data)}", stage="artifact"
        )
    return kind(**{name: read(data[name]) for name, read in readers.items()})


@functools.cache
def _readers(kind: type) -> dict[str, Callable[[Any], Any]]:
    """Of each field. Asked when there is data, since a kind may hold values of its own kind."""
    return {name: _decoder(hint) for name, hint in typing.get_type_hints(kind).items()}


def _decode_as_it_is(kind: type, data: Any) -> Any:
    if type(data) is not kind:
        raise ArtifactError(f"expected {kind.__name__}, found {data!r}", stage="artifact")
    return data


def _decode_union(kinds: tuple[Any, ...], data: Any) -> Any:
    """One of several: None, a plain type, or the dataclass that has exactly the data's fields."""
    if data is None and type(None) in kinds:
        return None
    for kind in kinds:
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            if isinstance(data, dict) and data.keys() == _readers(kind).keys():
                return _decode(kind, data)
        elif kind is not type(None) and (typing.get_origin(kind) or isinstance(data, kind)):
            return _decode(kind, data)
    raise ArtifactError(f"{data!r} is none of {', '.join(map(str, kinds))}", stage="artifact")
