"""Lowering: a nest of scalar expressions comes in, lines of a C-like language go out. Every expression is
computed once, in the outermost scope that binds what it depends on: a reduction that depends on rows alone
leaves the inner loop, an address keeps only its innermost term there, and what depends on sizes alone is a
parameter that the host computes.

What a scope looks like, and how a reduction is carried out, is the target's business (kgen.cpp, kgen.cuda).
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from dlcb.compiler.dtype import BOOL, FLOAT32, INDEX, DType
from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import ONE, TRUE, ZERO, apply, intern, load, remake
from dlcb.compiler.expr.ops import FOLDS
from dlcb.compiler.ir.graph import Value
from dlcb.compiler.kgen.affine import linear, over_sizes
from dlcb.compiler.kgen.cstyle import ATOM, Call, Spelled, Spelling, constant, inside, spell
from dlcb.compiler.kgen.deadline import hurry
from dlcb.compiler.kgen.kernel import IndexCheck, Parameter
from dlcb.compiler.kgen.schedule import Nest
from dlcb.compiler.kgen.verify import highest, lowest
from dlcb.compiler.shapes.system import System

_LONGEST_LINE = 90
_HOST_KINDS = ("bool", "int", "uint")
_COMPARISONS = frozenset(["lt", "le", "eq", "ne"])
_TURNED_TO_INT = {  # by C, whatever their type is
    "int": ("const", "where"),
    "bool": ("and", "or", "xor", "where"),
}


@dataclass(eq=False)
class Scope:
    """A block of text. `names` says how each expression computed in it is spelled."""

    parent: Scope | None
    bound: frozenset[Expr]
    lines: list[str] = field(default_factory=list)
    names: dict[Expr, Spelled] = field(default_factory=dict)
    named: dict[str, Spelled] = field(default_factory=dict)  # the type and text of what has a name here
    reports: bool = False  # does it hold an index check? such a loop is not vectorised

    @property
    def around(self) -> Scope:
        """The parent of a scope that is not the outermost one."""
        assert self.parent is not None
        return self.parent

    def home(self, free: Iterable[Expr]) -> Scope:
        """The outermost scope in which everything in `free` is bound; for an index bound twice the inner
        loop counts."""
        wanted = {variable for variable in free if variable.op == "index"}
        scope = self
        while scope.parent is not None and not wanted & scope.bound:
            scope = scope.parent
        return scope

    def rebinds(self, free: Iterable[Expr]) -> bool:
        """Whether this scope binds an index of `free` that one around it binds, too."""
        bound, scope = self.bound.intersection(free), self.parent
        while bound and scope is not None:
            if bound & scope.bound:
                return True
            scope = scope.parent
        return False

    def add(self, head: Sequence[str], block: Scope) -> None:
        """`head { block }`; heads of several lines are nested loops without braces of their own."""
        self.lines.extend([*head[:-1], head[-1] + " {" if head else "{"])
        self.lines.extend("    " + line for line in block.lines)
        self.lines.append("}")
        self.reports |= block.reports


class Lowering(ABC):
    """The text of one kernel. After `run`, `parameters` and `checks` hold what the host must know."""

    target: ClassVar[str]
    table: ClassVar[Mapping[str, Mapping[str, Spelling]]]
    row: Scope  # the body of the loops over rows

    def __init__(self, nest: Nest, tensors: Mapping[str, Value], system: System) -> None:
        arranged = system.once(_arranged, nest)  # the same for all variants
        self.nest, self.unarranged = arranged.nest, arranged.before
        self.tensors = tensors
        self.results = {value: f"out{k}" for k, value in enumerate(nest.outputs)}
        self.system = system
        self.parameters: list[Parameter] = []
        self.checks: list[IndexCheck] = []
        self.root = Scope(None, frozenset())
        self._named: dict[tuple[Expr, str], Parameter] = {}
        self._counts: dict[str, int] = {}
        self._running: list[Expr] = []
        self._keep = self.kept()
        self._fresh_rows: dict[Expr, Spelled] = {}  # kept in the loop being written
        self._rows_kept: dict[Expr, Spelled] = {}  # to be read back in later loops
        self._hosted, self._users = arranged.hosted, arranged.users
        self._inner_folds = arranged.inner_folds
        self._folds = list(self._inner_folds)

    # ---- what a target decides -------------------------------------------------------------------

    @abstractmethod
    def type_name(self, dtype: DType) -> str:
        """How an element type is spelled."""

    @abstractmethod
    def fold(self, folds: Sequence[Expr], home: Scope, scope: Scope) -> None:
        """Add lines to `home` that compute reductions over the same loops, and enter their results in its
        names."""

    @abstractmethod
    def divide(self, numerator: Spelled, divisor: Expr, node: Expr) -> Spelled:
        """The quotient `node`, of a numerator >= 0 by a size that is known at launch only."""

    @abstractmethod
    def convert(self, text: Spelled, old: DType, new: DType) -> Spelled:
        """A cast."""

    @abstractmethod
    def cut_off(self, text: Spelled, old: DType, new: DType) -> Spelled:
        """A cast from floats to integers, which for what these do not hold gives what PyTorch gives on the
        target."""

    def kept(self) -> frozenset[Expr]:
        """What is kept from one loop over a row to the next."""
        return frozenset()

    def keep(self, node: Expr, memory: Scope) -> Spelled:
        """The place, for the current index of the row, of something that is computed once and read in later
        loops; `memory` is where it is declared."""
        raise NotImplementedError(f"{self.target}: {node.op} is kept nowhere")

    def outside(self, scope: Scope) -> Scope:
        """Where memory stands for what a loop over the row computes: in the body of the loops over rows, or
        before these where the loop does not depend on the row."""
        while scope is not self.row and scope is not self.root:
            scope = scope.around
        return scope

    def loop_written(self) -> None:
        """What was kept in a loop over the row may be read from now on."""
        self._rows_kept |= self._fresh_rows
        self._fresh_rows = {}

    def memory(self, load: Expr) -> str:
        """The name of the buffer that `load` reads."""
        return str(load.value)

    def local_type(self, node: Expr) -> str:
        return self.type_name(node.dtype)

    def operands(self, node: Expr, scope: Scope) -> tuple[Expr, ...]:
        """What must be computed where `node` is; the body of a reduction has a scope of its own."""
        return _operands(node)

    # ---- computing expressions -------------------------------------------------------------------

    def compute(self, roots: Sequence[Expr], scope: Scope) -> list[Spelled]:
        """Spell `roots` for use in `scope`. Lines that must come before are added to the scopes they belong
        to."""
        for fold in self._folds_below(roots):
            home = self._home(fold, scope)
            if fold not in home.names:
                self.fold([fold, *self._fused(fold, home, scope)], home, scope)
        local: dict[Expr, Spelled] = {}
        for node in self._missing(roots, scope, local):
            hurry()
            home = self._home(node, scope)
            spelled = self._spell(node, [local[arg] for arg in self.operands(node, scope)], home)
            inline = (
                home is scope
                and self._users.get(node, 0) <= 1
                and len(spelled[0]) <= _LONGEST_LINE
                and node.op not in ("check", "load")
                and node not in self._keep
            )
            if not inline and spelled[0].isidentifier() is False:
                spelled = self._name(node, spelled[0], home)
            if not inline:
                home.names[node] = spelled
            if node.op == "check":
                self._report(node, [local[arg] for arg in node.args], home)
            if node in self._keep and node not in self._rows_kept:
                self._fresh_rows[node] = row = self.keep(node, self.outside(home))
                home.lines.append(f"{row[0]} = {spelled[0]};")
            local[node] = spelled
        return [local[root] for root in roots]

    def _name(self, node: Expr, text: str, home: Scope) -> Spelled:
        """A name for what `text` gives in `home`. Different expressions may be one text, as one over an index
        that is checked and the same over that index are; what is read from memory may have changed, and
        outside of a loop over an index that is bound there as well the text means something else."""
        definition = f"{self.local_type(node)} {text}"
        scope: Scope | None = home
        while scope is not None:
            if definition in scope.named:
                return scope.named[definition]
            scope = None if scope.rebinds(node.free) else scope.parent
        name = self.fresh("v" if node.dtype is not INDEX else "p"), ATOM
        home.lines.append(f"const {self.local_type(node)} {name[0]} = {text};")
        if "[" not in text:
            home.named[definition] = name
        return name

    def _folds_below(self, roots: Sequence[Expr]) -> Iterator[Expr]:
        """The reductions that `roots` use, not those inside them."""
        stack, seen = list(reversed(roots)) if self._folds else [], set(roots)
        while stack:
            node = stack.pop()
            if node.op == "reduce":
                yield node
            for arg in reversed(_operands(node)):
                if arg not in seen:
                    seen.add(arg)
                    stack.append(arg)

    def _missing(self, roots: Sequence[Expr], scope: Scope, local: dict[Expr, Spelled]) -> Iterator[Expr]:
        """What has no spelling yet, arguments first. Leaves and what an outer scope holds go into `local`."""

        def enter(node: Expr) -> bool:
            known = self._known(node, scope)
            if known is not None:
                local[node] = known
            return known is None

        stack = [(root, False) for root in reversed(roots)]
        done: set[Expr] = set()
        while stack:
            node, ready = stack.pop()
            if ready:
                yield node
            elif node not in done:
                done.add(node)
                if enter(node):
                    stack.append((node, True))
                    stack.extend((arg, False) for arg in reversed(self.operands(node, scope)))

    def _known(self, node: Expr, scope: Scope) -> Spelled | None:
        if node.op == "const":
            if not node.dtype.is_float or node.dtype.bits > 16:
                return constant(node.value, node.dtype)
            # half types have no literals: one of float32 is converted
            return self.convert(constant(node.value, FLOAT32), FLOAT32, node.dtype)
        if node.op == "index":
            return identifier(node.value), ATOM
        if self._hosted.get(node):
            return self._of_its_type((self.parameter(node), ATOM), node)
        if node in self._rows_kept:
            return self._rows_kept[node]
        return self._home(node, scope).names.get(node)

    def _home(self, node: Expr, scope: Scope) -> Scope:
        return scope.home(node.free)

    def _spell(self, node: Expr, args: list[Spelled], home: Scope) -> Spelled:
        match node.op:
            case "load":
                element = f"{self.memory(node)}[{args[0][0]}]"
                if node.args[1] is TRUE:
                    return element, ATOM
                return f"{inside(args[1], 4)} ? {element} : {self.zero(node.dtype)}", 3
            case "check":
                return args[0]
            case "cast":
                old, whole = node.args[0].dtype, node.dtype.kind in ("int", "uint")
                is_place = node.dtype is INDEX and not node.reads  # in range, as coordinates are
                if old.is_float and whole and not is_place:
                    return self.cut_off(args[0], old, node.dtype)
                return self.convert(args[0], old, node.dtype)
            case "floordiv" if not node.dtype.is_float:
                return self._floordiv(node, args)
            case "mod" if not node.dtype.is_float and self._is_cut_off(node):
                return f"{inside(args[0], 13)} % {args[1][0]}", 13
        return self._spell_plainly(node, args)

    def _spell_plainly(self, node: Expr, args: list[Spelled]) -> Spelled:
        """By the target's table, with operands of functions converted to one type."""
        if isinstance(self.table[node.dtype.kind].get(node.op), Call) and node.op not in _COMPARISONS:
            spelled = self._call(node, args)
        else:
            spelled = spell(self.table, self.target, node, args)
        if node.dtype.kind in ("int", "uint") and node.dtype.bits < 32:
            return self.convert(spelled, INDEX, node.dtype)  # C computes in int: wrap as the type does
        return spelled

    def _call(self, node: Expr, args: Sequence[Spelled]) -> Spelled:
        """A function of operands that all have its type."""
        wanted = node.args[0].dtype if node.dtype is BOOL else node.dtype
        exact = [self.operand(text, arg, node, wanted) for text, arg in zip(args, node.args, strict=True)]
        return spell(self.table, self.target, node, exact)

    def zero(self, dtype: DType) -> str:
        """What a guarded load gives where nothing is read."""
        return (
            constant(0, dtype)[0] if dtype.bits > 16 or not dtype.is_float else f"{self.type_name(dtype)}{{}}"
        )

    def operand(self, text: Spelled, arg: Expr, node: Expr, wanted: DType) -> Spelled:
        """An operand of a function, of exactly the type wanted: a plain literal, a choice of two, and truths
        that are joined are ints in C."""
        turned = _TURNED_TO_INT["bool" if wanted is BOOL else "int"]
        if arg.op in turned and arg.dtype is wanted and not wanted.is_float:
            name = self.type_name(wanted)
            return (f"({name}){inside(text, 14)}", 14) if " " in name else (f"{name}({text[0]})", ATOM)
        return self.convert(text, arg.dtype, wanted)

    def _of_its_type(self, text: Spelled, node: Expr) -> Spelled:
        """What is spelled with the host's integers, which are wide, as the type of `node`, so that what it is
        used in wraps as that type does."""
        return text if node.dtype is INDEX else self.convert(text, INDEX, node.dtype)

    def _floordiv(self, node: Expr, args: list[Spelled]) -> Spelled:
        """Divisions of what is never negative need no correction, and a size at run time divides by
        multiplication."""
        numerator, divisor = node.args
        positive = self._is_never_negative(numerator)
        if divisor.is_const and divisor.value > 0:
            if positive:
                return f"{inside(args[0], 13)} / {args[1][0]}", 13
            return self._call(node, args)
        if not self._hosted.get(divisor):
            return self._call(node, args)
        if positive:
            return self._of_its_type(self.divide(args[0], divisor, node), node)
        greatest = highest(self.system, numerator)
        negative = greatest is not None and self.system.known(greatest < ZERO) is True
        # rounding down: for x < 0 the quotient is -1 - (-1 - x) / d
        x = inside(args[0], ATOM)
        up, down = self.divide(args[0], divisor, node), self.divide((f"~{x}", 14), divisor, node)
        quotient = (f"~{down[0]}", 14) if negative else (f"{x} < 0 ? ~{down[0]} : {up[0]}", 3)
        return self._of_its_type(quotient, node)

    def _is_never_negative(self, x: Expr) -> bool:
        least = lowest(self.system, x)
        return least is not None and self.system.known(least >= ZERO) is True

    def _is_cut_off(self, remainder: Expr) -> bool:
        """Whether C's remainder, which has the sign of what is divided, is the one that is meant."""
        x, divisor = remainder.args
        return divisor.is_const and divisor.value > 0 and self._is_never_negative(x)

    def _report(self, node: Expr, args: list[Spelled], home: Scope) -> None:
        x, low, high, position, guard = args
        number = len(self.checks) + 1
        self.checks.append(IndexCheck(node.value, node.value, node.args[1], node.args[2]))
        bad = f"!({inside(low, 11)} <= {x[0]} && {x[0]} < {inside(high, 11)})"
        condition = bad if node.args[4] is TRUE else f"{inside(guard, 5)} && {bad}"
        home.lines.append(f"if ({condition}) report(status, {number}, {position[0]}, {x[0]});")
        home.reports = True

    def joined(self, fold: Expr, accumulator: str, body: Spelled) -> str:
        """The line that joins one more element into an accumulator."""
        operation = intern(FOLDS[fold.value].join, (fold, fold), None, fold.dtype)
        if isinstance(self.table[fold.dtype.kind].get(operation.op), Call):
            body = self.operand(body, fold.args[0], fold, fold.dtype)
        return f"{accumulator} = {spell(self.table, self.target, operation, [(accumulator, ATOM), body])[0]};"

    def _fused(self, fold: Expr, home: Scope, scope: Scope) -> list[Expr]:
        """Other reductions over the same loops, at the same place, that need nothing still to be computed
        there."""
        batch = [fold]
        for other in self._folds:
            if (
                other not in batch
                and other not in self._running
                and other not in home.names
                and other.args[1:] == fold.args[1:]
                and self._home(other, scope) is home
                and {v for v in other.free if v.op == "index"} == {v for v in fold.free if v.op == "index"}
                and not self._inner_folds[other] & {*batch, *self._running}
                and not any(other in self._inner_folds[member] for member in batch)
            ):
                batch.append(other)
        return batch[1:]

    # ---- names -----------------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        number = self._counts.get(stem, 0)
        self._counts[stem] = number + 1
        return f"{stem}{number}"

    def parameter(self, value: Expr, kind: str = "int64") -> str:
        """The name of a parameter for an expression over sizes."""
        value = self.system.simplify(value)
        if value.is_const and not kind.startswith("magic"):
            return constant(value.value, value.dtype)[0]
        found = self._named.get((value, kind))
        if found is None:
            found = Parameter(self.fresh("by" if kind.startswith("magic") else "size"), value, kind)
            self._named[value, kind] = found
            self.parameters.append(found)
        return found.name


