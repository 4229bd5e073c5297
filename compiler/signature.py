"""What a compiled model accepts and returns, as plain data that travels as JSON: the front of the server
checks requests with it and never loads torch. Shapes go in; bound symbols and output shapes come out, or a
ContractError that names the input, the axis, the broken rule and the nearest legal shape.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from keyword import iskeyword
from typing import Any, cast

from dlcb.compiler.dtype import DTYPES
from dlcb.compiler.errors import ArtifactError, ContractError
from dlcb.compiler.expr.ops import OPS, whole

Shape = Sequence[int]
NAME_SHOWN = 60  # characters of a client's name in a message
NEAREST = 0.5  # of two names' likeness, from which on one may have been meant

_ALLOWED_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Name, ast.Load, ast.Constant,
    ast.Call,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub, ast.Not, ast.And, ast.Or,
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
)  # fmt: skip
_NUMBERS: dict[str, float] = {"inf": math.inf, "nan": math.nan}


def _conversion(kind: str) -> Callable[[Any], Any]:
    return {"bool": bool, "float": float}.get(kind, whole)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: row.meaning for name, row in OPS.items() if row.symbol is None},
    **{name: _conversion(dtype.kind) for name, dtype in DTYPES.items() if not dtype.is_complex},
}
# what has no value comes out as it does in a host program (`host/evaluator.py`)
_QUOTIENTS: dict[type[ast.operator], tuple[str, Callable[..., Any]]] = {
    ast.Div: ("quotient", OPS["div"].meaning),
    ast.FloorDiv: ("whole quotient", lambda a, b: a // b if b else 0),
    ast.Mod: ("remainder", lambda a, b: a % b if b else 0),
}


class _Named(ast.NodeTransformer):
    """Gives functions names that no size can have, and quotients functions."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function, arguments = cast(ast.Name, node.func), [self.visit(each) for each in node.args]
        return ast.Call(ast.Name(f"{function.id}()", ast.Load()), arguments, [])

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if (quotient := _QUOTIENTS.get(type(node.op))) is None:
            return node
        return ast.Call(ast.Name(f"{quotient[0]}()", ast.Load()), [node.left, node.right], [])


_SCOPE = {
    "__builtins__": {},
    **_NUMBERS,
    **{f"{name}()": function for name, function in (*_FUNCTIONS.items(), *_QUOTIENTS.values())},
}


@lru_cache(maxsize=4096)
def compile_expression(text: str) -> Callable[[Mapping[str, int]], int]:
    """A function of named symbols, from text over + - * / // %, comparisons, and/or/not, and calls of
    scalar operators (`expr/ops.py`) and types by their names.

    The text is parsed and held against a list of allowed nodes before Python compiles it: an artifact cannot
    smuggle in attribute access, calls or names of ours. ArtifactError when the text holds anything else.
    """
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ArtifactError(f"'{text}' is not an expression", stage="signature") from error
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        found = type(node).__name__
        legal = isinstance(node, _ALLOWED_NODES)
        if isinstance(node, ast.Call):
            found = f"a call of {ast.unparse(node.func)}"
            legal = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
        elif isinstance(node, ast.Name):
            found = f"'{node.id}', which is to be called,"
            legal = node.id not in _FUNCTIONS or id(node) in called
        elif isinstance(node, ast.Constant):
            legal = type(node.value) in (int, bool, float)
        if not legal:
            raise ArtifactError(f"'{text}' holds {found}, which an expression may not", stage="signature")
    code = compile(ast.fix_missing_locations(_Named().visit(tree)), "<signature>", "eval")
    return lambda symbols: eval(code, _SCOPE, symbols)


def readable(text: str) -> str:
    """An expression as people write it: a number is one, whatever the type that it is computed in."""
    while (shorter := re.sub(r"\bfloat64\(([\w.]+)\)", r"\1", text)) != text:
        text = shorter
    return re.sub(r"\bfloat64\(", "(", text)


def may_name_a_size(name: str) -> bool:
    """Whether an expression can hold a size of this name: a word of its own, and none of ours or Python's."""
    return name.isidentifier() and not iskeyword(name) and name not in {*_FUNCTIONS, *_NUMBERS}


def symbols_of(text: str) -> frozenset[str]:
    """The names of sizes in an expression's text."""
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    return frozenset(names) - {*_FUNCTIONS, *_NUMBERS}


