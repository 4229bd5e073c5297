"""What stands in lines that a file does not have: attributes that a module's `forward` sets, which are no
constants, since it may set them from sizes, and what names stand for. The source that a file's lines come
from says so, where it lies at hand and still has them."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Mapping
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


# ---- names -------------------------------------------------------------------------------------------

Assigned = Mapping[str, tuple[ast.expr, str]]
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def assigned(path: str, number: int, text: str) -> Assigned:
    """What the names that are assigned once stand for in the function around a line of the file at `path`; of
    a size of one of the function's parameters, as it was given, that parameter's name. Nothing where its line
    of this number is not `text`."""
    if linecache.getline(path, number).strip() != text:
        return {}
    return _assigned_around("".join(linecache.getlines(path)), number)


@lru_cache(maxsize=1024)
def _assigned_around(source: str, number: int) -> Assigned:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, _Function) and node.lineno <= number <= (node.end_lineno or 0)
    ]
    return _names_of(max(around, key=lambda each: each.lineno)) if around else {}


def _names_of(function: _Function) -> Assigned:
    arguments = function.args
    parameters = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    stored: dict[str, list[int]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            stored.setdefault(node.id, []).append(node.lineno)
    found: dict[str, tuple[ast.expr, str]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            for name, written in _parts(node.targets[0], node.value):
                if name not in parameters and len(stored[name]) == 1:
                    of = getattr(_sized(written), "id", "")
                    kept = of in parameters and min(stored.get(of, [node.lineno])) >= node.lineno
                    found[name] = written, of if kept else ""
    return found


def _parts(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The names that an assignment gives, each with what it stands for."""
    match target, value:
        case ast.Name(id=name), _:
            yield name, value
        case ast.Tuple(elts=names), ast.Tuple(elts=values) if len(names) == len(values):
            for one, given in zip(names, values, strict=True):
                yield from _parts(one, given)
        case ast.Tuple(elts=names), ast.Attribute(attr="shape") | ast.Call(
            func=ast.Attribute(attr="size"), args=[]
        ):
            shape = value if isinstance(value, ast.Attribute) else ast.Attribute(_tensor_of(value), "shape")
            for place, one in enumerate(names):
                if isinstance(one, ast.Starred):
                    break
                if isinstance(one, ast.Name):
                    yield one.id, ast.Subscript(shape, ast.Constant(place), ast.Load())


def _tensor_of(call: ast.expr) -> ast.expr:
    """The tensor of which a method is called."""
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    return call.func.value


def _sized(written: ast.expr) -> ast.AST | None:
    """The tensor of which this is a size."""
    match written:
        case ast.Subscript(value=ast.Attribute(value=tensor, attr="shape")):
            return tensor
        case ast.Call(func=ast.Attribute(value=tensor, attr="size")):
            return tensor
        case ast.Call(func=ast.Name(id="len"), args=[tensor]):
            return tensor
    return None