def identifier(name: str) -> str:
    """`name` as a C identifier."""
    return re.sub(r"\W", "_", name)


def identity(fold: Expr) -> Spelled:
    """What the accumulator of a reduction starts with."""
    value = FOLDS[fold.value].identity
    if not fold.dtype.is_float and value in (float("inf"), -float("inf")):
        if fold.dtype is BOOL:
            value = value > 0
        else:
            least, most = (
                (0, 2**fold.dtype.bits - 1)
                if fold.dtype.kind == "uint"
                else (-(2 ** (fold.dtype.bits - 1)), 2 ** (fold.dtype.bits - 1) - 1)
            )
            value = most if value > 0 else least
    return constant(value, fold.dtype)


def _operands(node: Expr) -> tuple[Expr, ...]:
    """What must be computed where `node` is: not the body of a reduction, which has a scope of its own."""
    return () if node.op in ("reduce", "index") else node.args


def _hosted(nodes: Iterable[Expr]) -> dict[Expr, bool]:
    """Which nodes are integers over sizes alone."""
    alone: dict[Expr, bool] = {}
    for node in nodes:
        alone[node] = node.op not in ("index", "load", "check", "reduce") and all(
            alone[arg] for arg in node.args
        )
    return {
        node: yes and node.dtype.kind in _HOST_KINDS and node.op != "const" for node, yes in alone.items()
    }