@dataclass(frozen=True)
class Dim:
    """A free dim: its symbol, inclusive range (`high` None: no upper bound), and the number it must be a
    multiple of. `reason` is why; `reason_of_low` why nothing below `low`, where that is another."""

    symbol: str
    low: int
    high: int | None
    multiple: int = 1
    reason: str = ""
    reason_of_low: str = ""

    def nearest(self, size: int) -> int:
        """The legal size closest to `size`; of two equally near the larger."""
        clamped = max(size, self.low)
        clamped = clamped if self.high is None else min(clamped, self.high)
        below = clamped // self.multiple * self.multiple
        above = below if below == clamped else below + self.multiple
        if self.high is not None and above > self.high:
            return below
        return above if below < self.low or above - size <= size - below else below

    def rule(self) -> str:
        """The range in words, as error messages and `explain` show it."""
        words = f"at least {self.low}" if self.high is None else f"{self.low} to {self.high}"
        return words if self.multiple == 1 else f"{words}, a multiple of {self.multiple}"


@dataclass(frozen=True)
class TensorSpec:
    """One input or output. `dtype` is numpy's spelling, or "bfloat16"; `dims` None means any rank."""

    name: str
    dtype: str
    dims: tuple[Dim | int, ...] | None


@dataclass(frozen=True)
class Guard:
    """A fact the kernels rely on, as expression text that must be true, and why."""

    expression: str
    reason: str = ""

    @property
    def symbols(self) -> frozenset[str]:
        """The sizes that the fact is about."""
        return symbols_of(self.expression)


@dataclass(frozen=True)
class BatchAxes:
    """Proof that row b of every output depends on row b of the inputs alone.

    `input_axes` and `output_axes` name the batch axis of each tensor that has one; an input that is not
    listed has no rows and must be equal in all requests of a batch.
    """

    symbol: str
    input_axes: Mapping[str, int]
    output_axes: Mapping[str, int]


