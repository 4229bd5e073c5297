"""Print an expression as text that `expr.text.parse` reads back. Works on anything with op, args, value and
dtype."""

from __future__ import annotations

from typing import Any

from dlcb.compiler.expr.ops import OPS

_ATOM = 100
_DEEP = 8  # levels of an expression that a message shows


def show(root: Any) -> str:
    """One line: infix for arithmetic and comparison, `name(args)` for the rest, with parentheses only where
    needed.

    Sizes print as their name, loop indices as `name:extent` where bound and `name` where used."""
    done: dict[Any, tuple[str, int]] = {}
    stack = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if node in done:
            continue
        if not ready:
            stack.append((node, True))
            stack.extend((arg, False) for arg in node.args if arg not in done)
            continue
        done[node] = _line(node, [done[arg] for arg in node.args])
    return done[root][0]


def brief(root: Any, levels: int = _DEEP) -> str:
    """The same for a message, which must not be as long as the expression: "..." stands for what lies
    deeper."""
    return _brief(root, levels)[0]


def _brief(node: Any, levels: int) -> tuple[str, int]:
    if node.args and not levels:
        return "...", _ATOM
    return _line(node, [_brief(arg, levels - 1) for arg in node.args])


def _line(node: Any, args: list[tuple[str, int]]) -> tuple[str, int]:
    texts = [text for text, _ in args]
    if node.op == "const":
        text = _constant(node)
        return text, _ATOM if not text.startswith("-") else 0
    if node.op == "size":
        return node.value, _ATOM
    if node.op == "index":
        return node.value, _ATOM
    if node.op == "load":
        guarded = "" if node.args[1].is_const and node.args[1].value else f" if {texts[1]}"
        return f"{node.value}[{texts[0]}{guarded}]", _ATOM
    if node.op == "check":
        return f"check[{node.value}]({', '.join(texts)})", _ATOM
    if node.op == "cast":
        return f"{node.dtype.name}({texts[0]})", _ATOM
    if node.op == "reduce":
        bound = ", ".join(f"{index.value}:{show(index.args[0])}" for index in node.args[1:])
        return f"{node.value}[{bound}]({texts[0]})", _ATOM
    row = OPS[node.op]
    if row.symbol is None:
        return f"{node.op}({', '.join(texts)})", _ATOM
    left, right = args
    a = left[0] if left[1] >= row.precedence else f"({left[0]})"
    # the right operand binds tighter: subtraction and division do not associate, and the tree must read back
    # as it was
    b = right[0] if right[1] > row.precedence else f"({right[0]})"
    return f"{a} {row.symbol} {b}", row.precedence


def _constant(node: Any) -> str:
    if node.dtype.name in ("int64", "bool"):
        return str(node.value)
    return f"{node.dtype.name}({node.value!r})"
