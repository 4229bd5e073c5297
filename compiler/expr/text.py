"""The text form of expressions: `write` and `parse` are inverse to each other, for the host program's JSON
and the graph's text.

`show` prints a loop index by its name alone; where one is free, `write` puts a binder in front: `[i:n, j:m *
4] i * 4 + j`. Parsing uses a stack of open brackets, so that any depth is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dlcb.compiler.dtype import DTYPES, DType
from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import FALSE, TRUE, apply, cast, check, const, index, load, reduce, size
from dlcb.compiler.expr.ops import FOLDS, OPS
from dlcb.compiler.expr.show import show

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:e[+-]?\d+)?|\binf\b|\bnan\b)"
    r"|(?P<check>check\[[^\]]*\]\()"
    r"|(?P<name>%?[A-Za-z_][\w.]*)"
    r"|(?P<symbol>//|<=|==|!=|[-+*/%<&|^()\[\],:]))"
)
_INFIX = {row.symbol: row for row in OPS.values() if row.symbol is not None}


def write(root: Expr) -> str:
    """`root` as text that `parse` reads back."""
    free = [node for node in toposort([root]) if node.op == "index" and node in root.free]
    binder = ", ".join(f"{i.value}:{show(i.args[0])}" for i in free)
    return f"[{binder}] {show(root)}" if free else show(root)


def parse(text: str, buffers: Mapping[str, DType] | None = None) -> Expr:
    """The expression that `write` printed as `text`; a name that no binder introduces is a size variable.

    `buffers` gives the element types of the buffers that are read. ValueError says where the text is
    wrong."""
    reader = _Reader(text, buffers or {})
    return reader.read()


@dataclass
class _Bracket:
    """An open bracket: what stands before it, the finished parts in it, and the expression being read."""

    kind: str  # "whole", "(", "call", "check", "[", "reduce"
    name: str = ""
    parts: list[Expr | float] = field(default_factory=list)
    bound: list[str] = field(default_factory=list)  # names before a colon: the parts are extents
    operands: list[Expr | float] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    scope: dict[str, Expr] = field(default_factory=dict)
    indices: tuple[Expr, ...] = ()
    negative: bool = False
    guarded: bool = False


class _Reader:
    def __init__(self, text: str, buffers: Mapping[str, DType]) -> None:
        self.text, self.buffers = text, buffers
        self.tokens = self._tokens()
        self.place = 0

    def _tokens(self) -> list[tuple[str, str, int]]:
        found, at, end = [], 0, len(self.text.rstrip())
        while at < end:
            match = _TOKEN.match(self.text, at)
            if match is None:
                raise ValueError(f"cannot read {self.text!r} from column {at + 1} on")
            kind = str(match.lastgroup)
            found.append((kind, match.group(kind), match.start(kind)))
            at = match.end()
        return found

    def _wrong(self, what: str) -> ValueError:
        at = self.tokens[self.place][2] if self.place < len(self.tokens) else len(self.text)
        return ValueError(f"{what} at column {at + 1} of {self.text!r}")

    def _peek(self) -> str:
        return self.tokens[self.place + 1][1] if self.place + 1 < len(self.tokens) else ""

    def read(self) -> Expr:
        self.open = [_Bracket("whole")]
        while self.place < len(self.tokens):
            kind, token, _ = self.tokens[self.place]
            if kind == "number":
                self._operand(float(token) if not token.isdigit() else const(int(token)))
            elif kind == "check":
                self.open.append(_Bracket("check", token[len("check[") : -2]))
            elif kind == "name":
                self._name(token)
            else:
                self._symbol(token)
            self.place += 1
        if len(self.open) != 1:
            raise self._wrong(f"expected the end of {self.open[-1].kind!r}")
        result = self._finished(self.open[0])
        if not isinstance(result, Expr):
            raise self._wrong("a float needs a type: float32(…)")
        return result

    def _name(self, name: str) -> None:
        top, after = self.open[-1], self._peek()
        if name == "if" and top.kind == "[":
            top.parts.append(self._finished(top))
            top.guarded = True
        elif after == ":" and top.kind == "[":
            top.bound.append(name)
            self.place += 1
        elif after in ("(", "["):
            self.open.append(_Bracket("call" if after == "(" else "[", name))
            self.place += 1
        elif name in ("True", "False"):
            self._operand(TRUE if name == "True" else FALSE)
        else:
            self._operand(
                next((b.scope[name] for b in reversed(self.open) if name in b.scope), None) or size(name)
            )

    def _symbol(self, token: str) -> None:
        top = self.open[-1]
        expects_operand = len(top.operands) == len(top.operators)
        if token in ("(", "["):
            if not expects_operand or (token == "[" and len(self.open) > 1):
                raise self._wrong("expected an operator")
            self.open.append(_Bracket(token))
        elif token == "-" and expects_operand:
            top.negative = not top.negative
        elif token in _INFIX and not expects_operand:
            self._reduce_operators(top, _INFIX[token].precedence)
            top.operators.append(token)
        elif token == "," and not expects_operand and top.kind != "whole":
            top.parts.append(self._finished(top))
        elif token in (")", "]") and len(self.open) > 1 and (token == "]") == (top.kind == "["):
            if top.operands or top.operators or not top.parts:
                top.parts.append(self._finished(top))
            self.open.pop()
            self._close(top)
        else:
            raise self._wrong(f"did not expect {token!r}")

    def _operand(self, x: Expr | float) -> None:
        top = self.open[-1]
        if len(top.operands) != len(top.operators):
            raise self._wrong("expected an operator")
        if top.negative:
            top.negative = False
            x = -x
        top.operands.append(x)

    def _reduce_operators(self, top: _Bracket, precedence: int) -> None:
        """Applies what binds at least as tightly as `precedence`: operators of one precedence associate to
        the left."""
        while top.operators and _INFIX[top.operators[-1]].precedence >= precedence:
            right, left = top.operands.pop(), top.operands.pop()
            top.operands.append(apply(_INFIX[top.operators.pop()].name, left, right))

    def _finished(self, top: _Bracket) -> Expr | float:
        if len(top.operands) != len(top.operators) + 1:
            raise self._wrong("expected an operand")
        self._reduce_operators(top, 0)
        return top.operands.pop()

    def _close(self, done: _Bracket) -> None:
        if done.bound:
            self._bind(done)
            return
        parts = [part for part in done.parts if isinstance(part, Expr)]
        if len(parts) < len(done.parts) and done.name not in DTYPES and done.kind != "(":
            raise self._wrong("a float needs a type: float32(…)")
        match done.kind:
            case "(":
                self._operand(done.parts[0])
            case "[" if done.name in self.buffers and len(parts) == 1 + done.guarded:
                self._operand(
                    load(done.name, parts[0], self.buffers[done.name], parts[1] if done.guarded else TRUE)
                )
            case "check" if len(parts) == 5:
                x, low, high, position, guard = parts
                self._operand(check(x, low, high, done.name, position, guard))
            case "reduce":
                self._operand(reduce(done.name, done.indices, parts[0]))
            case "call" if done.name in DTYPES and len(done.parts) == 1:
                self._operand(self._typed(done.parts[0], DTYPES[done.name]))
            case "call" if done.name in OPS and len(parts) == OPS[done.name].arity:
                self._operand(apply(done.name, *parts))
            case _:
                raise self._wrong(f"unknown operator, buffer or number of operands: {done.name!r}")

    def _typed(self, x: Expr | float, dtype: DType) -> Expr:
        return cast(x, dtype) if isinstance(x, Expr) else const(x, dtype)

    def _bind(self, done: _Bracket) -> None:
        """`[i:n]` in front of the whole text, or `fold[i:n](` of a reduction."""
        extents = [part for part in done.parts if isinstance(part, Expr)]
        if len(done.bound) != len(done.parts) or len(extents) < len(done.parts):
            raise self._wrong("expected an integer extent after each colon")
        indices = tuple(index(name, extent) for name, extent in zip(done.bound, extents, strict=True))
        scope = dict(zip(done.bound, indices, strict=True))
        if not done.name:
            self.open[-1].scope.update(scope)
        elif done.name in FOLDS and self._peek() == "(":
            self.place += 1
            self.open.append(_Bracket("reduce", done.name, scope=scope, indices=indices))
        else:
            raise self._wrong(f"unknown fold {done.name!r}")
