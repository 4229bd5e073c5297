"""Folds, pooling, resizing, contractions and composites against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from operator_rows import Draw, Row, agrees, b, cases, f, i, op, row, sizes, special

from dlcb.compiler.ir import ops

BLOCK = (f(3, 4, 5), f(1, 1, 1), f(2, 3, 1), special(3, 4, 5))
EMPTY = (f(0, 2, 3), f(2, 0, 0))
WHOLE = (i(2, 3, 4), b(2, 3, 4), i(2, 3, 4, dtype="int32"))


def fold(name: str, eager: Any, *samples: Any) -> list[Row]:
    """Rows for a fold over several choices of axes."""
    return [
        op(name, lambda x, a=axes, k=keep: eager(x, a, k), *samples, axes=axes, keepdim=keep)
        for axes in ((0,), (1, 2), (0, 2))
        for keep in (False, True)
    ]


def each_axis(function: Any) -> Any:
    """`function` over one axis at a time, for those that take no tuple."""

    def eager(x: torch.Tensor, axes: tuple[int, ...], keep: bool) -> torch.Tensor:
        for axis in reversed(axes):
            x = function(x, axis, keep)
        return x

    return eager


REDUCE = [
    *fold("sum", lambda x, a, k: x.sum(a, k), *BLOCK, *EMPTY, *WHOLE),
    *fold("prod", each_axis(lambda x, a, k: x.prod(a, k)), *BLOCK, *EMPTY, *WHOLE),
    *fold("mean", lambda x, a, k: x.mean(a, k), *BLOCK, *EMPTY),
    *fold("max", lambda x, a, k: x.amax(a, k), *BLOCK, *WHOLE),
    *fold("min", lambda x, a, k: x.amin(a, k), *BLOCK, *WHOLE),
    *fold("any", lambda x, a, k: x.any(a, k), *EMPTY, *WHOLE, i(2, 3, 4, low=0, high=2, dtype="uint8")),
    *fold("all", lambda x, a, k: x.all(a, k), *EMPTY, *WHOLE, i(2, 3, 4, low=0, high=2, dtype="uint8")),
    op("sum", lambda x: x.sum(), f(3, 4), f(0, 4), axes=(0, 1)),
    op("sum", lambda x: x.sum(), f(), axes=()),
    *(
        op(
            "var",
            lambda x, c=c: x.var((1,), correction=c, keepdim=True),
            f(3, 4),
            axes=(1,),
            keepdim=True,
            correction=c,
        )
        for c in (0, 1, 3)
    ),
    *(
        op(name, lambda x, n=name, k=k: getattr(torch, n)(x, 1, keepdim=k), *samples, axis=1, keepdim=k)
        for name in ("argmax", "argmin")
        for k in (False, True)
        for samples in [(f(3, 4), special(3, 4), special(2, 9, 2), i(5, 20, low=0, high=3), f(0, 3), f(3, 1))]
    ),
    *(op("cumsum", lambda x, a=a: x.cumsum(a), f(3, 4), i(2, 5), b(3, 4), f(0, 1), axis=a) for a in (0, 1)),
]

IMAGE = f(2, 3, 7, 8)
MAX_POOLS = [
    ((2, 2), (2, 2), (0, 0), (1, 1)),
    ((3, 3), (2, 2), (1, 1), (1, 1)),
    ((3, 2), (2, 3), (1, 0), (2, 1)),
    ((2, 2), (3, 3), (0, 0), (1, 1)),
    ((3, 3), (3, 3), (1, 1), (1, 1)),
]
WINDOW = [
    *(
        op(
            "max_pool",
            lambda x, a=(w, s, p, d, c): F.max_pool2d(x, *a),
            IMAGE,
            f(1, 1, 5, 5),
            special(1, 2, 6, 9),
            i(1, 2, 5, 6),
            f(3, 6, 7),
            window=w,
            stride=s,
            padding=p,
            dilation=d,
            ceil_mode=c,
        )
        for w, s, p, d in MAX_POOLS
        for c in (False, True)
    ),
    *(
        op(
            "avg_pool",
            lambda x, a=(w, s, p, c, n): F.avg_pool2d(x, *a),
            IMAGE,
            f(1, 1, 5, 5),
            f(1, 2, 6, 9),
            window=w,
            stride=s,
            padding=p,
            ceil_mode=c,
            count_include_pad=n,
        )
        for w, s, p, d in MAX_POOLS
        if d == (1, 1)
        for c in (False, True)
        for n in (False, True)
    ),
    op(
        "avg_pool",
        lambda x: F.avg_pool2d(x, 2, divisor_override=3),
        IMAGE,
        window=(2, 2),
        stride=(2, 2),
        padding=(0, 0),
        divisor=3,
    ),
    op(
        "max_pool",
        lambda x: F.max_pool1d(x, 3, 2),
        f(2, 3, 9),
        window=(3,),
        stride=(2,),
        padding=(0,),
        dilation=(1,),
    ),
    *(
        row(
            f"adaptive_avg_pool {o}",
            lambda g, x, o=o: g.apply(ops.adaptive_avg_pool, x, output=sizes(*o)),
            lambda x, o=o: F.adaptive_avg_pool2d(x, o),
            IMAGE,
            f(1, 2, 3, 3),
            f(0, 2, 5, 4),
            f(2, 3, 3),
        )
        for o in ((1, 1), (3, 3), (7, 8), (2, 5), (10, 3))
    ),
    *(
        row(
            f"upsample_nearest {o}",
            lambda g, x, o=o: g.apply(ops.upsample_nearest, x, output=sizes(*o)),
            lambda x, o=o: F.interpolate(x, o, mode="nearest"),
            IMAGE,
            f(1, 2, 3, 4),
            f(1, 1, 1, 1),
        )
        for o in ((14, 16), (3, 6), (7, 8), (5, 11))
    ),
    row(
        "upsample_nearest by (1.3, 1.5)",
        lambda g, x: g.apply(ops.upsample_nearest, x, output=sizes(3, 6), scales=(1.3, 1.5)),
        lambda x: F.interpolate(x, scale_factor=(1.3, 1.5), mode="nearest"),
        f(1, 1, 3, 4),
        free=False,
    ),
    *(
        row(
            f"upsample_nearest of {n} by 1.25",
            lambda g, x, n=n: g.apply(ops.upsample_nearest, x, output=sizes(n * 5 // 4), scales=(1.25,)),
            lambda x: F.interpolate(x, scale_factor=1.25, mode="nearest"),
            f(1, 2, n),
            free=False,
        )
        for n in (1, 2, 3, 4, 7)
    ),
    row(
        "upsample_nearest by (1.3, 2.2)",
        lambda g, x: g.apply(ops.upsample_nearest, x, output=sizes(9, 17), scales=(1.3, 2.2)),
        lambda x: F.interpolate(x, scale_factor=(1.3, 2.2), mode="nearest"),
        IMAGE,
    ),
    *(
        row(
            f"upsample_bilinear {o} {c}",
            lambda g, x, o=o, c=c: g.apply(ops.upsample_bilinear, x, output=sizes(*o), align_corners=c),
            lambda x, o=o, c=c: F.interpolate(x, o, mode="bilinear", align_corners=c),
            IMAGE,
            f(1, 2, 3, 4),
            f(1, 1, 1, 1),
        )
        for o in ((14, 16), (3, 6), (7, 8), (5, 1))
        for c in (False, True)
    ),
    row(
        "upsample_bilinear by (1.3, 2.2)",
        lambda g, x: g.apply(
            ops.upsample_bilinear, x, output=sizes(9, 17), align_corners=False, scales=(1.3, 2.2)
        ),
        lambda x: F.interpolate(x, scale_factor=(1.3, 2.2), mode="bilinear"),
        IMAGE,
    ),
]

CONTRACT = [
    op(
        "matmul",
        torch.matmul,
        (f(3, 4), f(4, 5)),
        (f(4), f(4)),
        (f(4), f(4, 5)),
        (f(3, 4), f(4)),
        (f(2, 3, 4), f(4, 5)),
        (f(2, 3, 4), f(2, 4, 5)),
        (f(2, 1, 3, 4), f(6, 4, 5)),
        (f(4), f(2, 4, 5)),
        (f(2, 3, 4), f(4)),
        (f(3, 0), f(0, 5)),
        (f(0, 3, 4), f(1, 4, 1)),
        (i(3, 4), i(4, 2)),
        (f(1, 1, 1), f(1, 1, 1)),
    ),
    op(
        "linear",
        F.linear,
        (f(2, 3, 4), f(5, 4)),
        (f(2, 3, 4), f(5, 4), f(5)),
        (f(4), f(5, 4), f(5)),
        (f(0, 4), f(5, 4)),
        (f(2, 0), f(5, 0), f(5)),
    ),
    *(
        op(
            "convolution",
            lambda x, w, *bias, a=(s, p, d, n): F.conv2d(x, w, *(bias or (None,)), *a),
            *samples,
            stride=s,
            padding=p,
            dilation=d,
            groups=n,
        )
        for s, p, d, n, samples in (
            (
                (1, 1),
                (0, 0),
                (1, 1),
                1,
                ((IMAGE, f(4, 3, 3, 3)), (IMAGE, f(4, 3, 1, 2), f(4)), (f(0, 3, 5, 5), f(4, 3, 3, 3))),
            ),
            ((2, 1), (1, 2), (1, 2), 1, ((IMAGE, f(4, 3, 3, 3), f(4)), (f(1, 3, 3, 5), f(2, 3, 3, 3)))),
            ((1, 1), (1, 1), (1, 1), 3, ((IMAGE, f(6, 1, 3, 3), f(6)),)),
            ((1, 1), (0, 0), (1, 1), 2, ((f(2, 4, 5, 5), f(6, 2, 3, 3)),)),
        )
    ),
    op(
        "convolution",
        lambda x, w: F.conv1d(x, w, padding=1),
        (f(2, 3, 6), f(4, 3, 3)),
        stride=(1,),
        padding=(1,),
        dilation=(1,),
    ),
]

QKV = (f(2, 3, 4, 8), f(2, 3, 5, 8), f(2, 3, 5, 6))
attend = F.scaled_dot_product_attention
COMPOSITE = [
    *(
        op(
            "softmax",
            lambda x, a=a: x.softmax(a),
            f(3, 4, 5),
            f(2, 1, 3),
            f(0, 2, 3),
            f(2, 3, 0),
            f(3, 4, 5, high=900),
            axis=a,
        )
        for a in (0, 1, 2)
    ),
    op("softmax", lambda x: x.softmax(0), f(3), axis=0),
    op("log_softmax", lambda x: x.log_softmax(1), f(3, 4), f(3, 4, high=900), f(2, 0), axis=1),
    op(
        "layer_norm",
        lambda x, *p: F.layer_norm(x, (6,), *p),
        (f(3, 4, 6),),
        (f(3, 6), f(6)),
        (f(0, 6), f(6), f(6)),
        (f(6), f(6), f(6)),
        dims=1,
        eps=1e-5,
    ),
    op(
        "layer_norm",
        lambda x, *p: F.layer_norm(x, (4, 6), *p),
        (f(3, 4, 6),),
        (f(3, 4, 6), f(4, 6), f(4, 6)),
        dims=2,
        eps=1e-5,
    ),
    op(
        "rms_norm",
        lambda x, *p: F.rms_norm(x, (6,), *p, eps=1e-6),
        (f(3, 4, 6),),
        (f(3, 6), f(6)),
        dims=1,
        eps=1e-6,
    ),
    op(
        "batch_norm",
        lambda x, m, v, *p: F.batch_norm(x, m, v, *p, eps=1e-3),
        *(
            (x, f(3), f(3, low=0.5), *p)
            for x in (f(2, 3, 4, 5), f(4, 3), f(0, 3, 2))
            for p in ((), (f(3),), (f(3), f(3)))
        ),
        eps=1e-3,
    ),
    op(
        "group_norm",
        lambda x, *p: F.group_norm(x, 2, *p),
        *((x, *p) for x in (f(2, 4, 3, 5), f(3, 4)) for p in ((), (f(4), f(4)))),
        groups=2,
        eps=1e-5,
    ),
    op(
        "attention",
        attend,
        QKV,
        (*QKV, f(4, 5)),
        (*QKV, b(2, 1, 4, 5)),
        (f(4, 8), f(5, 8), f(5, 8)),
        (f(0, 4, 8), f(0, 5, 8), f(0, 5, 8)),
    ),
    op(
        "attention",
        lambda *x: attend(*x, is_causal=True),
        QKV,
        (f(2, 5, 8), f(2, 3, 8), f(2, 3, 8)),
        causal=True,
    ),
    op("attention", lambda *x: attend(*x, scale=0.3), QKV, scale=0.3),
    row(
        "attention with every key masked",
        lambda g, q, k, v, m: g.apply(ops.attention, q, k, v, g.apply(ops.lt, m, m)),
        lambda q, k, v, m: attend(q, k, v, torch.zeros_like(m, dtype=torch.bool)),
        (*QKV, f(4, 5)),
    ),
]

INDEX = [
    op(
        "embedding",
        lambda t, n: F.embedding(n, t),
        (f(6, 3), i(2, 4, low=0)),
        (f(6, 3), i(0, 4, low=0)),
        (f(6, 1), i(low=0)),
    ),
    op(
        "gather",
        lambda x, n: x.gather(1, n),
        (f(3, 6), i(3, 4, low=0)),
        (f(3, 6), i(2, 9, low=0)),
        (f(3, 6), i(0, 2, low=0)),
        axis=1,
    ),
    op(
        "take_along",
        lambda x, n: torch.take_along_dim(x, n, 1),
        (f(3, 6), i(1, 4, low=0)),
        (f(1, 6), i(3, 4, low=0)),
        axis=1,
    ),
    op(
        "index_select",
        lambda x, n: x.index_select(1, n),
        (f(2, 6, 3), i(4, low=0)),
        (f(2, 6, 0), i(0, low=0)),
        axis=1,
    ),
    op("index_select", lambda x, n: x.index_select(0, n), (f(6, 3), i(low=0)), axis=0),
    op("advanced_index", lambda x, a: x[:, a], (f(2, 6, 3), i(4, 5)), (f(2, 6, 3), i(0)), axes=(1,)),
    op(
        "advanced_index",
        lambda x, a, c: x[:, a, c],
        (f(2, 6, 7), i(4, 1), i(5)),
        (f(2, 6, 7, 2), i(3), i(3)),
        axes=(1, 2),
    ),
    op(
        "advanced_index",
        lambda x, a, c: x[a, :, c],
        (f(6, 2, 7), i(4, 1), i(5)),
        (f(6, 2, 7), i(3), i(1)),
        axes=(0, 2),
    ),
    row(
        "one_hot",
        lambda g, n: g.apply(ops.one_hot, n, classes=sizes(6)[0]),
        lambda n: F.one_hot(n, 6),
        i(2, 3, low=0),
        i(low=0),
    ),
]


@pytest.mark.parametrize(("r", "sample", "free"), cases(REDUCE, WINDOW, CONTRACT, COMPOSITE, INDEX))
def test_agrees_with_eager(r: Row, sample: tuple[Draw, ...], free: bool) -> None:
    agrees(r, sample, free)