def _reachable_folds(folds: Sequence[Expr]) -> dict[Expr, frozenset[Expr]]:
    """For each reduction those inside its body."""
    return {
        fold: frozenset(node for node in toposort([fold.args[0]]) if node.op == "reduce") for fold in folds
    }


# ---- bringing expressions into the form that hoists well -----------------------------------------


@dataclass(frozen=True)
class _Arranged:
    """A nest as it is lowered; for each of its addresses what that was `before`, which of its nodes the host
    computes, and how many users each has; and its reductions with those inside each."""

    nest: Nest
    before: Mapping[Expr, Expr]
    hosted: Mapping[Expr, bool]
    users: Mapping[Expr, int]
    inner_folds: Mapping[Expr, frozenset[Expr]]


def _arranged(system: System, nest: Nest) -> _Arranged:
    """`nest` with each address summed from the outermost loop's terms inwards, and remainders by a size at
    run time taken from the quotient, so that one division serves both."""
    rank = {loop: 1 for loop in nest.rows} | ({nest.lane: 1000} if nest.lane is not None else {})
    for number, loop in enumerate(nest.inner):
        rank[loop] = 2 + number

    def level(term: Expr, coefficient: Expr) -> int:
        if (
            term is ONE
        ):  # a place among neighbours comes last, so that their accesses are seen to be side by side
            return sys.maxsize if nest.places > 1 and coefficient.is_const else 0
        return max((rank.get(i, 100) for i in term.free if i.op == "index"), default=0)

    def address(offset: Expr, before: Expr) -> Expr:
        terms = sorted(linear(offset).items(), key=lambda item: (level(*item), item[0].op != "index"))
        total: Expr = ZERO
        for term, coefficient in terms:
            factor = system.simplify(coefficient)
            total = total + (factor if term is ONE else term * factor)
        unarranged[total] = before
        return total

    def remade(node: Expr, args: tuple[Expr, ...]) -> Expr:
        if node.op == "load":
            return load(node.value, address(args[0], node.args[0]), node.dtype, args[1])
        if node.op == "mod" and not node.dtype.is_float and not args[1].is_const and over_sizes(args[1]):
            return args[0] - apply("floordiv", *args) * args[1]
        return node if args == node.args else remake(node, args)

    unarranged: dict[Expr, Expr] = {}
    nodes = nest.all_nodes
    hosted = _hosted(nodes)
    for_host = {
        arg for node in nodes if not hosted[node] and node.op != "index" for arg in node.args if hosted[arg]
    }
    done: dict[Expr, Expr] = {node: system.simplify(node) for node in for_host}
    for node in nodes:
        if node not in done:
            leaf = not node.args or node.op == "index"
            done[node] = node if leaf else remade(node, tuple(done[arg] for arg in node.args))
    elements = tuple(
        type(e)(e.value, done[e.scalar], address(done[e.offset], e.offset), e.indices, done[e.guard])
        for e in nest.elements
    )
    made = replace(nest, elements=elements)
    users = Counter(arg for node in made.all_nodes for arg in node.args)
    folds = [node for node in made.all_nodes if node.op == "reduce"]
    return _Arranged(made, unarranged, _hosted(made.all_nodes), users, _reachable_folds(folds))
