"""The immutable, hash-consed expression node. Equal means identical; digests come from content.

One kind of node serves sizes, strides, coordinates and kernel bodies. Leaves are constants, size variables
and loop indices; `load` reads a buffer at an offset; `reduce` folds a body over loop indices that it
binds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from dlcb.compiler.dtype import DType
from dlcb.compiler.expr.ops import Arithmetic
from dlcb.compiler.expr.show import show

_interned: WeakValueDictionary[tuple, Expr] = WeakValueDictionary()
_references = _interned.data  # type: ignore[attr-defined] # read without a call of Python's
_making = Lock()
_DATA = frozenset(("load", "check", "reduce"))


class Expr(Arithmetic):
    """An expression. Build it with the constructors in `expr.node`, never directly.

    `op` is "const", "size", "index", "load", "check", "reduce", "cast" or the name of a row of `expr.ops`;
    `args` are expressions; `value` is the constant, the variable's name, the buffer's name or the fold's
    name, else None."""

    __slots__ = ("__weakref__", "_digest", "_free", "args", "dtype", "op", "reads", "value")

    op: str
    args: tuple[Expr, ...]
    value: Any
    dtype: DType
    reads: bool  # does it depend on data: a load, a checked index or a reduction?
    _digest: bytes  # empty until somebody asks
    _free: frozenset[Expr]

    def __init__(self) -> None:
        raise TypeError("expressions are built with the constructors in dlcb.compiler.expr.node")

    @property
    def digest(self) -> bytes:
        """Sixteen bytes from the content alone, the same in every process."""
        if not self._digest:
            ready = all(arg._digest for arg in self.args)
            for node in [self] if ready else toposort([self], lambda n: not n._digest):
                _set_digest(node)
        return self._digest

    @property
    def free(self) -> frozenset[Expr]:
        """The size variables and unbound loop indices that this expression depends on."""
        return self._free

    @property
    def is_const(self) -> bool:
        return self.op == "const"

    def __repr__(self) -> str:
        return show(self)

    def __deepcopy__(self, memo: dict) -> Expr:
        return self

    __copy__ = __deepcopy__

    def __reduce__(self) -> Any:
        raise TypeError("expressions cross processes as text (expr.text), not by pickle")


def intern(op: str, args: tuple[Expr, ...], value: Any, dtype: DType) -> Expr:
    """The one node with this content."""
    # repr keeps 0.0 and -0.0 apart and makes every NaN one node
    key = (op, args, repr(value) if isinstance(value, float) else value, dtype.name)
    reference = _references.get(key)
    node = reference() if reference is not None else None
    if node is None:
        with _making:  # two threads that make the same node must get one
            node = _interned.get(key)
            if node is None:
                node = object.__new__(Expr)
                node.op, node.args, node.value, node.dtype = op, args, value, dtype
                node._digest = b""
                node._free = _free(node)
                node.reads = op in _DATA or any([arg.reads for arg in args])
                _interned[key] = node
    return node


def _free(node: Expr) -> frozenset[Expr]:
    below: frozenset[Expr] = frozenset()
    for arg in node.args:
        below = below | arg._free if below else arg._free
    if node.op == "size":
        return frozenset((node,))
    if node.op == "index":
        return below | {node}
    if node.op == "reduce":
        return below - frozenset(node.args[1:])
    return below


def _set_digest(node: Expr) -> None:
    state = hashlib.blake2b(digest_size=16)
    state.update(f"{node.op}|{node.value!r}|{node.dtype.name}|".encode())
    for arg in node.args:
        state.update(arg._digest)
    node._digest = state.digest()


def toposort(roots: Iterable[Expr], enter: Callable[[Expr], bool] | None = None) -> Iterator[Expr]:
    """Each node below `roots` for which `enter` holds, once, arguments first. Uses a stack, not recursion."""
    seen: set[Expr] = set()
    stack: list[Expr | None] = [*roots]
    stack.reverse()
    entered: list[Expr] = []  # nodes whose arguments are on the stack, above a None
    while stack:
        node = stack.pop()
        if node is None:  # all below it came already
            yield entered.pop()
        elif node not in seen and (enter is None or enter(node)):
            seen.add(node)
            if node.args:
                entered.append(node)
                stack.append(None)
                stack += node.args[::-1]
            else:
                yield node


def operands(op: str, x: Expr) -> list[Expr]:
    """What the tree of `op` below `x` joins, each once, from the left to the right."""
    found: list[Expr] = []
    stack = list(reversed(x.args))
    seen: set[Expr] = set()
    while stack:
        part = stack.pop()
        if part in seen:
            continue
        seen.add(part)
        if part.op == op:
            stack.extend(reversed(part.args))
        else:
            found.append(part)
    return found


def rebuild(
    roots: list[Expr], replace: Mapping[Expr, Expr], remake: Callable[[Expr, tuple[Expr, ...]], Expr]
) -> list[Expr]:
    """`roots` with every node of `replace` exchanged; `remake(node, new_args)` builds a node whose arguments
    changed.

    A node under which nothing changes is returned as it is."""
    done: dict[Expr, Expr] = dict(replace)
    leaves = all([node.op in ("size", "index") for node in replace])

    def enter(node: Expr) -> bool:
        # a reduction's own indices are not among its free variables
        if leaves and not node.reads and node not in done and node._free.isdisjoint(replace):
            done[node] = node
        return node not in done

    for node in toposort(roots, enter):
        args = tuple([done[arg] for arg in node.args])
        done[node] = node if args == node.args else remake(node, args)
    return [done[root] for root in roots]
