"""Pointwise operators against eager PyTorch: special values, integers, bools, promotion, every pattern of
broadcasting."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from operator_rows import Draw, Row, agrees, b, cases, f, i, op, row, special

from dlcb.compiler.dtype import BOOL, FLOAT64, INT64
from dlcb.compiler.expr import node
from dlcb.compiler.ir import ops

UNARY_SHAPES = (special(4, 5), f(0, 3), f(1), f())
UNARY = [
    op(name, getattr(torch, name), *UNARY_SHAPES)
    for name in [
        "neg",
        "abs",
        "sign",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "erf",
        "floor",
        "ceil",
        "trunc",
        "round",
        "isnan",
        "isinf",
        "logical_not",
        "reciprocal",
        "relu",
        "sigmoid",
    ]
] + [
    op("silu", F.silu, f(4, 5), f(3, low=-800, high=-600), f()),
    op("gelu", F.gelu, special(4, 5), f(), approximate="none"),
    op("gelu", lambda x: F.gelu(x, approximate="tanh"), f(4, 5), approximate="tanh"),
    op("sigmoid", torch.sigmoid, f(5, low=-1000, high=1000)),
    op("neg", torch.neg, i(3)),
    op("abs", torch.abs, i(3)),
    op("sign", torch.sign, i(6)),
    op("exp", torch.exp, i(3)),
    op("floor", torch.floor, i(3)),
    op("relu", torch.relu, i(6)),
    op("sqrt", torch.sqrt, i(6, low=0)),
    op(
        "bitwise_not", torch.bitwise_not, i(6), b(6), i(6, low=0, high=255, dtype="uint8"), i(6, dtype="int8")
    ),
    op("logical_not", torch.logical_not, i(6), b(6)),
    op("isnan", torch.isnan, i(3)),
    op("cast", lambda x: x.to(torch.int64), f(4, 3), b(3), dtype=INT64),
    op("cast", lambda x: x.to(torch.bool), f(4, 3), i(6), dtype=BOOL),
    op("cast", lambda x: x.to(torch.float64), b(4, 3), i(6), dtype=FLOAT64),
]

PAIRS = [
    (special(4, 5), special(4, 5)),
    (f(5, 3), f(1, 3)),
    (f(5, 3), f(5, 1)),
    (f(1, 1), f(5, 3)),
    (f(5, 3), f()),
    (f(3), f(2, 5, 3)),
    (f(0, 3), f(1, 3)),
    (f(2, 1, 3), f(4, 1)),
    (f(0), f(1)),
]
INTEGERS = [(i(40), i(40, low=1, high=6)), (i(40), i(40, low=-6, high=0)), (i(2, 3), i(1, 3, low=1))]
BYTES = (i(40, low=0, high=256, dtype="uint8"), i(40, low=250, high=256, dtype="uint8"))  # 255 is not -1
BOOLS = [(b(9), b(9)), (b(3, 1), b(1, 4))]
BINARY = [
    *(
        op(name, getattr(torch, name), *PAIRS, *INTEGERS)
        for name in [
            "add",
            "sub",
            "mul",
            "div",
            "minimum",
            "maximum",
            "atan2",
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            "fmod",
        ]
    ),
    op("floordiv", torch.floor_divide, *PAIRS, *INTEGERS, BYTES),
    op("mod", torch.remainder, *PAIRS, *INTEGERS, BYTES),
    op("fmod", torch.fmod, BYTES),
    op("mod", torch.remainder, (i(3, low=-7, high=-6), i(3, low=2, high=3))),
    op("pow", torch.pow, *PAIRS, (i(9), i(9, low=0, high=5))),
    *(op(name, getattr(torch, name), *BOOLS) for name in ("add", "mul", "maximum", "minimum", "eq", "lt")),
    *(
        op(name, getattr(torch, name), *BOOLS, *INTEGERS, *PAIRS[:3])
        for name in ("logical_and", "logical_or", "logical_xor")
    ),
    *(
        op(name, getattr(torch, name), *BOOLS, *INTEGERS)
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
    ),
    op(
        "add",
        torch.add,
        (i(3), f(3)),
        (b(3), i(3)),
        (i(3, dtype="int32"), i(3, dtype="int64")),
        (i(3, dtype="int8"), i(3, low=0, dtype="uint8")),
    ),
    op(
        "where",
        torch.where,
        (b(4, 5), f(4, 5), f(4, 5)),
        (b(4, 1), f(5), f()),
        (b(0, 1), f(1, 3), f(3)),
        (b(3), i(3), f(3)),
    ),
    *(
        row(
            f"pow {e}",
            lambda g, x, e=e: g.apply(ops.pow, x, g.apply(ops.full, shape=(), value=e, dtype=x.dtype)),
            lambda x, e=e: x**e,
            special(7),
        )
        for e in (2, 3, 0.5, -0.5, -1, 0, 1.7)
    ),
    row(
        "prelu",
        lambda g, x, w: g.apply(
            ops.where,
            g.apply(ops.gt, x, g.apply(ops.full, shape=(), value=0.0, dtype=x.dtype)),
            x,
            g.apply(ops.mul, x, g.apply(ops.reshape, w, shape=(w.shape[0], node.ONE, node.ONE))),
        ),
        F.prelu,
        (f(2, 3, 4, 5), f(3)),
        (f(0, 3, 1, 1), f(3)),
    ),
]


@pytest.mark.parametrize(("r", "sample", "free"), cases(UNARY, BINARY))
def test_agrees_with_eager(r: Row, sample: tuple[Draw, ...], free: bool) -> None:
    agrees(r, sample, free)
