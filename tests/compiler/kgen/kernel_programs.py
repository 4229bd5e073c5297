"""How test programs are written, and those that need more than a line in `kernel_rows`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlcb.compiler.dtype import BOOL, FLOAT16, FLOAT32, INT8, INT32, INT64, DType
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import GraphBuilder, Value


class Program:
    """Builds a graph in which dims are named and operators are methods: `p.add(x, y)`."""

    def __init__(self, name: str) -> None:
        self.builder = GraphBuilder(name)
        self.dims: dict[str, Any] = {}

    def tensor(self, name: str, shape: str, dtype: DType = FLOAT32) -> Value:
        """An input. `shape` holds numbers and names of free dims: "b s 768"."""
        return self.builder.input(name, [self.dim(word) for word in shape.split()], dtype)

    def dim(self, word: str) -> Any:
        if word.isdigit():
            return int(word)
        if word not in self.dims:
            self.dims[word] = self.builder.system.fresh(word)
        return self.dims[word]

    def number(self, value: float, dtype: DType = FLOAT32) -> Value:
        return self.builder.apply(ops.full, shape=(), value=value, dtype=dtype)

    def __getattr__(self, name: str) -> Callable[..., Value]:
        op = ops.OPS[name]

        def apply(*values: Value, **attributes: Any) -> Value:
            for key in ("shape", "output", "start", "stop"):
                if key in attributes:
                    attributes[key] = _expressions(attributes[key])
            return self.builder.apply(op, *values, **attributes)

        return apply


def _expressions(sizes: Any) -> Any:
    return tuple(map(as_expr, sizes)) if isinstance(sizes, tuple) else as_expr(sizes)


def gelu_add_norm(p: Program) -> Value:
    z = p.add(p.gelu(p.tensor("x", "b s 768"), approximate="none"), p.tensor("y", "b s 768"))
    return p.layer_norm(z, p.tensor("w", "768"), p.tensor("c", "768"), dims=1, eps=1e-5)


def norm_of_odd_rows(p: Program) -> Value:
    """Rows of which most start off every alignment."""
    x = p.add(p.tensor("x", "b s 99", FLOAT16), p.tensor("y", "b s 99", FLOAT16))
    return p.layer_norm(x, dims=1, eps=1e-5)


def two_outputs(p: Program) -> list[Value]:
    x = p.add(p.tensor("x", "b s 48"), p.tensor("y", "b s 48"))
    return [x, p.softmax(x, axis=2), p.sum(x, axes=(2,), keepdim=True)]


def masked_mean(p: Program) -> Value:
    x, mask = p.tensor("x", "b s 40"), p.tensor("mask", "b s", INT64)
    wide = p.reshape(p.cast(mask, dtype=FLOAT32), shape=(p.dim("b"), p.dim("s"), 1))
    total = p.sum(p.mul(x, wide), axes=(1,), keepdim=False)
    count = p.maximum(p.sum(wide, axes=(1,), keepdim=False), p.number(1e-9))
    mean = p.div(total, count)
    norm = p.sqrt(p.sum(p.mul(mean, mean), axes=(1,), keepdim=True))
    return p.div(mean, p.maximum(norm, p.number(1e-12)))


def embeddings(p: Program) -> Value:
    ids, positions = p.tensor("ids", "b s", INT64), p.tensor("positions", "1 s", INT64)
    x = p.add(
        p.embedding(p.tensor("words", "50 96"), ids), p.embedding(p.tensor("places", "32 96"), positions)
    )
    return p.layer_norm(x, p.tensor("w", "96"), p.tensor("c", "96"), dims=1, eps=1e-12)


def heads(p: Program) -> Value:
    x = p.reshape(p.tensor("x", "b s 48"), shape=(p.dim("b"), p.dim("s"), 4, 12))
    return p.mul(p.permute(x, order=(0, 2, 1, 3)), p.number(0.5))


def heads_merged(p: Program) -> Value:
    """The heads of attention beside each other again."""
    x = p.permute(p.tensor("x", "b 4 s 12"), order=(0, 2, 1, 3))
    return p.mul(p.reshape(x, shape=(p.dim("b"), p.dim("s"), 48)), p.number(0.5))


def patches(p: Program) -> Value:
    """Squares of an image as rows, channels last."""
    b, h, w = p.dim("b"), p.dim("h"), p.dim("w")
    x = p.reshape(p.tensor("x", "b 3 h 4 w 4"), shape=(b, 3, h * 4, w * 4))
    x = p.reshape(p.mul(x, x), shape=(b, 3, h, 4, w, 4))
    x = p.permute(x, order=(0, 2, 4, 3, 5, 1))
    return p.mul(p.reshape(x, shape=(b, h * w, 48)), p.number(0.5))


def groups_of_channels(p: Program) -> Value:
    """A norm over groups of an image's channels: each is one row of memory, whose length is not known."""
    b, h, w = p.dim("b"), p.dim("h"), p.dim("w")
    x = p.reshape(p.tensor("x", "b 6 h w"), shape=(b, 2, h * w * 3))
    x = p.sub(x, p.max(x, axes=(2,), keepdim=True))
    return p.reshape(x, shape=(b, 6, h, w))


def repeat_and_flip(p: Program) -> Value:
    x = p.permute(p.tensor("x", "m n"), order=(1, 0))
    flat = p.reshape(x, shape=(p.dim("m") * p.dim("n"), 1))
    twice = p.expand(flat, shape=(p.dim("m") * p.dim("n"), 2))
    return p.flip(p.reshape(twice, shape=(p.dim("m") * p.dim("n") * 2,)), axes=(0,))


