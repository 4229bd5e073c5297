"""Many expressions over size variables as one Python function, so that a new shape costs arithmetic and no
walk over trees. Shared sub-expressions are computed once. A quotient or remainder by zero, which has no
value, comes out as 0: an empty dim must not stop the evaluation of what it leaves unused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.ops import OPS

_CONVERSIONS = {"bool": "bool", "int": "int", "uint": "int", "float": "float"}


def compile_expressions(
    roots: Sequence[Expr], sizes: Sequence[str], definitions: Sequence[tuple[str, Expr]] = ()
) -> Callable[..., tuple]:
    """A function of `sizes`, in this order, that gives the values of `roots` as a tuple.

    `definitions` are further size variables in terms of `sizes`. KeyError names a size variable that nothing
    gives.
    """
    names: dict[str, str] = {size: f"s{k}" for k, size in enumerate(sizes)}
    scope: dict[str, object] = {}
    lines: list[str] = []
    done: dict[Expr, str] = {}

    def emit(expressions: Sequence[Expr]) -> list[str]:
        for node in toposort(expressions, lambda n: n not in done):
            if node.op == "const":
                done[node] = repr(node.value)
            elif node.op == "size":
                done[node] = names[node.value]
            else:
                done[node] = f"v{len(lines)}"
                lines.append(f"{done[node]} = {_line(node, [done[arg] for arg in node.args], scope)}")
        return [done[e] for e in expressions]

    for name, value in definitions:
        names[name] = emit([value])[0]
    values = emit(roots)
    body = "".join(f"    {line}\n" for line in lines)
    arguments = ", ".join(names[size] for size in sizes)
    text = f"def evaluate({arguments}):\n{body}    return ({', '.join(values)}{',' if values else ''})\n"
    exec(compile(text, "<host program>", "exec"), scope)
    return cast(Callable[..., tuple], scope["evaluate"])


def _line(node: Expr, args: list[str], scope: dict[str, object]) -> str:
    match node.op:
        case "cast":
            return f"{_CONVERSIONS[node.dtype.kind]}({args[0]})"
        case "where":
            return f"{args[1]} if {args[0]} else {args[2]}"
        case "min" | "max":
            return f"{args[0]} if {args[0]} {'<' if node.op == 'min' else '>'} {args[1]} else {args[1]}"
        case "not":
            return f"not {args[0]}"
        case "floordiv" | "mod" if not node.args[1].is_const:
            return f"{args[0]} {OPS[node.op].symbol} {args[1]} if {args[1]} else 0"
    row = OPS[node.op]
    if row.symbol is not None and node.op != "div":
        return f"{args[0]} {row.symbol} {args[1]}"
    scope[f"_{node.op}"] = row.meaning
    return f"_{node.op}({', '.join(args)})"
