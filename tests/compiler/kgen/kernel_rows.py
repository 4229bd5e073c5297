"""Programs whose kernels are compiled together and compared with the oracle, at several sizes each: one row
a program.

The same rows are run as C++ on the CPU, compiled as CUDA without a GPU, and run as CUDA where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from interleaved_programs import (
    bits,
    channels_of_images,
    interleaved_but_one,
    interleaved_columns,
    interleaved_rows_looked_up,
    interleaved_sums,
    interleaved_twice,
    padded_pairs,
    pixels_shuffled,
    rotary,
    rotary_after_norm,
    rotary_half,
    rotary_heads_joined,
    stacks,
)
from kernel_programs import (
    Program,
    beside_a_size,
    broadcasts,
    chain,
    depthwise,
    embeddings,
    folds_of_two_loops,
    gelu_add_norm,
    groups_of_channels,
    heads,
    heads_merged,
    masked_mean,
    norm_of_odd_rows,
    patches,
    pooled,
    pooled_channels_last,
    pooled_padded,
    remainders_of_the_least,
    repeat_and_flip,
    rows_of_equal_elements,
    split_sizes,
    statistics,
    truth_of_a_size,
    two_outputs,
    with_its_arctangent,
)

from dlcb.compiler.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, INT64, UINT8
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.ir.graph import Graph, Value


@dataclass(frozen=True)
class Row:
    """A program, the sizes it is run at, and how its inputs are drawn: by name a function of a generator and
    a shape."""

    make: Callable[[Program], Value | Sequence[Value]]
    sizes: tuple[Mapping[str, int], ...]
    draw: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = field(
        default_factory=dict
    )
    tolerance: float = 2e-6

    def graph(self, name: str) -> Graph:
        program = Program(name)
        outputs = self.make(program)
        return program.builder.build(*([outputs] if isinstance(outputs, Value) else outputs))

    def inputs(
        self, graph: Graph, sizes: Mapping[str, int], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        arrays = {}
        for value in (*graph.inputs, *graph.parameters):
            shape = tuple(size.value if size.is_const else sizes[size.value] for size in value.shape)
            draw = self.draw.get(value.name) or _DRAWS[value.dtype.kind]
            arrays[value.name] = draw(rng, shape)
        return arrays


def sizes(text: str, *rows: str) -> tuple[dict[str, int], ...]:
    """sizes("b s", "2 3", "1 1") -> ({"b": 2, "s": 3}, {"b": 1, "s": 1})"""
    return tuple(dict(zip(text.split(), map(int, row.split()), strict=True)) for row in rows)


def below(limit: int) -> Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]:
    return lambda rng, shape: rng.integers(0, limit, shape)


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(0.1, 3.0, shape)


_DRAWS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "float": lambda rng, shape: rng.standard_normal(shape),
    "int": lambda rng, shape: rng.integers(-9, 10, shape),
    "uint": lambda rng, shape: rng.integers(0, 12, shape),
    "bool": lambda rng, shape: rng.random(shape) < 0.5,
}

ROWS: dict[str, Row] = {
    "gelu_add_norm": Row(gelu_add_norm, sizes("b s", "2 3", "1 1", "3 40", "0 5"), tolerance=4e-6),
    "two_outputs": Row(two_outputs, sizes("b s", "2 3", "1 1", "5 7")),
    "softmax": Row(
        lambda p: p.softmax(p.tensor("x", "n m"), axis=1),
        sizes("n m", "3 7", "1 1", "5 130", "2 1000", "3 0"),
    ),
    "rows_of_equal_elements": Row(
        rows_of_equal_elements, sizes("n m", "3 7", "5 130", "1 1", "40 500"), tolerance=1e-3
    ),
    "softmax_along_two_axes_half": Row(
        lambda p: p.softmax(p.softmax(p.tensor("x", "k m n", FLOAT16), axis=0), axis=1),
        sizes("k m n", "4 2 1", "4 2 13", "3 5 40", "1 1 1", "2 3 0"),
        tolerance=1e-3,
    ),
    "softmax_half": Row(
        lambda p: p.softmax(p.tensor("x", "n m", FLOAT16), axis=1),
        sizes("n m", "3 7", "1 1", "5 130", "2 1000", "9 1001", "3 0"),
        tolerance=1e-3,
    ),
    "norm_of_odd_rows": Row(norm_of_odd_rows, sizes("b s", "2 3", "1 1", "3 11", "0 5"), tolerance=1e-3),
    "sums_of_odd_rows": Row(
        lambda p: [
            p.sum(p.tensor("x", "n m"), axes=(1,), keepdim=False),
            p.sum(p.tensor("y", "n m", FLOAT16), axes=(0, 1), keepdim=False),
            p.max(p.tensor("z", "n m", INT32), axes=(1,), keepdim=False),
        ],
        sizes("n m", "3 7", "1 1", "5 131", "67 129", "2 1001", "0 3"),
        tolerance=1e-3,
    ),
    "softmax_channels": Row(
        lambda p: p.softmax(p.tensor("x", "n 2 h w"), axis=1), sizes("n h w", "2 3 5", "1 1 1", "3 17 300")
    ),
    "softmax_long_channels": Row(
        lambda p: p.softmax(p.tensor("x", "n 70 h"), axis=1), sizes("n h", "2 5", "1 300")
    ),
    "log_softmax": Row(lambda p: p.log_softmax(p.tensor("x", "n m"), axis=1), sizes("n m", "3 7", "1 1")),
    "masked_mean": Row(masked_mean, sizes("b s", "2 5", "1 1", "3 64"), {"mask": below(2)}),
    "embeddings": Row(
        embeddings, sizes("b s", "2 5", "1 1", "3 32"), {"ids": below(50), "positions": below(32)}, 4e-6
    ),
    "places_from_the_end": Row(
        lambda p: p.sin(
            p.advanced_index(p.floor(p.tensor("x", "n")), p.tensor("ids", "1", INT64), axes=(0,))
        ),
        sizes("n", "3", "7", "1"),
        {"ids": lambda rng, shape: rng.integers(-1, 1, shape)},
    ),
    "heads": Row(heads, sizes("b s", "2 5", "1 1", "4 33")),
    "heads_merged": Row(heads_merged, sizes("b s", "2 5", "1 1", "4 33", "3 0")),
    "patches": Row(patches, sizes("b h w", "2 3 5", "1 1 1", "3 2 9", "1 0 2")),
    "groups_of_channels": Row(groups_of_channels, sizes("b h w", "2 3 5", "1 1 1", "3 7 19")),
    "repeat_and_flip": Row(repeat_and_flip, sizes("m n", "2 2", "3 5", "1 1")),
    "split_sizes": Row(split_sizes, sizes("a b", "3 5", "7 2", "1 1", "12 13")),
    "pooled": Row(pooled, sizes("n c h w", "1 3 5 7", "2 1 4 4", "1 10 13 29")),
    "pooled_padded": Row(pooled_padded, sizes("n c h w", "1 3 5 7", "2 1 4 4", "1 2 13 29")),
    "depthwise": Row(
        depthwise("16", "3 3", 1, 1), sizes("n h w", "2 5 7", "1 1 1", "1 8 8", "1 2 13"), tolerance=2e-3
    ),
    "depthwise_strided": Row(
        depthwise("8", "5 5", 2, 2), sizes("n h w", "2 9 7", "1 1 1", "1 8 24"), tolerance=2e-3
    ),
    "depthwise_dilated": Row(
        depthwise("c", "3 2", 1, 0, 2),
        sizes("n h w c", "2 6 7 8", "1 5 3 3", "1 8 13 40", "1 5 9 1"),
        tolerance=2e-3,
    ),
    "depthwise_fp32": Row(
        depthwise("c", "3 3", 2, 1, 1, FLOAT32), sizes("n h w c", "2 6 7 4", "1 5 3 3", "1 8 19 12")
    ),
    "pooled_channels_last": Row(
        pooled_channels_last, sizes("n h w c", "2 6 7 8", "1 5 3 3", "1 8 13 40"), tolerance=1e-3
    ),
    "average_pool": Row(
        lambda p: p.avg_pool(
            p.tensor("x", "n c h w"),
            window=(3, 2),
            stride=(2, 1),
            padding=(1, 0),
            ceil_mode=False,
            count_include_pad=False,
        ),
        sizes("n c h w", "1 3 5 7", "2 1 4 4"),
    ),
    "global_pool": Row(
        lambda p: p.mean(p.tensor("x", "n c h w"), axes=(2, 3), keepdim=True),
        sizes("n c h w", "2 3 5 7", "1 1 1 1", "2 8 30 30"),
    ),
    "broadcasts": Row(
        broadcasts,
        tuple(
            {"a": a, "b": b, "c": c, "d": d}
            for a in (4, 1)
            for b in (3, 1)
            for c in (4, 1)
            for d in (3, 1)
            if b == 1 or d in (1, 3)
        ),
    ),
    "chain": Row(chain, sizes("n", "1", "1000", "0")),
    "statistics": Row(statistics, sizes("n m", "5 3", "1 1", "100 300", "400 3")),
    "column_sum": Row(
        lambda p: p.sum(p.tensor("x", "n m"), axes=(0,), keepdim=False), sizes("n m", "5 3", "0 4", "300 700")
    ),
    "row_sum": Row(
        lambda p: p.sum(p.tensor("x", "n m"), axes=(1,), keepdim=False), sizes("n m", "5 3", "4 0", "3 5000")
    ),
    "total": Row(
        lambda p: p.sum(p.tensor("x", "n m"), axes=(0, 1), keepdim=False),
        sizes("n m", "5 3", "100 200"),
        tolerance=5e-5,  # 20,000 terms that cancel
    ),
    "largest": Row(
        lambda p: [
            p.max(p.tensor("x", "n m"), axes=(1,), keepdim=False),
            p.min(p.tensor("y", "n m", INT32), axes=(1,), keepdim=False),
        ],
        sizes("n m", "5 3", "3 500"),
    ),
    "where_is_largest": Row(
        lambda p: p.argmax(p.tensor("x", "n m"), axis=1, keepdim=False), sizes("n m", "5 3", "3 500")
    ),
    "folds_of_two_loops": Row(
        folds_of_two_loops,
        sizes("n m", "5 3", "4 0", "9 100", "1 4500"),
        {"e": lambda rng, shape: rng.random(shape) < 0.001},
        tolerance=1e-5,  # of sums that may come out near 0
    ),
    "truths": Row(
        lambda p: [
            p.any(p.tensor("x", "n m", BOOL), axes=(1,), keepdim=False),
            p.all(p.tensor("x2", "n m", BOOL), axes=(0,), keepdim=False),
        ],
        sizes("n m", "5 3", "3 50"),
    ),
    "functions_of_truths": Row(
        lambda p: [
            p.minimum(
                p.logical_and(p.tensor("x", "n m", BOOL), p.tensor("y", "m", BOOL)), p.number(True, BOOL)
            ),
            p.max(p.tensor("z", "n m", BOOL), axes=(1,), keepdim=False),
        ],
        sizes("n m", "5 3", "3 50"),
    ),
    "rows_under_a_triangle": Row(  # the triangle's condition speaks of the loop that the row's sums run over
        lambda p: p.tril(p.layer_norm(p.tensor("x", "n m k"), dims=1, eps=1e-5), diagonal=1),
        sizes("n m k", "2 5 5", "1 1 1", "3 9 40"),
        tolerance=4e-6,
    ),
    "divided_under_a_triangle": Row(  # what lies outside is no divisor of 0
        lambda p: p.triu(p.floordiv(p.tensor("x", "n m", UINT8), p.tensor("y", "n m", UINT8)), diagonal=0),
        sizes("n m", "5 3", "4 9"),
        {"x": below(256), "y": lambda rng, shape: rng.integers(1, 9, shape)},
    ),
    "fractions_cut_off": Row(  # what -0.25 leaves is 0, not -0.0
        lambda p: p.reciprocal(p.cast(p.tensor("x", "n"), dtype=INT64)),
        sizes("n", "40", "3"),
    ),
    "literals_in_functions": Row(
        lambda p: [
            p.floordiv(p.tensor("x", "n", INT64), p.number(3, INT64)),
            p.add(p.number(0.5, BFLOAT16), p.number(0.25, BFLOAT16)),
            p.any(p.tensor("y", "n m", UINT8), axes=(0,), keepdim=False),
        ],
        sizes("n m", "5 3", "7 1"),
    ),
    "half": Row(
        lambda p: p.softmax(p.mul(p.tensor("x", "n m", FLOAT16), p.tensor("y", "m", FLOAT16)), axis=1),
        sizes("n m", "5 3", "3 130"),
        tolerance=1e-3,
    ),
    "bfloat": Row(
        lambda p: p.gelu(
            p.add(p.tensor("x", "n m", BFLOAT16), p.tensor("y", "n m", BFLOAT16)), approximate="tanh"
        ),
        sizes("n m", "5 3", "3 130"),
        tolerance=1e-2,
    ),
    "double": Row(
        lambda p: p.tanh(p.div(p.tensor("x", "n m", FLOAT64), p.tensor("y", "m", FLOAT64))),
        sizes("n m", "5 3", "3 130"),
        tolerance=1e-12,
    ),
    "integers": Row(
        lambda p: [
            p.floordiv(p.tensor("x", "n", INT64), p.tensor("y", "n", INT64)),
            p.mod(p.tensor("u", "n", INT32), p.tensor("v", "n", INT32)),
        ],
        sizes("n", "50", "1"),
        {
            "y": lambda rng, shape: rng.choice([-7, -2, 3, 5], shape),
            "v": lambda rng, shape: rng.choice([-7, -2, 3, 5], shape),
        },
    ),
    "int32_beside_a_size": Row(
        beside_a_size(INT32),
        sizes("n", "1", "7", "50"),
        {"x": lambda rng, shape: rng.integers(-(2**31), 2**31, shape)},
        tolerance=0,
    ),
    "bytes_beside_a_size": Row(
        beside_a_size(UINT8), sizes("n", "1", "7", "50"), {"x": below(256)}, tolerance=0
    ),
    "truth_of_a_size": Row(truth_of_a_size, sizes("n", "3", "4")),
    "remainders_of_the_least": Row(
        remainders_of_the_least,
        sizes("n", "90"),
        {
            "x": lambda rng, shape: rng.integers(-128, -118, shape),
            "y": lambda rng, shape: rng.integers(-(2**31), 4 - 2**31, shape),
            "z": lambda rng, shape: rng.choice([-(2**31), -7, -1, 1, 3, 2**31 - 1], shape),
        },
        tolerance=0,
    ),
    "bytes": Row(
        lambda p: p.add(p.tensor("x", "n", UINT8), p.tensor("y", "n", UINT8)),
        sizes("n", "50"),
        {"x": below(256), "y": below(256)},
    ),
    "rotary": Row(rotary, sizes("b s h", "2 3 2", "1 1 1", "1 5 7", "0 2 1")),
    "rotary_half": Row(rotary_half, sizes("b s h", "2 3 2", "1 1 1", "1 5 7"), tolerance=2e-3),
    "rotary_after_norm": Row(rotary_after_norm, sizes("b s h", "2 3 2", "1 1 1", "1 5 7")),
    "rotary_heads_joined": Row(rotary_heads_joined, sizes("b s h", "2 3 2", "1 1 1", "1 5 7")),
    "stacks": Row(stacks, sizes("n m", "3 5", "1 1", "2 70", "0 3")),
    "interleaved_twice": Row(interleaved_twice, sizes("n m", "3 5", "1 1", "2 70", "3 0")),
    "padded_pairs": Row(padded_pairs, sizes("n", "0", "1", "3", "40", "131"), tolerance=1e-3),
    "interleaved_but_one": Row(interleaved_but_one, sizes("n m", "3 5", "1 1", "2 70")),
    "interleaved_columns": Row(interleaved_columns, sizes("n m", "3 5", "1 1", "70 65", "8 64")),
    "interleaved_sums": Row(interleaved_sums, sizes("n m", "3 5", "1 1", "70 65", "4 300")),
    "interleaved_rows_looked_up": Row(interleaved_rows_looked_up, sizes("n", "3", "40"), {"ids": below(9)}),
    "pixels_shuffled": Row(pixels_shuffled, sizes("n h w", "2 3 5", "1 1 1", "1 4 40")),
    "bits": Row(bits, sizes("n m", "3 5", "1 1", "2 70"), {"x": below(256)}, tolerance=0),
    "channels_of_images": Row(
        channels_of_images, sizes("n m", "3 5", "1 1", "2 70"), {"scale": positive}, tolerance=2e-3
    ),
    "concatenated": Row(
        lambda p: p.concat(p.tensor("x", "n m"), p.exp(p.tensor("y", "n k")), axis=1),
        sizes("n m k", "3 2 5", "1 1 1", "2 0 3"),
    ),
    "reflected": Row(
        lambda p: p.pad(p.tensor("x", "n m"), low=(0, 2), high=(0, 1), value=0.0, mode="reflect"),
        sizes("n m", "3 3", "2 4", "5 37", "0 6", "3 2100"),
    ),
    "replicated": Row(
        lambda p: p.pad(p.tensor("x", "n m"), low=(1, 2), high=(0, 3), value=0.0, mode="replicate"),
        sizes("n m", "3 1", "2 4", "5 37", "3 2100"),
    ),
    "ranges_in_any_order": Row(  # where one input ends and the other begins, nobody knows which comes first
        lambda p: p.concat(
            p.pad(p.tensor("x", "n a"), low=(0, 1), high=(0, 0), value=2.0),
            p.pad(p.tensor("y", "n b"), low=(0, 0), high=(0, 1), value=3.0),
            axis=1,
        ),
        sizes("n a b", "3 4 5", "2 0 3", "2 3 0", "1 0 0", "2 1500 1300"),
    ),
    "window_beyond_both_ends": Row(
        lambda p: p.add(
            p.pad(
                p.slice(p.tensor("x", "n m"), axis=1, start=as_expr(0), stop=as_expr(2)),
                low=(0, 3),
                high=(0, 0),
                value=1.0,
            ),
            p.pad(p.tensor("y", "n 1"), low=(0, 0), high=(0, 4), value=2.0),
        ),
        sizes("n m", "3 4", "2 2", "1 9"),
    ),
    "rolled": Row(lambda p: p.roll(p.tensor("x", "n 70"), axis=1, shift=3), sizes("n", "3", "1", "0", "130")),
    "padded": Row(
        lambda p: p.pad(p.tensor("x", "n m"), low=(1, 2), high=(0, 3), value=1.5),
        sizes("n m", "3 2", "1 1", "7 60"),
    ),
    "sliced": Row(
        lambda p: p.neg(p.slice(p.tensor("x", "n 20"), axis=1, start=3, stop=17, step=4)),
        sizes("n", "3", "1"),
    ),
    "transposed": Row(
        lambda p: p.add(p.permute(p.tensor("x", "n m"), order=(1, 0)), p.tensor("y", "m n")),
        sizes("n m", "3 5", "70 33", "8 4", "72 132"),
    ),
    "transposed_beside_columns": Row(
        lambda p: p.add(
            p.add(p.permute(p.tensor("x", "n m"), order=(1, 0)), p.tensor("y", "m 1")), p.tensor("z", "n")
        ),
        sizes("n m", "3 5", "70 33", "8 4", "72 132"),
    ),
    "transposed_batch": Row(
        lambda p: p.exp(p.permute(p.tensor("x", "b n m", FLOAT16), order=(0, 2, 1))),
        sizes("b n m", "2 3 5", "1 1 1", "3 65 40", "2 136 72"),
        tolerance=1e-3,
    ),
    "transposed_doubles": Row(
        lambda p: p.permute(p.neg(p.tensor("x", "n m", FLOAT64)), order=(1, 0)),
        sizes("n m", "3 5", "70 34"),
    ),
    "transposed_bytes": Row(
        lambda p: p.concat(
            p.permute(p.tensor("x", "n m", UINT8), order=(1, 0)), p.tensor("y", "k n", UINT8), axis=0
        ),
        sizes("n m k", "3 5 2", "64 80 16"),
        {"x": below(256), "y": below(256)},
    ),
    "transposed_pair": Row(  # of three tensors, two are read along the other axis
        lambda p: p.add(
            p.permute(p.mul(p.tensor("x", "n m"), p.tensor("z", "n m")), order=(1, 0)), p.tensor("y", "m n")
        ),
        sizes("n m", "3 5", "68 132"),
    ),
    "transposed_channels": Row(
        lambda p: p.neg(p.permute(p.tensor("x", "n h w 3"), order=(0, 3, 1, 2))),
        sizes("n h w", "2 3 5", "1 1 1"),
    ),
    "columns_of_halves": Row(
        lambda p: [
            p.sum(p.tensor("x", "n m", FLOAT16), axes=(0,), keepdim=False),
            p.max(
                p.mul(p.tensor("y", "n m", FLOAT16), p.tensor("z", "n m", FLOAT16)), axes=(0,), keepdim=False
            ),
        ],
        sizes("n m", "3 5", "40 131", "67 300", "33 4", "21 16", "18 256"),
        tolerance=1e-3,
    ),
    "column_extrema": Row(
        lambda p: [
            p.max(p.tensor("x", "b n m"), axes=(1,), keepdim=True),
            p.min(p.tensor("y", "n m", INT64), axes=(0,), keepdim=False),
        ],
        sizes("b n m", "2 3 5", "1 1 1", "2 100 70"),
    ),
    "rows_looked_up": Row(
        lambda p: [
            p.embedding(p.tensor("aligned", "50 136"), p.tensor("a", "n", INT64)),
            p.embedding(p.tensor("odd", "50 331", FLOAT16), p.tensor("b", "n", INT64)),
            p.relu(p.embedding(p.tensor("free", "50 m"), p.tensor("c", "n", INT64))),
        ],
        sizes("n m", "3 5", "1 1", "9 128", "2 37"),
        {"a": below(50), "b": below(50), "c": below(50)},
        tolerance=1e-3,
    ),
    "rows_looked_up_off_alignment": Row(
        lambda p: [
            p.embedding(p.tensor("bytes", "40 530", UINT8), p.tensor("a", "n", INT64)),
            p.embedding(p.tensor("halves", "40 257", BFLOAT16), p.tensor("b", "n", INT64)),
            p.embedding(p.tensor("doubles", "40 67", FLOAT64), p.tensor("c", "n", INT64)),
            # of two types, with a row that all others are added to
            p.add(
                p.add(
                    p.cast(
                        p.embedding(p.tensor("narrow", "40 131", FLOAT16), p.tensor("d", "n", INT64)),
                        dtype=FLOAT32,
                    ),
                    p.embedding(p.tensor("wide", "40 131"), p.tensor("e", "n", INT64)),
                ),
                p.tensor("row", "131"),
            ),
            p.add(
                p.cast(
                    p.embedding(p.tensor("least", "40 65", UINT8), p.tensor("f", "n", INT64)), dtype=INT64
                ),
                p.embedding(p.tensor("most", "40 65", INT64), p.tensor("g", "n", INT64)),
            ),
            p.embedding(p.tensor("free", "40 m"), p.tensor("h", "n", INT64)),
        ],
        sizes("n m", "17 133", "5 515", "1 7"),
        {"bytes": below(256), "least": below(256), **{name: below(40) for name in "abcdefgh"}},
    ),
    "rows_looked_up_for_several": Row(
        lambda p: with_its_arctangent(
            p, p.tanh(p.embedding(p.tensor("x", "40 m", FLOAT16), p.tensor("a", "n", INT64)))
        ),
        sizes("n m", "17 264", "5 515", "1 1032"),
        {"a": below(40)},
        tolerance=1e-3,
    ),
    "part_of_rows_rolled": Row(  # off alignment by a constant, which a size at run time hides
        lambda p: p.roll(p.pad(p.tensor("x", "n n"), low=(0, -1), high=(0, -1), value=0.0), axis=0, shift=-1),
        sizes("n", "6", "14", "3"),
    ),
    "rows_looked_up_in_pieces": Row(
        lambda p: [
            p.embedding(p.tensor("whole", "40 640"), p.tensor("a", "n", INT64)),
            p.embedding(p.tensor("rest", "40 1300", BFLOAT16), p.tensor("b", "n", INT64)),
            # of two types, with a row that all others are added to and a condition along it
            p.where(
                p.tensor("where", "780", BOOL),
                p.add(
                    p.embedding(p.tensor("narrow", "40 780", FLOAT16), p.tensor("c", "n", INT64)),
                    p.tensor("row", "780"),
                ),
                p.embedding(p.tensor("wide", "40 780"), p.tensor("d", "n", INT64)),
            ),
            p.tril(p.embedding(p.tensor("free", "40 m"), p.tensor("e", "n", INT64)), diagonal=500),
        ],
        sizes("n m", "17 520", "5 1024", "1 516", "2 8"),
        {name: below(40) for name in "abcde"},
    ),
    "gathered": Row(
        lambda p: p.gather(p.tensor("x", "n 9"), p.tensor("index", "n k", INT64), axis=1),
        sizes("n k", "3 5", "1 1"),
        {"index": below(9)},
    ),
    "upsampled": Row(
        lambda p: p.upsample_bilinear(
            p.tensor("x", "n 3 h w"), output=(p.dim("h") * 2, p.dim("w") * 3), align_corners=False
        ),
        sizes("n h w", "1 3 5", "2 1 1"),
    ),
    "roots": Row(
        lambda p: p.rsqrt(p.log1p(p.tensor("x", "n m"))), sizes("n m", "4 5"), {"x": positive}, 1e-5
    ),
    "range_mask": Row(
        lambda p: p.where(
            p.lt(
                p.arange(start=0, stop=p.dim("m"), step=1, dtype=INT64),
                p.reshape(p.tensor("lengths", "n", INT64), shape=(p.dim("n"), 1)),
            ),
            p.tensor("x", "n m"),
            p.number(-1e9),
        ),
        sizes("n m", "3 5", "1 1"),
        {"lengths": below(5)},
    ),
}