def split_sizes(p: Program) -> Value:
    """A reshape whose axes match in no way: the address needs a division by a free size."""
    x = p.tensor("x", "a b")
    return p.add(p.reshape(x, shape=(p.dim("b"), p.dim("a"))), p.number(1.0))


def pooled(p: Program) -> Value:
    x = p.tensor("x", "n c h w")
    return p.max_pool(x, window=(2, 2), stride=(2, 2), padding=(0, 0), dilation=(1, 1), ceil_mode=True)


def pooled_padded(p: Program) -> Value:
    x = p.relu(p.tensor("x", "n c h w"))
    return p.max_pool(x, window=(3, 3), stride=(2, 2), padding=(1, 1), dilation=(1, 1), ceil_mode=False)


def broadcasts(p: Program) -> Value:
    return p.add(p.mul(p.tensor("x", "a b"), p.tensor("y", "c d")), p.tensor("z", "b"))


def chain(p: Program) -> Value:
    x = p.tensor("x", "n")
    for k in range(100):
        x = p.mul(p.add(x, p.number(0.01 * k)), p.number(0.99))
    return x


def rows_of_equal_elements(p: Program) -> list[Value]:
    """What a reduction over the row computes depends on no row, and stands before all of them."""

    def repeated(name: str, dtype: DType) -> Value:
        return p.expand(p.tensor(name, "m", dtype), shape=(p.dim("n"), p.dim("m")))

    n = p.tensor("n", "n 1")
    rows = p.full(shape=(p.dim("n"), p.dim("m")), value=-1.5, dtype=FLOAT16)
    return [
        p.softmax(repeated("x", FLOAT32), axis=1),
        p.add(p.softmax(repeated("y", FLOAT32), axis=1), n),
        p.rms_norm(repeated("z", FLOAT16), p.tensor("w", "m", FLOAT16), dims=1, eps=1e-5),
        p.layer_norm(rows, dims=1, eps=1e-5),
    ]


def statistics(p: Program) -> list[Value]:
    x = p.tensor("x", "n m")
    return [p.mean(x, axes=(0,), keepdim=False), p.var(x, axes=(0,), keepdim=False, correction=0)]


def depthwise(
    channels: str, window: str, stride: int, padding: int, dilation: int = 1, dtype: DType = FLOAT16
) -> Callable[[Program], Value]:
    """A depthwise convolution over channels-last images, with bias and ReLU."""

    def make(p: Program) -> Value:
        y = p.depthwise_nhwc(
            p.tensor("x", f"n h w {channels}", dtype),
            p.tensor("weight", f"{window} {channels}", dtype),
            stride=(stride, stride),
            padding=(padding, padding),
            dilation=(dilation, dilation),
        )
        return p.relu(p.add(y, p.tensor("bias", channels, dtype)))

    return make


def pooled_channels_last(p: Program) -> Value:
    x = p.permute(p.tensor("x", "n h w c", FLOAT16), order=(0, 3, 1, 2))
    pool = p.max_pool(x, window=(3, 3), stride=(2, 2), padding=(1, 1), dilation=(1, 1), ceil_mode=False)
    return p.permute(pool, order=(0, 2, 3, 1))


def folds_of_two_loops(p: Program) -> list[Value]:
    """Flipped along one axis, the two loops of each reduction cannot become one."""

    def flipped(name: str, dtype: DType) -> Value:
        return p.flip(p.tensor(name, "n m", dtype), axes=(1,))

    return [
        p.max(flipped("a", FLOAT32), axes=(0, 1), keepdim=False),
        p.min(flipped("b", INT32), axes=(0, 1), keepdim=False),
        p.sum(flipped("c", INT64), axes=(0, 1), keepdim=False),
        p.sum(flipped("d", FLOAT32), axes=(0, 1), keepdim=False),
        p.any(flipped("e", BOOL), axes=(0, 1), keepdim=False),
        p.prod(flipped("f", INT64), axes=(0, 1), keepdim=False),
    ]


def beside_a_size(dtype: DType) -> Callable[[Program], list[Value]]:
    """A size as data of a short type: functions take operands of that type, and what overflows wraps."""

    def make(p: Program) -> list[Value]:
        x, n = p.tensor("x", "n 6", dtype), p.full(shape=(), value=p.dim("n"), dtype=dtype)
        product, total = p.mul(x, n), p.add(x, n)
        return [
            p.minimum(p.maximum(x, p.number(0, dtype)), p.sub(n, p.number(1, dtype))),
            p.floordiv(product, p.number(3, dtype)),
            p.mod(total, p.number(5, dtype)),
            p.maximum(p.floordiv(x, n), p.mod(x, n)),
            p.fmod(x, n),
            p.pow(total, p.number(4, dtype)),
            p.max(total, axes=(1,), keepdim=False),
            p.cast(product, dtype=INT64),
            p.lt(total, x),
        ]

    return make


def truth_of_a_size(p: Program) -> Value:
    return p.maximum(p.tensor("x", "n 6", BOOL), p.full(shape=(), value=p.dim("n") > 3, dtype=BOOL))


def remainders_of_the_least(p: Program) -> list[Value]:
    return [
        p.fmod(p.tensor("x", "n", INT8), p.number(7, INT8)),
        p.fmod(p.tensor("y", "n", INT32), p.tensor("z", "n", INT32)),
    ]


def with_its_arctangent(p: Program, x: Value) -> list[Value]:
    return [x, p.atan(x)]
