"""Operators that move and make elements, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from operator_rows import Draw, Row, agrees, b, cases, f, i, op, row

from dlcb.compiler.dtype import FLOAT64, INT64
from dlcb.compiler.expr import node
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Value


def reshape(*shape: Any) -> Callable[..., Value]:
    return lambda g, x: g.apply(
        ops.reshape, x, shape=tuple(map(node.as_expr, [s(x) if callable(s) else s for s in shape]))
    )


def axis(k: int) -> Callable[[Value], Any]:
    return lambda x: x.shape[k]


MOVE = [
    row(
        "reshape split",
        reshape(axis(0), axis(1), 4, 3),
        lambda x: x.reshape(x.shape[0], x.shape[1], 4, 3),
        f(2, 5, 12),
        f(0, 1, 12),
    ),
    row(
        "reshape merge",
        reshape(lambda x: x.shape[0] * x.shape[1], axis(2)),
        lambda x: x.reshape(-1, x.shape[2]),
        f(2, 5, 3),
        f(1, 1, 1),
    ),
    row(
        "reshape merge to flat",
        reshape(lambda x: x.shape[0] * x.shape[1] * x.shape[2]),
        lambda x: x.reshape(-1),
        f(2, 5, 3),
        f(2, 0, 3),
    ),
    row("reshape other groups", reshape(6, axis(1), 2), lambda x: x.reshape(6, x.shape[1], 2), f(4, 3, 3)),
    row(
        "reshape squeeze",
        reshape(axis(0), axis(2)),
        lambda x: x.reshape(x.shape[0], x.shape[2]),
        f(4, 1, 3),
        f(1, 1, 1),
    ),
    row(
        "reshape unsqueeze",
        reshape(1, axis(0), 1, axis(1), 1),
        lambda x: x[None, :, None, :, None],
        f(4, 3),
        f(0, 1),
    ),
    row("reshape to rank 0", reshape(), lambda x: x.reshape(()), f(1, 1)),
    row(
        "reshape halves",
        reshape(axis(0), lambda x: x.shape[1] // 2, 2),
        lambda x: x.reshape(x.shape[0], -1, 2),
        f(3, 6),
    ),
    op("permute", lambda x: x.permute(2, 0, 1), f(2, 3, 4), f(0, 1, 2), order=(2, 0, 1)),
    row(
        "expand",
        lambda g, x: g.apply(ops.expand, x, shape=(node.as_expr(4), x.shape[0], node.as_expr(3))),
        lambda x: x.expand(4, x.shape[0], 3),
        f(2, 1),
        f(1, 3),
        f(0, 1),
    ),
    *(
        op(
            "slice",
            lambda x, a=a, z=z, s=s: x[:, a:z:s],
            f(3, 7),
            f(2, 1),
            f(1, 0),
            axis=1,
            start=node.as_expr(a),
            stop=node.as_expr(z),
            step=s,
        )
        for a, z, s in (
            (0, 5, 1),
            (1, 100, 2),
            (-3, -1, 1),
            (-100, 3, 1),
            (5, 2, 1),
            (0, 2**63 - 1, 3),
            (2, 100, 1),
        )
    ),
    row(
        "slice to another's size",
        lambda g, x, y: g.apply(ops.slice, x, axis=0, start=node.ZERO, stop=y.shape[0], step=1),
        lambda x, y: x[: y.shape[0]],
        (f(5), f(3)),
        (f(3), f(5)),
        (f(3), f(0)),
    ),
    *(
        op("select", lambda x, k=k: x.select(1, k), f(3, 4), f(2, 3, 2), axis=1, index=node.as_expr(k))
        for k in (0, 2, -1)
    ),
    op(
        "concat",
        lambda *xs: torch.cat(xs, 1),
        (f(2, 3), f(2, 4)),
        (f(2, 1), f(2, 0), f(2, 5)),
        (f(0, 3), f(0, 2)),
        (i(2, 3), f(2, 3)),
        axis=1,
    ),
    op("concat", lambda *xs: torch.cat(xs, 0), (f(2, 3),), (b(2), b(3), b(1)), axis=0),
    op(
        "pad",
        lambda x: F.pad(x, (1, 2, 0, 3), value=7.0),
        f(2, 3, 4),
        f(1, 1, 0),
        low=(0, 0, 1),
        high=(0, 3, 2),
        value=7.0,
    ),
    op("pad", lambda x: F.pad(x, (-1, 2)), f(2, 4), i(3, 1), low=(0, -1), high=(0, 2), value=0),
    *(
        op(
            "pad",
            lambda x, mode=mode: F.pad(x, (2, 1), mode=mode),
            f(1, 2, 4),
            f(2, 1, 3),
            low=(0, 0, 2),
            high=(0, 0, 1),
            mode=mode,
        )
        for mode in ("reflect", "replicate", "circular")
    ),
    op("flip", lambda x: x.flip(0, 2), f(2, 3, 4), f(1, 0, 1), axes=(0, 2)),
    op("repeat", lambda x: x.repeat(2, 1, 3), f(2, 3), f(2, 3, 2), f(0, 1), counts=(2, 1, 3)),
    *(op("roll", lambda x, s=s: x.roll(s, 1), f(3, 5), f(2, 1), axis=1, shift=s) for s in (2, -1, 7)),
    *(
        op(
            name,
            lambda x, name=name, d=d: getattr(torch, name)(x, d),
            f(4, 4),
            f(2, 3, 5),
            b(3, 1),
            diagonal=d,
        )
        for name in ("tril", "triu")
        for d in (0, 1, -2)
    ),
    *(
        op(
            "windows",
            lambda x, a=a, s=s, step=step, d=d: x.unfold(a, d * (s - 1) + 1, step)[..., ::d],
            f(7, 4),
            f(6, 5, 2) if a == 0 else f(2, 5, 3),
            f(5, 4, 0),
            axis=a,
            size=s,
            step=step,
            dilation=d,
        )
        for a, s, step, d in ((0, 3, 1, 1), (1, 2, 2, 1), (1, 2, 1, 3), (0, 1, 3, 2))
    ),
    *(
        op(
            "diagonal",
            lambda x, d=d: x.diagonal(d, -2, -1),
            f(4, 4),
            f(2, 3, 5),
            b(3, 1),
            f(0, 2),
            offset=d,
        )
        for d in (0, 1, -2, 7)
    ),
    row(
        "transpose, flatten, repeat each, flip",
        lambda g, x: g.apply(
            ops.flip,
            g.apply(
                ops.reshape,
                g.apply(
                    ops.expand,
                    g.apply(
                        ops.reshape,
                        g.apply(ops.permute, x, order=(1, 0)),
                        shape=(x.shape[0] * x.shape[1], node.ONE),
                    ),
                    shape=(x.shape[0] * x.shape[1], node.as_expr(2)),
                ),
                shape=(x.shape[0] * x.shape[1] * 2,),
            ),
            axes=(0,),
        ),
        lambda x: x.T.flatten().repeat_interleave(2).flip(0),
        i(2, 2),
        i(3, 1),
    ),
]

CREATE = [
    row(
        "full",
        lambda g, x: g.apply(ops.full, shape=(x.shape[0], node.as_expr(2)), value=1.5, dtype=FLOAT64),
        lambda x: torch.full((x.shape[0], 2), 1.5, dtype=torch.float64),
        f(3),
        f(0),
    ),
    row(
        "full of a size",
        lambda g, x: g.apply(ops.full, shape=(), value=x.shape[0] * 2, dtype=FLOAT64),
        lambda x: torch.tensor(float(x.shape[0] * 2), dtype=torch.float64),
        f(3),
        f(0),
    ),
    *(
        row(
            f"arange by {s}",
            lambda g, x, s=s: g.apply(
                ops.arange, start=node.as_expr(0), stop=x.shape[0], step=s, dtype=INT64
            ),
            lambda x, s=s: torch.arange(0, x.shape[0], s),
            *(f(n) for n in (1, 2, 4, 5, 9, 0)),
        )
        for s in (1, 2, 3)
    ),
    row(
        "arange down",
        lambda g, x: g.apply(ops.arange, start=x.shape[0], stop=node.as_expr(-1), step=-2, dtype=INT64),
        lambda x: torch.arange(x.shape[0], -1, -2),
        f(4),
        f(5),
        f(0),
    ),
    row(
        "eye",
        lambda g, x: g.apply(ops.eye, rows=x.shape[0], columns=x.shape[1], dtype=FLOAT64),
        lambda x: torch.eye(*x.shape, dtype=torch.float64),
        f(3, 4),
        f(1, 0),
    ),
]


@pytest.mark.parametrize(("r", "sample", "free"), cases(MOVE, CREATE))
def test_agrees_with_eager(r: Row, sample: tuple[Draw, ...], free: bool) -> None:
    agrees(r, sample, free)
