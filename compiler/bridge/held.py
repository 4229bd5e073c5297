"""Numbers of a program that was exported at one size, and what they were made of. One that its line does
not settle, and that no rule of shapes ties to a size, may have been made of any size, as of `n // 2` only the
8 is left: then every size holds as it was exported. The operators' own names of their arguments tell axes
from numbers that sizes make."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from torch._ops import OpOverload
from torch.fx import Node as FxNode

from dlcb.compiler.bridge.formulas import Number, same_number
from dlcb.compiler.bridge.groups import Group, Observed, parted
from dlcb.compiler.bridge.written import MADE, Call, Origin, Told, told
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE


@dataclass(frozen=True)
class Known:
    """The sizes in the graph that the file has as numbers, with their values, and the numbers that are sizes
    in the graph at every size of the inputs."""

    sizes: Mapping[Expr, int]
    constants: Collection[int]
    observed: Observed


@dataclass(frozen=True)
class Held:
    """A number, in words, and the sizes of which it may have been made; None: of any."""

    number: str
    value: Number
    sizes: Sequence[Expr] | None = None


def operator_of(target: OpOverload) -> str:
    """The name of an ATen operator without overload, and as its functional form has it."""
    return str(target).split(".")[1].strip("_")


def origin_of(node: FxNode) -> tuple[str, str, str]:
    """What tells a call of a line from others of the line: its operator, and the module that it is in."""
    stack = node.meta.get("nn_module_stack") or {}
    module = next(reversed(stack.values()), ("", ""))[0] if stack else ""
    assert isinstance(node.target, OpOverload)
    return node.meta.get("stack_trace") or "", operator_of(node.target), module


def is_by_name(node: FxNode) -> bool:
    """Whether a function of torch was called, as `torch.add` is, and no sign between tensors, `a + b`."""
    return "builtin_function" in str((node.meta.get("torch_fn") or ("", ""))[1])


def times(nodes: Iterable[FxNode]) -> Counter[tuple[str, str, str]]:
    """How many calls of an operator come from a line."""
    return Counter(origin_of(node) for node in nodes if isinstance(node.target, OpOverload))


def numbers_in(node: FxNode) -> tuple[Any, ...]:
    """The numbers that stand by themselves in a call."""
    return tuple(each for each in (*node.args, *node.kwargs.values()) if type(each) in (int, float))


def alike(nodes: Iterable[FxNode]) -> Counter[tuple[Any, ...]]:
    """How many calls of an operator come from a line and have the same numbers."""
    calls = (node for node in nodes if isinstance(node.target, OpOverload))
    return Counter((origin_of(node), numbers_in(node)) for node in calls)


def before(nodes: Iterable[FxNode]) -> dict[FxNode, int]:
    """How many calls of its operator ran before each call, of those from its line."""
    met: Counter[tuple[str, str, str]] = Counter()
    found = {}
    for node in nodes:
        if isinstance(node.target, OpOverload):
            found[node] = met[origin_of(node)]
            met[origin_of(node)] += 1
    return found


def modules(nodes: Iterable[FxNode]) -> frozenset[str]:
    """The names of the modules in which calls were made, as attributes of others."""
    paths = (path for node in nodes for path, _ in (node.meta.get("nn_module_stack") or {}).values())
    return frozenset(name for path in paths for name in path.split("."))


def named(target: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by their names in the operator's schema, in its order, defaults filled in."""
    schema = target._schema.arguments
    given = dict(zip((each.name for each in schema), arguments, strict=False))
    return {
        each.name: given[each.name] if each.name in given else keywords.get(each.name, each.default_value)
        for each in schema
    }


