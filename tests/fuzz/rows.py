"""One function a family of operators: it picks operands that suit the operator, draws its attributes and
appends it to the draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dlcb.compiler.dtype import BOOL, FLOAT32, INT32, INT64, UINT8, DType
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, ZERO, as_expr, product, size

from .draft import EVERY, FLOATS, INTEGERS, LARGEST_RANK, Draft, Unsuited

Row = Callable[[Draft, str], Any]


def unary(types: Sequence[DType], stable: bool = False, keeps: bool = False, tame: bool = False) -> Row:
    return lambda d, op: d.add(op, d.pick(types, stable=stable, tame=tame), stable=keeps)


def edged(d: Draft, op: str) -> Any:
    """An operator that is defined, or smooth, on part of the numbers: of exact values, or of values between
    0 and 1."""
    if d.chance(0.5):
        return d.add(op, d.pick((*FLOATS, *FLOATS, INT64, BOOL), stable=True), stable=False)
    return d.add(op, d.add("sigmoid", d.pick(FLOATS)), stable=False)


def binary(types: Sequence[DType], stable: bool = False, keeps: bool = False, mixed: bool = True) -> Row:
    def row(d: Draft, op: str) -> Any:
        a = d.pick(types, stable=stable)
        others = d.kinds(types) if mixed and d.chance(0.2) else None
        b = d.partner(a, others)
        if stable and not d.facts[b].stable:
            raise Unsuited("a comparison needs exact operands")
        return d.add(op, *((a, b) if d.chance(0.7) else (b, a)), stable=keeps)

    return row


def division(d: Draft, op: str) -> Any:
    a = d.pick((*FLOATS, *INTEGERS), stable=True, tame=True)
    if d.chance(0.4):
        b = d.add("full", shape=(), value=d.one((2, 3, 4)), dtype=d.values[a].dtype)
    else:
        b = d.partner(a, values="divisor")
    return d.add(op, a, b, stable=False)


def power(d: Draft, op: str) -> Any:
    a = d.pick(FLOATS, stable=True) if d.chance(0.5) else d.add("sigmoid", d.pick(FLOATS))
    kind = d.values[a].dtype
    if d.chance(0.6):
        b = d.add("full", shape=(), value=d.one((2.0, 3.0, 0.5, -0.5, -1.0, 1.5)), dtype=kind)
    else:
        b = d.partner(a, (kind,))
    if not d.facts[b].stable:
        raise Unsuited("near 0, an exponent's rounding decides")
    return d.add(op, a, b)


def gelu(d: Draft, op: str) -> Any:
    return d.add(op, d.pick(FLOATS), approximate=d.one(("none", "tanh")))


def cast(d: Draft, op: str) -> Any:
    to = d.one(d.kinds(EVERY))
    if to.is_float:
        x = d.pick()
        return d.add(op, x, dtype=to, stable=d.values[x].dtype is BOOL or d.values[x].dtype.is_float)
    if to is BOOL:
        return d.add(op, d.pick(stable=True), dtype=to)
    types = (*INTEGERS, BOOL) if to is UINT8 else EVERY
    return d.add(op, d.pick(types, tame=True), dtype=to)


def where(d: Draft, op: str) -> Any:
    a = d.pick()
    return d.add(op, d.partner(a, (BOOL,)), a, d.partner(a), stable=True)


def reshape(d: Draft, op: str) -> Any:
    x = d.pick()
    shape = list(d.values[x].shape)
    k = d.random.randrange(len(shape) + 1)
    choice = d.one(("insert", "merge", "flatten", "split", "drop", "swap"))
    if choice == "insert":
        shape.insert(k, ONE)
    elif choice == "merge" and len(shape) > 1:
        k = d.random.randrange(len(shape) - 1)
        shape[k : k + 2] = [shape[k] * shape[k + 1]]
    elif choice == "flatten":
        shape = [product(shape)]
    elif choice == "split":
        even = [k for k, s in enumerate(shape) if s.is_const and s.value in (4, 6)]
        if not even:
            raise Unsuited("no axis to split")
        k = d.one(even)
        shape[k : k + 1] = [as_expr(2), as_expr(shape[k].value // 2)]
    elif choice == "drop":
        shape = [s for s in shape if s is not ONE]
    elif choice == "swap" and len(shape) > 1:
        k = d.random.randrange(len(shape) - 1)
        shape[k], shape[k + 1] = shape[k + 1], shape[k]
    return d.add(op, x, shape=tuple(shape))


def permute(d: Draft, op: str) -> Any:
    x = d.pick(rank=(2, LARGEST_RANK))
    return d.add(op, x, order=tuple(d.random.sample(range(d.values[x].rank), d.values[x].rank)))


def expand(d: Draft, op: str) -> Any:
    x = d.pick(rank=(0, 3))
    shape = [d.dim() if s is ONE else s for s in d.values[x].shape]
    lead = [d.dim() for _ in range(d.random.randint(0, 1))]
    return d.add(op, x, shape=(*lead, *shape))


def slice_(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, LARGEST_RANK))
    axis = d.axis(x)
    extent = d.values[x].shape[axis]
    start = d.one((ZERO, as_expr(1), as_expr(2), as_expr(-3), extent // 2))
    stop = d.one(
        (extent, extent, as_expr(-1), as_expr(5), extent - 1 if extent.is_const else extent // 2 + 1)
    )
    return d.add(op, x, axis=axis, start=start, stop=stop, step=d.one((1, 1, 2, 3)))


def select(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, LARGEST_RANK))
    axis = d.axis(x)
    extent = d.values[x].shape[axis]
    return d.add(op, x, axis=axis, index=d.one((ZERO, as_expr(-1), extent // 2)))


def concat(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, LARGEST_RANK))
    axis, value = d.axis(x), d.values[x]
    parts = [x]
    for _ in range(d.random.randint(1, 2)):
        if d.chance(0.4):
            parts.append(x)
        else:
            shape = list(value.shape)
            shape[axis] = d.dim()
            parts.append(d.new(shape, value.dtype))
    d.random.shuffle(parts)
    return d.add(op, *parts, axis=axis)


def pad(d: Draft, op: str) -> Any:
    x = d.pick((*FLOATS, *INTEGERS), rank=(1, LARGEST_RANK))
    rank = d.values[x].rank
    low, high = (tuple(d.one((0, 0, 1, 2, -1)) for _ in range(rank)) for _ in range(2))
    return d.add(op, x, low=low, high=high, value=d.number(d.values[x].dtype))


def flip(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, LARGEST_RANK))
    return d.add(op, x, axes=d.axes(x))


def repeat(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, 3))
    lead = (2,) if d.chance(0.2) else ()
    return d.add(
        op, x, counts=(*map(as_expr, lead), *(as_expr(d.one((1, 1, 2, 3))) for _ in d.values[x].shape))
    )


def roll(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, LARGEST_RANK))
    return d.add(op, x, axis=d.axis(x), shift=d.one((1, -1, 2, 5)))


def triangle(d: Draft, op: str) -> Any:
    return d.add(op, d.pick(rank=(2, LARGEST_RANK)), diagonal=d.one((0, 0, 1, -1, 2)))


def windows(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, LARGEST_RANK - 1))
    return d.add(op, x, axis=d.axis(x), size=d.one((1, 2, 3)), step=d.one((1, 2)), dilation=d.one((1, 1, 2)))


def diagonal(d: Draft, op: str) -> Any:
    return d.add(op, d.pick(rank=(2, LARGEST_RANK)), offset=d.one((0, 0, 1, -1, 3)))


def image(d: Draft, types: Sequence[DType], rank: int) -> str:
    """A value with two leading axes and `rank` more."""
    return d.pick(
        types,
        rank=(rank + 2, rank + 2),
        shape=[d.dim(), as_expr(d.one((2, 4)))] + [d.dim() for _ in range(rank)],
    )


def upsample(d: Draft, op: str) -> Any:
    rank = 2 if op == "upsample_bilinear" else d.one((1, 2))
    x = image(d, FLOATS, rank)
    shape = d.values[x].shape[-rank:]
    more = {"align_corners": d.chance(0.5)} if op == "upsample_bilinear" else {}
    if d.chance(0.3):
        quarters = d.one((3, 5, 6, 8))  # of the size: 5 of 4 leave a size of 3 as it is
        output = tuple(s * quarters // 4 for s in shape)
        return d.add(op, x, output=output, scales=(quarters / 4,) * rank, **more)
    return d.add(op, x, output=tuple(d.one((s, s * 2, s + 1, as_expr(5), s * 3 // 2)) for s in shape), **more)


def full(d: Draft, op: str) -> Any:
    kind = d.one(d.kinds(EVERY))
    if kind in (FLOAT32, INT64) and d.chance(0.3):
        value: Any = size(d.one(d.names))
    else:
        value = d.number(kind)
    shape = tuple(d.dim() for _ in range(d.random.randint(0, 3)))
    if (
        shape and kind.is_float and d.chance(0.3)
    ):  # one that the type may not hold; a plain number it always does
        value = d.one((0.1, 1 / 3, 70000.0, 16777217.0))
    return d.add(op, shape=shape, value=value, dtype=kind, stable=True)


def arange(d: Draft, op: str) -> Any:
    kind = d.one((INT64, INT64, INT32, FLOAT32))
    start, step = d.one((ZERO, ONE, as_expr(3))), d.one((1, 2, 3))
    return d.add(op, start=start, stop=start + d.dim(), step=step, dtype=kind, stable=True)


def eye(d: Draft, op: str) -> Any:
    return d.add(op, rows=d.dim(), columns=d.dim(), dtype=d.one((FLOAT32, INT64)), stable=True)


def fold(types: Sequence[DType], stable: bool = False, keeps: bool = False) -> Row:
    def row(d: Draft, op: str) -> Any:
        x = d.pick(types, rank=(1, LARGEST_RANK), stable=stable)
        return d.add(op, x, axes=d.axes(x), keepdim=d.chance(0.5), stable=keeps)

    return row


def variance(d: Draft, op: str) -> Any:
    x = d.pick(FLOATS, rank=(1, LARGEST_RANK))
    return d.add(op, x, axes=d.axes(x), keepdim=d.chance(0.5), correction=d.one((0, 1)))


def position(d: Draft, op: str) -> Any:
    x = d.pick((*FLOATS, *INTEGERS), rank=(1, LARGEST_RANK), stable=True)
    return d.add(op, x, axis=d.axis(x), keepdim=d.chance(0.5))


def along(types: Sequence[DType]) -> Row:
    def row(d: Draft, op: str) -> Any:
        x = d.pick(types, rank=(1, LARGEST_RANK))
        return d.add(op, x, axis=d.axis(x))

    return row


def pool(d: Draft, op: str) -> Any:
    rank = d.one((1, 2))
    x = d.pick((FLOAT32,), rank=(rank, rank + 2))
    window = tuple(d.one((1, 2, 3)) for _ in range(rank))
    padding = tuple(d.one((0, w // 2)) for w in window)
    options: dict[str, Any] = {
        "window": window,
        "stride": tuple(d.one((1, 2)) for _ in window),
        "padding": padding,
        "ceil_mode": d.chance(0.3),
    }
    if op == "avg_pool":
        options["count_include_pad"] = d.chance(0.5)
    else:
        options["dilation"] = tuple(1 if op == "sum_pool" else d.one((1, 1, 2)) for _ in window)
    return d.add(op, x, stable=op == "max_pool", **options)


def adaptive(d: Draft, op: str) -> Any:
    rank = d.one((1, 2))
    x = d.pick((FLOAT32,), rank=(rank, rank + 2))
    return d.add(op, x, output=tuple(as_expr(d.one((1, 2, 3, 5))) for _ in range(rank)))


def weights(d: Draft, shape: Sequence[Expr], dtype: DType, count: int) -> list[str]:
    parameter = all(s.is_const for s in shape) and d.chance(0.7)
    return [d.new(shape, dtype, parameter=parameter) for _ in range(count)]


def norm(d: Draft, op: str) -> Any:
    x = d.pick(FLOATS, rank=(1, LARGEST_RANK))
    value = d.values[x]
    dims = 2 if value.rank > 2 and d.chance(0.2) else 1
    count = d.one((0, 1) if op == "rms_norm" else (0, 1, 2))
    return d.add(op, x, *weights(d, value.shape[-dims:], value.dtype, count), dims=dims, eps=1e-5)


def batch_norm(d: Draft, op: str, x: str = "") -> Any:
    x = x or d.pick(FLOATS, rank=(2, LARGEST_RANK))
    value = d.values[x]
    mean, *affine = weights(d, value.shape[1:2], value.dtype, d.one((1, 3)))
    spread = d.new(
        value.shape[1:2],
        value.dtype,
        "positive",
        parameter=next(g for g in d.inputs if g.name == mean).parameter,
    )
    return d.add(op, x, mean, spread, *affine, eps=1e-5)


def group_norm(d: Draft, op: str) -> Any:
    x = d.pick(
        FLOATS,
        rank=(3, 4),
        fits=lambda v: v.shape[1].is_const and v.shape[1].value % 2 == 0,
        shape=[d.dim(), as_expr(4), d.dim()],
    )
    value = d.values[x]
    return d.add(op, x, *weights(d, value.shape[1:2], value.dtype, d.one((0, 2))), groups=2, eps=1e-5)


def indices(d: Draft, shape: Sequence[Expr], low: Expr, high: Expr, wide: bool = False) -> str:
    return d.new(shape, d.one((INT64,) if wide else (INT64, INT64, INT32)), (low, high))


def embedding(d: Draft, op: str) -> Any:
    table = d.pick(FLOATS, rank=(2, 2), shape=[as_expr(7), d.dim()])
    ids = indices(d, [d.dim() for _ in range(d.random.randint(1, 2))], ZERO, d.values[table].shape[0])
    return d.add(op, table, ids)


def gather(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, 3))
    axis = d.axis(x)
    shape = list(d.values[x].shape)
    extent, shape[axis] = shape[axis], d.dim()
    if op == "take_along":
        shape = [ONE if k != axis and d.chance(0.3) else s for k, s in enumerate(shape)]
    return d.add(op, x, indices(d, shape, ZERO, extent), axis=axis)


def index_select(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, 3))
    axis = d.axis(x)
    return d.add(op, x, indices(d, [d.dim()], ZERO, d.values[x].shape[axis]), axis=axis)


def advanced_index(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, 3))
    axes = tuple(
        sorted(d.random.sample(range(d.values[x].rank), d.random.randint(1, min(2, d.values[x].rank))))
    )
    shape = [d.dim() for _ in range(d.random.randint(1, 2))]
    places = []
    for axis in axes:
        extent = d.values[x].shape[axis]
        own = [ONE if d.chance(0.3) else s for s in shape]
        places.append(indices(d, own, ZERO - extent, extent, wide=True))
    return d.add(op, x, *places, axes=axes)


def one_hot(d: Draft, op: str) -> Any:
    classes = d.dim()
    return d.add(
        op, indices(d, [d.dim() for _ in range(d.random.randint(1, 2))], ZERO, classes), classes=classes
    )


def matmul(d: Draft, op: str) -> Any:
    a = d.pick(FLOATS, rank=(1, 4))
    value = d.values[a]
    shape = [value.shape[-1], d.dim()] if d.chance(0.8) else [value.shape[-1]]
    if value.rank > 2 and len(shape) == 2 and d.chance(0.5):
        shape = [
            *(ONE if s.op not in ("size", "const") or d.chance(0.2) else s for s in value.shape[:-2]),
            *shape,
        ]
    return d.add(op, a, d.new(shape, value.dtype))


def linear(d: Draft, op: str) -> Any:
    x = d.pick(FLOATS, rank=(1, 4), fits=lambda v: v.shape[-1].is_const, shape=[d.dim(), as_expr(4)])
    value, width = d.values[x], as_expr(d.one((1, 3, 8)))
    kinds = weights(d, (width, value.shape[-1]), value.dtype, 1)
    return d.add(op, x, *kinds, *weights(d, (width,), value.dtype, d.one((0, 1))))


def convolution(d: Draft, op: str) -> Any:
    rank = d.one((1, 2))
    x = d.pick(
        FLOATS if d.chance(0.3) else (FLOAT32,),
        rank=(rank + 2, rank + 2),
        fits=lambda v: v.shape[1].is_const and v.shape[1].value > 0,
        shape=[d.dim(), as_expr(4), *(d.dim() for _ in range(rank))],
    )
    channels, kind = d.values[x].shape[1].value, d.values[x].dtype
    groups = d.one((1, 1, channels, 2 if channels % 2 == 0 else 1))
    results = channels if groups == channels else 4
    window = [d.one((1, 3)) for _ in range(rank)]
    w = weights(d, [as_expr(n) for n in (results, channels // groups, *window)], kind, 1)
    bias = weights(d, [as_expr(results)], kind, d.one((0, 1)))
    y = d.add(op, x, *w, *bias, groups=groups, **geometry(d, window))
    if d.chance(0.2):
        return batch_norm(d, "batch_norm", y)
    return y


def convolution_relu(d: Draft, op: str) -> Any:
    x = d.pick(
        (FLOAT32,),
        rank=(4, 4),
        fits=lambda v: v.shape[1].is_const and v.shape[1].value > 0,
        shape=[d.dim(), as_expr(4), d.dim(), d.dim()],
    )
    window = [d.one((1, 3)) for _ in range(2)]
    w = weights(d, [as_expr(n) for n in (4, d.values[x].shape[1].value, *window)], FLOAT32, 1)
    return d.add(op, x, *w, *weights(d, [as_expr(4)], FLOAT32, 1), groups=1, **geometry(d, window))


def geometry(d: Draft, window: Sequence[int]) -> dict[str, Any]:
    """How a convolution's window moves."""
    return {
        "stride": tuple(d.one((1, 2)) for _ in window),
        "padding": tuple(d.one((0, n // 2)) for n in window),
        "dilation": tuple(d.one((1, 1, 1, 2)) for _ in window),
    }


def last_image(d: Draft) -> tuple[str, int]:
    """An image of float32 with its channels on the last axis, and how many these are."""
    x = d.pick(
        (FLOAT32,),
        rank=(4, 4),
        fits=lambda v: v.shape[3].is_const and v.shape[3].value > 0,
        shape=[d.dim(), d.dim(), d.dim(), as_expr(4)],
    )
    return x, d.values[x].shape[3].value


def convolution_nhwc(d: Draft, op: str) -> Any:
    x, channels = last_image(d)
    groups = 2 if channels % 2 == 0 and d.chance(0.3) else 1
    window = [d.one((1, 3)) for _ in range(2)]
    w = weights(d, [as_expr(n) for n in (4, *window, channels // groups)], FLOAT32, 1)
    bias = weights(d, [as_expr(4)], FLOAT32, d.one((0, 1)))
    return d.add(op, x, *w, *bias, groups=groups, relu=d.chance(0.3), **geometry(d, window))


def depthwise_nhwc(d: Draft, op: str) -> Any:
    x, channels = last_image(d)
    window = [d.one((1, 3)) for _ in range(2)]
    return d.add(
        op, x, *weights(d, [as_expr(n) for n in (*window, channels)], FLOAT32, 1), **geometry(d, window)
    )


def attention(d: Draft, op: str) -> Any:
    # PyTorch's several kernels disagree about NaN and infinities among each other
    q = d.pick((FLOAT32,), rank=(4, 4), tame=True, shape=[d.dim(), as_expr(2), d.dim(), as_expr(4)])
    batch, heads, length, width = d.values[q].shape
    keys = length if d.chance(0.5) else d.dim()
    k, v = (d.new((batch, heads, keys, width), FLOAT32, "finite") for _ in range(2))
    if d.chance(0.3):
        return d.add(op, q, k, v, scale=None, causal=keys is length)
    if d.chance(0.5):
        return d.add(op, q, k, v, scale=d.one((None, 0.3)), causal=False)
    mask = d.new(d.one(((length, keys), (batch, ONE, ONE, keys))), d.one((BOOL, FLOAT32)), "finite")
    return d.add(op, q, k, v, mask, scale=None, causal=False)


NUMBERS = (*FLOATS, *INTEGERS)
ROWS: dict[str, Row] = {
    **dict.fromkeys(("neg", "abs"), unary(NUMBERS, keeps=True)),
    **dict.fromkeys(("sign", "floor", "ceil", "trunc", "round"), unary(NUMBERS, stable=True, keeps=True)),
    "relu": unary(NUMBERS, keeps=True),
    "contiguous": unary(EVERY, keeps=True),
    **dict.fromkeys(
        [
            "exp",
            "exp2",
            "expm1",
            "sin",
            "cos",
            "tan",
            "atan",
            "sinh",
            "cosh",
            "tanh",
            "erf",
            "reciprocal",
            "sigmoid",
        ],
        unary((*FLOATS, *FLOATS, INT64, BOOL)),
    ),
    **dict.fromkeys(["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "asin", "acos"], edged),
    "silu": unary(FLOATS),
    "gelu": gelu,
    "cast": cast,
    **dict.fromkeys(("isnan", "isinf"), unary(FLOATS, stable=True)),
    "logical_not": unary(EVERY, stable=True),
    "bitwise_not": unary((*INTEGERS, BOOL)),
    **dict.fromkeys(("add", "mul"), binary(EVERY)),
    "sub": binary(NUMBERS),
    "div": binary(EVERY),
    **dict.fromkeys(("floordiv", "mod", "fmod"), division),
    "pow": power,
    **dict.fromkeys(("minimum", "maximum"), binary(EVERY, keeps=True)),
    "atan2": binary(FLOATS, stable=True),
    **dict.fromkeys(["eq", "ne", "lt", "le", "gt", "ge"], binary(EVERY, stable=True)),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), binary(EVERY, stable=True)),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), binary((*INTEGERS, BOOL))),
    "where": where,
    "reshape": reshape,
    "permute": permute,
    "expand": expand,
    "slice": slice_,
    "select": select,
    "concat": concat,
    "pad": pad,
    "flip": flip,
    "repeat": repeat,
    "roll": roll,
    "windows": windows,
    "diagonal": diagonal,
    "tril": triangle,
    "triu": triangle,
    "upsample_nearest": upsample,
    "upsample_bilinear": upsample,
    "full": full,
    "arange": arange,
    "eye": eye,
    **dict.fromkeys(("sum", "prod"), fold(EVERY)),
    **dict.fromkeys(("any", "all"), fold(EVERY, stable=True)),
    **dict.fromkeys(("max", "min"), fold(EVERY, keeps=True)),
    "mean": fold(NUMBERS),
    "var": variance,
    "argmax": position,
    "argmin": position,
    "softmax": along(FLOATS),
    "log_softmax": along(FLOATS),
    "cumsum": along((FLOAT32, INT64, BOOL)),
    "max_pool": pool,
    "sum_pool": pool,
    "avg_pool": pool,
    "adaptive_avg_pool": adaptive,
    "layer_norm": norm,
    "rms_norm": norm,
    "batch_norm": batch_norm,
    "group_norm": group_norm,
    "embedding": embedding,
    "gather": gather,
    "take_along": gather,
    "index_select": index_select,
    "advanced_index": advanced_index,
    "one_hot": one_hot,
    "matmul": matmul,
    "linear": linear,
    "convolution": convolution,
    "convolution_nhwc": convolution_nhwc,
    "convolution_relu": convolution_relu,
    "depthwise_nhwc": depthwise_nhwc,
    "attention": attention,
}
