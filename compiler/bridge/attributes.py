"""Attributes that a module's `forward` sets: those are no constants, since it may set them from sizes. A file
does not say so; the source that its lines come from does, where it lies at hand and still has them."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache

_FIRST = frozenset({"forward", "__call__"})


def set_in_forward(path: str, number: int, text: str) -> frozenset[str]:
    """Names of attributes that the file at `path` sets in `forward`, or in what that calls; none where its
    line of this number is not `text`."""
    if linecache.getline(path, number).strip() != text:
        return frozenset()
    return _set_in("".join(linecache.getlines(path)))


@lru_cache(maxsize=256)
def _set_in(source: str) -> frozenset[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return frozenset()
    functions: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.setdefault(node.name, []).append(node)
    reached, waiting = set(_FIRST), list(_FIRST)
    found: set[str] = set()
    while waiting:
        for function in functions.get(waiting.pop(), ()):
            found.update(_attributes(function))
            called = _called(function) & functions.keys() - reached - {"__init__"}
            reached |= called
            waiting += called
    return frozenset(found)


def _attributes(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value=str() as name), *_]):
                yield name


def _called(function: ast.AST) -> set[str]:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in calls}