def sizes_made(target: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> set[int]:
    """The numbers given to a call that may be sizes of its results."""
    found: set[int] = set()
    for name, argument in named(target, arguments, keywords).items():
        if name in _NO_SIZES | _NO_RESULTS:
            continue
        entries = argument if isinstance(argument, (list, tuple)) else (argument,)
        found |= {int(each) for each in entries if isinstance(each, int) and not isinstance(each, bool)}
    return found


def followed(stack_trace: str, call: Call, given: Mapping[str, Any], known: Known) -> Iterator[Held]:
    """The numbers in `call` that sizes may have made; `given`: its arguments as they are lowered, where what
    a size explains is no number."""
    for name, argument in given.items():
        if _is_no_size(call, name):
            continue
        entries = enumerate(argument) if isinstance(argument, (list, tuple)) else ((None, argument),)
        untold = []
        for place, value in entries:
            if _is_number(value) and not _is_usual(call.operator, name, place, given):
                found = told(stack_trace, call, name, place)
                if found.origin not in SETTLED and not _is_left_out(call, name, found):
                    untold.append((place, value, found))
        if call.operator in _SPLITS and given["self"].shape[given["dim"]].is_const:
            untold = [each for each in untold if each[2].origin is Origin.UNSEEN]
        if call.operator in _RESHAPES and untold:
            x = given["self"]
            dims = (x.shape[given["dim"]],) if call.operator == "unflatten" else x.shape
            untold = _unexplained(parted(dims, argument, known.observed), argument, untold, known)
        for _, value, found in untold:
            sizes = _made_of(value, found, known)
            if sizes is None or sizes:
                yield Held(words(name, value, found), value, sizes)


def words(name: str, value: Number, found: Told) -> str:
    """A number of a call, and where it comes from."""
    return f"{name} {value:.6g}{_FROM[found.origin]}"


SETTLED = (Origin.WRITTEN, Origin.OF_PYTORCH, Origin.OF_LIBRARY)
_FROM = {
    Origin.UNSEEN: ", in a function that forward calls there,",
    Origin.NAMED: ", a name in its line,",
    Origin.CALCULATED: ", which its line calculates,",
    Origin.SET: ", an attribute that forward sets,",
    Origin.SIZE: "",
}


def _made_of(value: Number, found: Told, known: Known) -> Sequence[Expr] | None:
    """The sizes that `value` is, or of which its line makes it; None where that may be any."""
    if found.origin is Origin.SIZE:
        return [size for size, n in known.sizes.items() if n == value]
    made = found.formula
    if made is None or not made.of_size:
        return None
    sizes = [size for size, n in known.sizes.items() if same_number(made(n), value)]
    constant = any(same_number(made(n), value) for n in known.constants)
    return sizes if sizes or constant else None


def _is_number(value: Any) -> bool:
    """Whether this is a number that arithmetic of sizes may give."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and abs(value) < _LARGE and not 0 < abs(value) < 1 / _LARGE


_LARGE = 1 << 30


# ---- what an argument is -----------------------------------------------------------------------------

# Names that ATen's operators give to axes and to other numbers that no size has made
_NO_SIZES = frozenset(
    {
        *("dim", "dim0", "dim1", "dim2", "dimension", "axis", "start_dim", "end_dim"),
        *("source", "destination", "dtype", "layout", "memory_format", "num_layers", "momentum"),
        *("normalized_shape", "eps", "dropout_p"),
    }
)
_NO_RESULTS = frozenset({"stride", "padding", "output_padding", "dilation", "groups", "hop_length"})
_NO_SIZES_OF = frozenset({("dropout", "p"), ("roll", "dims"), ("flip", "dims"), ("permute", "dims")})
_USUALLY_LEFT_OUT = frozenset({("add", "alpha"), ("sub", "alpha"), ("rsub", "alpha"), ("slice", "step")})
_SPLITS = frozenset({"split", "split_with_sizes", "chunk", "unsafe_split"})
_RESHAPES = frozenset({"view", "reshape", "unsafe_view", "unflatten"})


def _is_no_size(call: Call, name: str) -> bool:
    """Whether an argument names axes, or is what the operators have beside numbers that sizes make."""
    return name in _NO_SIZES or (call.operator, name) in _NO_SIZES_OF


def _is_left_out(call: Call, name: str, found: Told) -> bool:
    """Whether an argument is not given, as in every usual call of the operator. In a function that is not
    seen others may have been given what they are by default: the call does not tell."""
    usual = (call.operator, name) in _USUALLY_LEFT_OUT and not call.by_name
    return found.origin is Origin.UNSEEN and name in call.left_out and usual


def _is_usual(operator: str, name: str, place: int | None, given: Mapping[str, Any]) -> bool:
    """Whether a number is what the call has where the program's author gave none: the rest of a shape, the
    first position of a slice, whose end tells how long it is; or the constant that an axis has already."""
    if operator == "slice":
        return name == "start" and given[name] == 0 and isinstance(given["end"], Expr)
    if operator in _RESHAPES:
        return place is not None and given[name][place] == -1
    if operator not in ("expand", "broadcast_to") or place is None:
        return False
    axis = place - len(given[name]) + given["self"].rank
    own = given["self"].shape[axis] if axis >= 0 else ONE
    return given[name][place] == -1 or (own.is_const and own is not ONE)


# ---- reshapes ----------------------------------------------------------------------------------------

Untold = tuple[int | None, Number, Told]


def _unexplained(
    groups: Sequence[Group], shape: Sequence[Any], untold: Sequence[Untold], known: Known
) -> list[Untold]:
    """Of the numbers in a new shape those that the sizes they are made of leave open. In a line that shows
    the call an axis that never changes is parted into the same numbers at every size, a product of sizes
    into these as they were, and one number beside others that are known is their quotient."""
    found: list[Untold] = []
    for group in groups:
        inside = [each for each in untold if each[0] in group.after]
        rest = sum(1 for place in group.after if shape[place] == -1)
        if group.constant and len(group.before) == len(group.after) == 1:
            continue
        seen = [each for each in inside if each[2].origin is not Origin.UNSEEN]
        if group.constant or (_open(group, seen, rest) <= 1 and not _is_by_chance(group, seen, rest, shape)):
            inside = [each for each in inside if each not in seen or _is_any_of(each, group, known)]
        found += inside
    return found


def _is_any_of(entry: Untold, group: Group, known: Known) -> bool:
    """Whether a number of free axes may be any of several sizes of the inputs, equal in the file."""
    _, value, told = entry
    sizes = [size for size, n in known.sizes.items() if size.op == "size" and n == value]
    return not group.constant and told.origin in _AS_IT_STANDS and len(sizes) > 1


def _open(group: Group, seen: Sequence[Untold], rest: int) -> int:
    """How many entries of a group are no size as it stands."""
    stand = [n for _, n, told in seen if told.origin not in MADE and n in group.factors]
    return len(seen) - len(stand) + rest


def _is_by_chance(group: Group, seen: Sequence[Untold], rest: int, shape: Sequence[Any]) -> bool:
    """Whether a number of a group may have the value of a size by chance alone: one that the line calculates
    as it does a single size; one beside what is left for others, where either is 1; and one that with those
    outside of it is no product of the first axes, or behind what is left, of the last."""
    calculated = [n for _, n, told in seen if told.origin in MADE]
    whole = math.prod(group.values)
    if len(group.after) == 1:
        made = bool(calculated) or any(told.summed for _, _, told in seen)
        return made and len(group.before) == 1 and whole in group.factors
    left = rest + calculated.count(1)
    return left > 0 and any(
        n == whole or (n == 1 and told.origin is Origin.NAMED) or not _stands_in_order(group, shape, place)
        for place, n, told in seen
        if told.origin in _AS_IT_STANDS and place is not None
    )


def _stands_in_order(group: Group, shape: Sequence[Any], place: int) -> bool:
    """Whether the entries from the end of a group to this place are some of its axes from that end."""
    if len(group.values) < 2 or all(shape[each] != -1 for each in group.after):
        return True
    rest = next(each for each in group.after if shape[each] == -1)
    behind = place > rest
    entries = shape[place : group.after.stop] if behind else shape[group.after.start : place + 1]
    if not all(isinstance(each, int) for each in entries):
        return True
    axes = group.values[::-1] if behind else group.values
    return math.prod(entries) in accumulate(axes, operator.mul)


_AS_IT_STANDS = (Origin.NAMED, Origin.SIZE)
