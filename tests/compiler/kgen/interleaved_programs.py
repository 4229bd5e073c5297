"""Programs whose neighbouring elements are different expressions: halves side by side, parts of complex
numbers, an image's channels become places."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_programs import Program

from dlcb.compiler.dtype import FLOAT16, FLOAT32, INT64, UINT8, DType
from dlcb.compiler.ir.graph import Value


def interleaved(p: Program, *parts: Value) -> Value:
    """`parts` side by side along their last axis: element k of each, then element k + 1 of each."""
    *shape, last = parts[0].shape
    return p.reshape(stacked(p, *parts), shape=(*shape, last * len(parts)))


def stacked(p: Program, *parts: Value) -> Value:
    columns = [p.reshape(part, shape=(*part.shape, 1)) for part in parts]
    return p.concat(*columns, axis=len(parts[0].shape))


def every(p: Program, x: Value, step: int) -> Sequence[Value]:
    """The elements of the last axis at places 0, step .. , those at 1, step + 1 .., and so on."""
    *shape, last = x.shape
    apart = p.reshape(x, shape=(*shape, last // step, step))
    return [p.select(apart, axis=len(shape) + 1, index=place) for place in range(step)]


def turned(p: Program, x: Value, dtype: DType) -> Value:
    """A rotary embedding of interleaved pairs."""
    width = x.shape[-1].value // 2
    cos, sin = (
        p.reshape(p.tensor(name, f"s {width}", dtype), shape=(p.dim("s"), 1, width))
        for name in ("cos", "sin")
    )
    even, odd = every(p, x, 2)
    return interleaved(p, p.sub(p.mul(even, cos), p.mul(odd, sin)), p.add(p.mul(even, sin), p.mul(odd, cos)))


def rotary(p: Program) -> Value:
    return turned(p, p.tensor("x", "b s h 12"), FLOAT32)


def rotary_half(p: Program) -> Value:
    return turned(p, p.tensor("x", "b s h 16", FLOAT16), FLOAT16)


def rotary_after_norm(p: Program) -> Value:
    return turned(p, p.rms_norm(p.tensor("x", "b s h 12"), p.tensor("w", "12"), dims=1, eps=1e-5), FLOAT32)


def rotary_heads_joined(p: Program) -> Value:
    x = turned(p, p.tensor("x", "b s h 12"), FLOAT32)
    return p.reshape(x, shape=(p.dim("b"), p.dim("s"), p.dim("h") * 12))


def stacks(p: Program) -> list[Value]:
    x, y = p.tensor("x", "n m"), p.tensor("y", "n m")
    parts = [p.add(x, y), p.sub(x, y), p.mul(x, y), p.exp(x), y, p.neg(y), x, p.relu(y), p.sin(x)]
    return [*(stacked(p, *parts[:k]) for k in (2, 3, 5, 8, 9)), interleaved(p, *parts[:4])]


def padded_pairs(p: Program) -> list[Value]:
    """Pairs that are read under one condition, stored turned, and as their sum and difference."""
    made = []
    for name, dtype in (("x", FLOAT32), ("h", FLOAT16), ("k", INT64), ("b", UINT8)):
        rows = p.pad(p.tensor(name, "n 4", dtype), low=(0, 0), high=(2, 0), value=3)
        pairs = p.reshape(rows, shape=(rows.shape[0] * 2, 2))
        one, other = (p.select(pairs, axis=1, index=place) for place in range(2))
        made += [stacked(p, other, one), p.flip(pairs, axes=(1,))]
        made += [p.flip(rows, axes=(1,)), stacked(p, p.add(one, other), p.sub(other, one))]
    return made


def interleaved_twice(p: Program) -> Value:
    x, y = p.tensor("x", "n m"), p.tensor("y", "n m")
    both = interleaved(p, x, p.neg(y))
    return interleaved(p, both, p.exp(both))


def interleaved_but_one(p: Program) -> Value:
    """A size that the number of places does not divide."""
    both = interleaved(p, p.tensor("x", "n m"), p.neg(p.tensor("y", "n m")))
    return p.relu(p.slice(both, axis=1, start=0, stop=p.dim("m") * 2 - 1))


def interleaved_columns(p: Program) -> Value:
    """What is read along the other axis."""
    x, y = (p.permute(p.tensor(name, "m n"), order=(1, 0)) for name in "xy")
    return interleaved(p, p.exp(x), y)


def interleaved_sums(p: Program) -> list[Value]:
    x = p.tensor("x", "n m")
    softmax = p.softmax(x, axis=1)
    return [
        stacked(p, p.sum(x, axes=(1,), keepdim=False), p.max(x, axes=(1,), keepdim=False)),
        p.sum(interleaved(p, x, p.neg(p.exp(x))), axes=(0,), keepdim=False),
        interleaved(p, softmax, p.sub(p.number(1.0), softmax)),
    ]


def interleaved_rows_looked_up(p: Program) -> Value:
    rows = p.embedding(p.tensor("table", "9 6"), p.tensor("ids", "n", INT64))
    return interleaved(p, rows, p.neg(rows))


def pixels_shuffled(p: Program) -> list[Value]:
    x, n, h, w = p.tensor("x", "n 18 h w"), p.dim("n"), p.dim("h"), p.dim("w")

    def shuffled(up: int, across: int) -> Value:
        apart = p.reshape(x, shape=(n, 18 // up // across, up, across, h, w))
        apart = p.permute(apart, order=(0, 1, 4, 2, 5, 3))
        return p.reshape(apart, shape=(n, 18 // up // across, h * up, w * across))

    return [shuffled(3, 2), shuffled(2, 3), p.repeat(p.relu(shuffled(1, 6)), counts=(1, 1, 1, 2))]


def bits(p: Program) -> Value:
    x = p.tensor("x", "n m", UINT8)
    halves = p.mod(x, p.number(16, UINT8)), p.floordiv(x, p.number(16, UINT8))
    return interleaved(p, *halves)


def channels_of_images(p: Program) -> list[Value]:
    """Short rows, of which each place is computed alike."""
    x, mean, scale = p.tensor("x", "n m 3"), p.tensor("mean", "3"), p.tensor("scale", "3")
    boxes = p.tensor("boxes", "n m 4", FLOAT16)
    ends = (p.slice(boxes, axis=2, start=start, stop=start + 2) for start in (0, 2))
    none = p.add(p.tensor("empty", "n m 0"), p.tensor("bias", "0"))
    return [none, p.div(p.sub(x, mean), scale), p.concat(*map(p.exp, ends), axis=2)]