@dataclass(frozen=True)
class Signature:
    """Inputs, outputs, and what relates them. `output_dims[name]` holds one expression text a dim (None: a
    size known only at run time), or None where even the rank is. `padding` says for each free size of the
    inputs what stands against filling its axes up at their end; "": proven that nothing does, where each
    input is filled up with its value in `fill`. `memory` is the text of the bytes that a run needs at most
    beside parameters, inputs and the libraries' own workspaces; "": not known before the run. Where `batch`
    is None, `stacking` says for each free size of the inputs what stands against stacking along it."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    output_dims: Mapping[str, tuple[str | None, ...] | None] = field(default_factory=dict)
    guards: tuple[Guard, ...] = ()
    batch: BatchAxes | None = None
    padding: Mapping[str, str] = field(default_factory=dict)
    memory: str = ""
    fill: Mapping[str, float] = field(default_factory=dict)
    stacking: Mapping[str, str] = field(default_factory=dict)

    def read(self) -> None:
        """Read all its texts, as a server's front does. ArtifactError for one that it would refuse."""
        dims = (text for texts in self.output_dims.values() for text in texts or ())
        for text in (self.memory, *(guard.expression for guard in self.guards), *dims):
            if text:
                compile_expression(text)

    def check(self, shapes: Mapping[str, Shape], dtypes: Mapping[str, str]) -> dict[str, int]:
        """Bind every symbol to its size. ContractError when names, dtypes, ranks, sizes, equalities or guards
        break."""
        names = [spec.name for spec in self.inputs]
        if shapes.keys() != set(names):
            raise ContractError(wrong_names(shapes, names, "the model"), stage="signature")
        bound: dict[str, int] = {}
        places: dict[str, str] = {}
        for spec in self.inputs:
            name = spec.name
            if dtypes[name] != spec.dtype:
                raise ContractError(
                    f"input '{name}' is {dtypes[name]}, expected {spec.dtype}", stage="signature"
                )
            if spec.dims is not None:
                self._bind(spec, shapes[name], bound, places)
        for guard in self.guards:
            if not compile_expression(guard.expression)(bound):
                found = [symbol for symbol in bound if symbol in guard.symbols]
                sizes = ", ".join(f"{symbol} = {bound[symbol]} ({places[symbol]})" for symbol in found)
                why = f" ({guard.reason})" if guard.reason else ""
                rule = readable(guard.expression)
                raise ContractError(f"{rule} must hold{why}, but {sizes}", stage="signature")
        return bound

    def output_shapes(self, shapes: Mapping[str, Shape]) -> dict[str, tuple[int, ...] | None]:
        """Output shapes for input shapes that `check` accepted; None where known only at run time."""
        bound = {
            dim.symbol: size
            for spec in self.inputs
            if spec.dims is not None
            for dim, size in zip(spec.dims, shapes[spec.name], strict=True)
            if isinstance(dim, Dim)
        }
        result: dict[str, tuple[int, ...] | None] = {}
        for spec in self.outputs:
            texts = self.output_dims.get(spec.name)
            known = None if texts is None else [text for text in texts if text is not None]
            if texts is None or known is None or len(known) < len(texts):
                result[spec.name] = None
            else:
                result[spec.name] = tuple(compile_expression(text)(bound) for text in known)
        return result

    def _bind(self, spec: TensorSpec, shape: Shape, bound: dict[str, int], places: dict[str, str]) -> None:
        dims = spec.dims or ()
        if len(shape) != len(dims):
            raise ContractError(
                f"input '{spec.name}' has rank {len(shape)}, shape {list(shape)}; expected rank {len(dims)}, "
                f"shape {describe(dims)}",
                stage="signature",
            )
        for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
            if not isinstance(dim, Dim):
                if size != dim:
                    self._refuse(spec, shape, bound, f"axis {axis} is {size}, and is fixed at {dim}")
                continue
            if size < dim.low or (dim.high is not None and size > dim.high) or size % dim.multiple:
                reason = dim.reason_of_low if size < dim.low and dim.reason_of_low else dim.reason
                why = f" ({reason})" if reason else ""
                self._refuse(
                    spec,
                    shape,
                    bound,
                    f"axis {axis} ('{dim.symbol}') is {size}, and must be {dim.rule()}{why}",
                )
            seen = bound.setdefault(dim.symbol, size)
            if seen != size:
                self._refuse(
                    spec,
                    shape,
                    bound,
                    f"axis {axis} is {size}, but '{dim.symbol}' is {seen} from {places[dim.symbol]}",
                )
            places.setdefault(dim.symbol, f"axis {axis} of input '{spec.name}'")

    def _refuse(self, spec: TensorSpec, shape: Shape, bound: Mapping[str, int], rule: str) -> None:
        nearest = [
            bound.get(dim.symbol, dim.nearest(size)) if isinstance(dim, Dim) else dim
            for dim, size in zip(spec.dims or (), shape, strict=True)
        ]
        raise ContractError(
            f"input '{spec.name}' of shape {list(shape)}: {rule}; nearest legal shape {nearest}",
            stage="signature",
        )

    def batching_lines(self) -> tuple[str, ...]:
        """What the proofs say about requests that wait together, for people."""
        if self.batch is None:
            against = self.stacking.items()
            return (
                "no size is proven to count independent rows: each request runs alone",
                *(f"requests are not stacked along '{name}': {obstacle}" for name, obstacle in against),
            )
        rows = self.batch.symbol
        lines = [f"requests are stacked along '{rows}': its rows are independent"]
        for name, obstacle in self.padding.items():
            if name == rows:
                continue
            if obstacle:
                lines.append(f"padding the end of '{name}' is not proven harmless without a mask: {obstacle}")
            else:
                lines.append(f"padding the end of '{name}' is proven to change nothing")
        return tuple(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` gives an equal signature back."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Signature:
        """The inverse of `to_json`. ArtifactError when a field is missing or of another kind."""
        try:
            batch = data.get("batch")
            return Signature(
                inputs=tuple(_tensor(entry) for entry in data["inputs"]),
                outputs=tuple(_tensor(entry) for entry in data["outputs"]),
                output_dims={
                    name: None if dims is None else tuple(dims)
                    for name, dims in data.get("output_dims", {}).items()
                },
                guards=tuple(Guard(**entry) for entry in data.get("guards", ())),
                batch=None if batch is None else BatchAxes(**batch),
                stacking=dict(data.get("stacking", {})),
                padding=dict(data.get("padding", {})),
                memory=data.get("memory", ""),
                fill=dict(data.get("fill", {})),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(f"not a signature: {error!r}", stage="signature") from error


def describe(dims: Sequence[Dim | int]) -> str:
    """A shape as people write it: `[batch, 3, height, width]`."""
    return f"[{', '.join(dim.symbol if isinstance(dim, Dim) else str(dim) for dim in dims)}]"


def wrong_names(given: Iterable[str], expected: Sequence[str], who: str) -> str:
    """What to say of inputs whose names are not those that `who` takes: the first that is unknown, with the
    name that may have been meant, else the first that is missing."""
    found = list(given)
    missing = [name for name in expected if name not in found]
    unknown = next((name for name in found if name not in expected), None)
    takes = f"{who} takes {_listed(expected)}"
    if unknown is None:
        return f"missing input '{missing[0]}'; {takes}"
    nearest = difflib.get_close_matches(unknown, missing, 1, NEAREST)
    meant = f", did you mean '{nearest[0]}'?" if nearest else ";"
    return f"unexpected input '{unknown[:NAME_SHOWN]}'{meant} {takes}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "no inputs"


def _tensor(entry: Mapping[str, Any]) -> TensorSpec:
    dims = entry["dims"]
    if dims is not None:
        dims = tuple(dim if isinstance(dim, int) else Dim(**dim) for dim in dims)
    return TensorSpec(entry["name"], entry["dtype"], dims)
