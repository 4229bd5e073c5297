"""Random integer expressions and assignments: the material of the randomised proofs that rewriting keeps
values."""

from __future__ import annotations

from hypothesis import strategies as st

from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import apply, const, evaluate, index, size

SIZES = (0, 1, 2, 3, 7, 12, 97, 4096)
NAMES = ("n", "m", "k")
_EXTENTS = (size("n"), size("m"), size("n") * size("m"), const(4), const(12), const(32))
LEAVES = (
    *map(size, NAMES),
    *(index(name, extent) for name, extent in zip("abcdef", _EXTENTS, strict=True)),
    *map(const, (-7, -1, 0, 1, 2, 3, 4, 12, 32, 384)),
)


def _integers(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    plain = st.builds(apply, st.sampled_from(("add", "add", "sub", "mul", "min", "max")), inner, inner)
    divided = st.builds(
        apply, st.sampled_from(("floordiv", "mod")), inner, st.one_of(inner, st.sampled_from(LEAVES))
    )
    chosen = st.builds(lambda c, x, y: apply("where", c, x, y), conditions(inner), inner, inner)
    return st.one_of(plain, divided, divided, chosen)


def conditions(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    compared = st.builds(apply, st.sampled_from(("lt", "le", "eq", "ne")), inner, inner)
    return st.one_of(
        compared,
        st.builds(lambda x: apply("not", x), compared),
        st.builds(apply, st.sampled_from(("and", "or")), compared, compared),
    )


integers = st.recursive(st.sampled_from(LEAVES), _integers, max_leaves=9)
truths = conditions(integers)


@st.composite
def assignments(draw: st.DrawFn, roots: list[Expr]) -> dict[str, int] | None:
    """Values of what is free in `roots`: sizes from the hostile ones, indices below their extents; None where
    an extent is 0."""
    values = {name: draw(st.sampled_from(SIZES)) for name in NAMES}
    for node in toposort(roots):
        if node.op == "index":
            extent = evaluate(node.args[0], values)
            if extent == 0:
                return None
            values[node.value] = draw(st.integers(0, extent - 1))
    return values
