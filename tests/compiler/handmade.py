"""Host programs written by hand over a few C++ kernels, for the tests of host, runtime and thunks."""

import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ZERO, as_expr, product, size
from dlcb.compiler.host.program import (
    POSITION,
    Buffer,
    Guard,
    IndexCheck,
    Input,
    Launch,
    LaunchParameter,
    Output,
    Program,
    Segment,
    Step,
    Tensor,
    Variant,
)

KERNELS = r"""
#include <cstdint>
#define KERNEL(name) extern "C" void name(void* const* b, const int64_t* p, int64_t* status, int64_t threads)
KERNEL(add) {
  auto x = (const float*)b[0], y = (const float*)b[1]; auto out = (float*)b[2];
  for (int64_t i = 0; i < p[0]; ++i) out[i] = x[i] + y[i];
}
KERNEL(twice) {
  auto x = (const float*)b[0]; auto out = (float*)b[1];
  for (int64_t i = 0; i < p[0]; ++i) out[i] = x[i] + x[i];
}
KERNEL(twice_by_four) {
  auto x = (const float*)b[0]; auto out = (float*)b[1];
  for (int64_t i = 0; i < p[0]; i += 4) for (int j = 0; j < 4; ++j) out[i + j] = x[i + j] * 2;
}
KERNEL(row_sum) {  // p: rows, width
  auto x = (const float*)b[0]; auto out = (float*)b[1];
  for (int64_t r = 0; r < p[0]; ++r) { float s = 0; for (int64_t c = 0; c < p[1]; ++c) s += x[r * p[1] + c];
  out[r] = s; }
}
KERNEL(rows_by_magic) {  // out[i] = i // width, divided without dividing; p: elements, multiplier, shift
  auto out = (int64_t*)b[0];
  for (uint32_t i = 0; i < p[0]; ++i) out[i] = (((uint64_t)i * (uint32_t)p[1] >> 32) + i) >> p[2];
}
KERNEL(gather) {  // p: ids, vocabulary, width
  auto table = (const float*)b[0]; auto ids = (const int64_t*)b[1]; auto out = (float*)b[2];
  for (int64_t i = 0; i < p[0]; ++i) {
    bool good = 0 <= ids[i] && ids[i] < p[1];
    if (!good && !status[0]) { status[1] = i; status[2] = ids[i]; status[0] = 1; }
    for (int64_t c = 0; c < p[2]; ++c) out[i * p[2] + c] = good ? table[ids[i] * p[2] + c] : 0;
  }
}
"""


@cache
def kernels() -> bytes:
    """The shared library of the kernels above."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "kernels.so"
        command = ["g++", "-O1", "-std=c++17", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(made)]
        subprocess.run(command, input=KERNELS.encode(), check=True)
        return made.read_bytes()


class DictStore:
    """The smallest store: no files, so libraries are opened from memory."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.pins: dict[str, set[str]] = {}

    def get(self, key: str) -> bytes | None:
        return self.entries.get(key)

    def put(self, key: str, payload: bytes, *, kind: str = "", label: str = "") -> None:
        self.entries[key] = payload

    def keep(self, payload: bytes, *, kind: str = "", label: str = "") -> str:
        key = hashlib.sha256(payload).hexdigest()
        self.entries[key] = payload
        return key

    def has(self, key: str) -> bool:
        return key in self.entries

    def pin(self, key: str, owner: str) -> None:
        self.pins.setdefault(owner, set()).add(key)

    def unpin(self, owner: str) -> None:
        self.pins.pop(owner, None)

    def path(self, key: str) -> Path | None:
        return None


def store_with_kernels() -> tuple[DictStore, str]:
    store = DictStore()
    return store, store.keep(kernels())


n, m = size("n"), size("m")


def variant(
    kernel: str,
    buffers: Sequence[str],
    *numbers: Expr | int,
    checks: Sequence[IndexCheck] = (),
    guards: Sequence[Expr] = (),
    alignment: int = 1,
    kinds: Sequence[str] = (),
) -> Variant:
    """A variant whose first number is also its domain."""
    values = [as_expr(number) for number in numbers]
    kinds = kinds or ["int64"] * len(values)
    return Variant(
        kernel=kernel,
        buffers=tuple(buffers),
        parameters=tuple(LaunchParameter(k, v) for k, v in zip(kinds, values, strict=True)),
        guards=tuple(guards),
        alignment=alignment,
        grid=(as_expr(1),) * 3,
        block=(as_expr(1),) * 3,
        shared_bytes=ZERO,
        domain=values[0],
        checks=tuple(checks),
    )


def launch(kernel: str, buffers: Sequence[str], *numbers: Expr | int, **more: object) -> Launch:
    return Launch((variant(kernel, buffers, *numbers, **more),))


def tensor(name: str, *shape: Expr | int, dtype: str = "float32", buffer: str | None = None) -> Tensor:
    """A row-major tensor that is all of its buffer."""
    dims = tuple(as_expr(d) for d in shape)
    strides = tuple(product(dims[axis + 1 :]) for axis in range(len(dims)))
    return Tensor(name, buffer or name, dtype, dims, strides, ZERO)


def buffer(
    name: str, elements: Expr | int, place: str, first: int, last: int, dtype: str = "float32"
) -> Buffer:
    return Buffer(name, dtype, as_expr(elements), place, first, last)


def given(name: str, *dims: Expr | int, dtype: str = "float32") -> Input:
    return Input(name, dtype, tuple(as_expr(d) for d in dims))


def program(
    inputs: Sequence[Input],
    buffers: Sequence[Buffer],
    steps: Sequence[Step],
    tensors: Sequence[Tensor],
    outputs: Sequence[str],
    unit: str,
    parameters: Sequence[Buffer] = (),
    guards: Sequence[Guard] = (),
) -> Program:
    """A program of one segment."""
    segment = Segment(tuple(guards), tuple(buffers), tuple(tensors), tuple(steps), ())
    shown = tuple(Output(name, name) for name in outputs)
    return Program(
        "handmade", tuple(inputs), tuple(parameters), (), (segment,), shown, (unit,) if unit else ()
    )


def chain(unit: str, steps: int) -> Program:
    """out = 2 * 2 * ... * x over [n, m], `steps` launches, each result in a buffer of the arena except the
    last."""
    names = ["x", *(f"t{k}" for k in range(steps - 1)), "out"]
    count = n * m
    return program(
        [given("x", n, m)],
        [
            *(buffer(names[k + 1], count, "arena", k, k + 1) for k in range(steps - 1)),
            buffer("out", count, "result", steps - 1, steps),
        ],
        [launch("twice", names[k : k + 2], count) for k in range(steps)],
        [tensor("out", n, m)],
        ["out"],
        unit,
    )


def lookup(unit: str) -> Program:
    """out[i, j] = table[ids[i, j]] over ids [n, m], each id checked."""
    position = size(POSITION)
    check = IndexCheck("ids", (position // m, position % m), (n, m), as_expr(0), as_expr(10))
    return program(
        [given("ids", n, m, dtype="int64")],
        [buffer("out", n * m * 4, "result", 0, 1)],
        [launch("gather", ["table", "ids", "out"], n * m, 10, 4, checks=[check])],
        [tensor("out", n, m, 4)],
        ["out"],
        unit,
        parameters=[buffer("table", 40, "parameter", 0, 0)],
    )


def table() -> dict[str, torch.Tensor]:
    return {"table": torch.arange(40, dtype=torch.float32).reshape(10, 4)}
