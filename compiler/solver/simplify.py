"""The engine's instance for expressions: sizes, coordinates and kernel bodies go in with facts about size
variables; equal, simpler expressions come out, the same one for any two that the normal form shows to be
equal."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from dlcb.compiler.dtype import INDEX
from dlcb.compiler.expr.bounds import Bounds, Interval
from dlcb.compiler.expr.dag import Expr, operands, toposort
from dlcb.compiler.expr.node import remake, substitute
from dlcb.compiler.solver import polynomial, prove
from dlcb.compiler.solver.arithmetic import ARITHMETIC
from dlcb.compiler.solver.comparison import COMPARISON
from dlcb.compiler.solver.conditions import CONDITIONS
from dlcb.compiler.solver.division import DIVISION
from dlcb.compiler.solver.engine import STEPS, STEPS_AT_ONCE, Engine
from dlcb.compiler.solver.pattern import any_of
from dlcb.compiler.solver.polynomial import TERMS, Polynomial
from dlcb.compiler.solver.refute import Refuter
from dlcb.compiler.solver.rule import Rule, RuleSet
from dlcb.compiler.solver.stated import Stated

EXPRESSIONS: RuleSet = (
    # n -> e  where n == e was stated
    Rule("substitution", any_of("x", "size"), lambda know, x: know.facts.substitution.get(x)),
    *ARITHMETIC,
    *DIVISION,
    *COMPARISON,
    *CONDITIONS,
)

_WIDE = 16  # variables of an expression that is not listed under each of them
_SETTLED = 16  # proofs under the same facts, from which on it pays to look for sizes that refute one first
_DATA = ("load", "reduce", "cast")  # values from outside, whose arithmetic may wrap
_JOINED = ("and", "or", "min", "max")  # associative, with a rule for operands in any number


@dataclass
class Facts:
    """What is known of size variables: what stands for them, where they lie, what divides them; and
    conditions that hold."""

    substitution: dict[Expr, Expr] = field(default_factory=dict)
    ranges: dict[Expr, Interval] = field(default_factory=dict)
    multiples: dict[Expr, int] = field(default_factory=dict)
    truths: dict[Expr, object] = field(default_factory=dict)


class Simplifier:
    """Simplifies under `facts`. Who changes them says so: `changed` and `state` for one fact, `forget` for
    any; answers are kept from one change to the next.

    Loop indices stay the nodes they are (their extents are read through the facts, not rewritten)."""

    def __init__(
        self,
        facts: Facts | None = None,
        rules: RuleSet = EXPRESSIONS,
        budget: int = STEPS,
        at_once: int = STEPS_AT_ONCE,
    ) -> None:
        self.facts = facts if facts is not None else Facts()
        self.engine = Engine(rules, budget, at_once)
        # what the form of an expression alone decides is kept for good
        self._polynomials: dict[Expr, Polynomial] = {}
        self._normal: dict[Expr, Expr] = {}
        self._coordinates: dict[Expr, bool] = {}
        self._refuter = Refuter(self.facts)
        self.forget()

    def __getstate__(self) -> dict[str, Any]:
        """Without what others have derived, which is theirs and may be much."""
        return {**vars(self), "answers": {}}

    def forget(self) -> None:
        """Facts may have changed in any way: drops what was derived from earlier ones."""
        self._simple: dict[Expr, Expr] = {}
        # variable -> what was simplified and mentions it, with all it mentions; None -> what mentions many
        self._over: dict[Expr | None, dict[Expr, frozenset[Expr]]] = {}
        self.bounds = Bounds(self.facts.ranges, self.facts.multiples)
        self._refuter.forget()
        self.stated = Stated()
        for truth in self.truths:
            self.stated.add(truth, self._gap(truth))
        self._unsettle()

    def _unsettle(self) -> None:
        self.answers: dict[Hashable, Any] = {}  # what others have derived, by what they asked
        self._proofs: dict[frozenset, bool] = {}

    def changed(self, symbol: Expr) -> None:
        """What stands for a size variable, its range or what divides it is another now."""
        for e in self._over.pop(symbol, ()):
            self._simple.pop(e, None)
        self._drop(None, lambda mentioned: symbol in mentioned)
        self.bounds.forget(symbol)
        self._refuter.forget(symbol)
        self._unsettle()

    def withdraw(self, truth: Expr) -> None:
        """`truth`, whose sizes changed, is on its way to be stated again."""
        self.stated.remove(truth)
        self._unsettle()

    def may_decide(self, truth: Expr) -> bool:
        """Whether a range that has become narrower may decide `truth`, or say more than it does. An order of
        sizes says what it says, unless its ends contradict it or imply it."""
        gap = self.stated.gap(truth)
        if gap is None or any(atom.op != "size" for atom in polynomial.atoms(gap)):
            return True
        least = prove.least(self, gap)
        if least is not None and least >= 0:
            return True
        return self.nonnegative(polynomial.subtract(polynomial.constant(-1), gap))

    def state(self, truth: Expr) -> None:
        """`truth` holds as well. It says nothing about what lacks one of the sizes that it mentions; a
        remainder that is 0 says something about all that mentions one of them."""
        self.stated.add(truth, self._gap(truth))
        about = truth.free
        if truth.op == "eq" and truth.args[0].op == "mod":
            for symbol in about:
                self._drop(symbol, lambda mentioned: True)
            self._drop(None, lambda mentioned: not about.isdisjoint(mentioned))
        else:
            if len(about) <= _WIDE:
                self._drop(self._rarest(truth), about.issubset)
            self._drop(None, about.issubset)
        self._refuter.state(truth)
        self._unsettle()

    def _drop(self, listed: Expr | None, concerned: Callable[[frozenset[Expr]], bool]) -> None:
        """Forgets what is listed there and mentions what is `concerned`, and what was forgotten elsewhere."""
        over = self._over.get(listed, {})
        for e in [e for e, mentioned in over.items() if e not in self._simple or concerned(mentioned)]:
            self._simple.pop(e, None)
            del over[e]

    def _rarest(self, truth: Expr) -> Expr | None:
        """The size variable of `truth` over which the fewest expressions were simplified."""
        return min(truth.free, key=lambda s: (len(self._over.get(s, ())), s.digest), default=None)

    def _gap(self, truth: Expr) -> Polynomial | None:
        """What is at least 0 because the order `truth` holds."""
        if truth.op not in ("le", "lt") or truth.args[0].dtype is not INDEX:
            return None
        gap = polynomial.subtract(self.polynomial(truth.args[1]), self.polynomial(truth.args[0]))
        return gap if truth.op == "le" else polynomial.add(gap, polynomial.constant(-1))

    @property
    def truths(self) -> dict[Expr, object]:
        return self.facts.truths

    def simplify(self, root: Expr) -> Expr:
        """An expression equal to `root` wherever the facts hold and `root` has a value."""
        simple = self._simple.get(root)
        if simple is None:
            with self.engine.use():
                self._normalise(root)
            simple = self._simple[root]
        return simple

    def _normalise(self, root: Expr) -> None:
        simple = self._simple
        stack: list[tuple[Expr, Expr | None]] = [(root, None)]  # a node, and what it was rewritten to
        while stack:
            node, rewritten = stack.pop()
            if node in simple:
                continue
            if rewritten is None:
                parts = self._parts(node)
                missing = [part for part in parts if part not in simple]
                if missing:
                    stack.append((node, None))
                    stack.extend((part, None) for part in missing)
                    continue
                rewritten = node
                if any(simple[part] is not part for part in parts):
                    rewritten = _with_parts(node, parts, simple)
                if rewritten is node:
                    rewritten = self.engine.rewrite(node, self, len(parts)) or node
                    if _is_arithmetic(node):
                        self._settle(rewritten, rewritten)  # the normal form over simple atoms
            if rewritten is node:
                self._settle(node, node)
            elif rewritten in simple:
                self._settle(node, simple[rewritten])
            else:
                stack += [(node, rewritten), (rewritten, None)]

    def _settle(self, node: Expr, simple: Expr) -> None:
        self._simple[node] = simple
        mentioned = node.free if simple is node else node.free | simple.free
        for symbol in listed(mentioned):
            self._over.setdefault(symbol, {})[node] = mentioned

    def _parts(self, node: Expr) -> tuple[Expr, ...]:
        """What is to be simplified before `node`: its arguments, or the atoms of a whole tree of sums and
        products, or the operands of a whole tree of one other operator, so that a long one is brought to
        normal form once and not at each of its terms."""
        if node.op == "index":
            return ()
        if node.op in _JOINED and any(arg.op == node.op for arg in node.args):
            return tuple(operands(node.op, node))
        if _is_arithmetic(node):
            normal = self.polynomial(node)
            if (node,) not in normal:
                return tuple(dict.fromkeys(atom for monomial in normal for atom in monomial))
        return node.args

    def polynomial(self, root: Expr) -> Polynomial:
        """The normal form of an integer expression; products that would be too long count as atoms."""
        known = self._polynomials
        stack = [root]
        while stack:
            node = stack[-1]
            if node in known:
                stack.pop()
            elif _is_arithmetic(node):
                missing = [arg for arg in node.args if arg not in known]
                stack += missing
                if not missing:
                    known[node] = _combine(node, known[node.args[0]], known[node.args[1]])
            else:
                known[node] = polynomial.constant(node.value) if node.op == "const" else polynomial.atom(node)
        return known[root]

    def normal(self, root: Expr) -> Expr:
        """The expression that the normal form of `root` spells."""
        known = self._normal.get(root)
        if known is None:
            known = self._normal[root] = polynomial.to_expr(self.polynomial(root))
        return known

    def interval(self, e: Expr) -> Interval:
        return self.bounds.interval(e)

    def divisor(self, e: Expr) -> int:
        return self.bounds.divisor(e)

    def nonnegative(self, p: Polynomial) -> bool:
        """Whether `p` >= 0 is proved."""
        key = frozenset(p.items())
        known = self._proofs.get(key)
        if known is None:
            self._proofs[key] = False  # a proof that needs itself is none
            if len(self._proofs) > _SETTLED and self._refuter.negative(p):
                return False
            with self.engine.use():
                known = self._proofs[key] = prove.nonnegative(self, p)
        return known

    def spend(self, terms: int = 0) -> bool:
        return self.engine.spend(terms)

    def is_coordinate(self, e: Expr) -> bool:
        """Whether `e` is made of sizes and indices alone, or of index values that are checked: then 64 bits
        hold it."""
        known = self._coordinates
        if e not in known:
            for node in toposort([e], lambda n: n not in known):
                plain = node.op not in _DATA and all(known[arg] for arg in node.args)
                known[node] = plain or node.op in ("check", "index")
        return known[e]


def listed(variables: frozenset[Expr]) -> Iterable[Expr | None]:
    """Under what an expression over these is found again: under each of a few, or under None."""
    return variables if len(variables) <= _WIDE else (None,)


def _is_arithmetic(node: Expr) -> bool:
    return node.op in ("add", "sub", "mul") and node.dtype is INDEX


def _with_parts(node: Expr, parts: tuple[Expr, ...], simple: dict[Expr, Expr]) -> Expr:
    if parts == node.args:
        return remake(node, tuple(simple[part] for part in parts))
    return substitute(node, {part: simple[part] for part in parts})


def _combine(node: Expr, a: Polynomial, b: Polynomial) -> Polynomial:
    match node.op:
        case "add":
            return polynomial.add(a, b)
        case "sub":
            return polynomial.subtract(a, b)
        case _ if len(a) * len(b) > TERMS:
            return polynomial.atom(node)
        case _:
            return polynomial.multiply(a, b)
