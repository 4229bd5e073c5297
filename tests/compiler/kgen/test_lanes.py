"""Whatever pointwise operators stand beside each other, the C++ compiler computes many elements at once: a
loop that it gives up takes up to thirty times as long, and nothing else shows it."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from kernel_programs import Program
from kernel_runs import Case, Unit

from dlcb.compiler.build import toolchain
from dlcb.compiler.build.toolchain import CppToolchain
from dlcb.compiler.dtype import FLOAT16, FLOAT32, DType
from dlcb.compiler.ir.graph import Value
from dlcb.compiler.options import CompileOptions, Target

# of which the C library has vector forms, or which are a few instructions
OPERATORS = (
    *("neg", "abs", "relu"),
    *("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh"),
    *("erf", "floor", "ceil", "trunc", "round", "sign", "sigmoid", "silu", "gelu", "reciprocal"),
)
PAIRS = ("add", "sub", "mul", "minimum", "maximum")
CHAINS = 40


def chain(draw: random.Random, dtype: DType) -> Case:
    """A few operators one after another, of which each may take any of the results before it."""
    p = Program(f"chain of {dtype.name}")
    values: list[Value] = [p.tensor("x", "n", dtype)]
    for _ in range(draw.randint(4, 14)):
        kind, last = draw.random(), values[-1]
        if kind < 0.5:
            name = draw.choice(OPERATORS)
            values.append(getattr(p, name)(last, **({"approximate": "none"} if name == "gelu" else {})))
        elif kind < 0.65:
            values.append(p.mul(last, p.number(draw.choice((-3, 2, 5)), dtype)))
        elif kind < 0.75:
            low, high = p.number(-2, dtype), p.number(draw.choice((1, 6)), dtype)
            values.append(p.minimum(p.maximum(last, low), high))
        elif kind < 0.85:
            other = draw.choice(values)
            values.append(p.where(p.lt(last, other), p.mul(last, other), other))
        elif kind < 0.9:
            values.append(getattr(p, draw.choice(("mod", "fmod")))(last, p.number(1.7, dtype)))
        else:
            values.append(getattr(p, draw.choice(PAIRS))(last, draw.choice(values)))
    return Case(p.builder.build(values[-1]), Target.cpp())


@pytest.mark.parametrize("dtype", (FLOAT32, FLOAT16), ids=lambda dtype: dtype.name)
def test_lanes_of_random_pointwise_chains_are_vectors(dtype: DType, tmp_path: Path) -> None:
    draw = random.Random(0)
    unit = Unit({str(number): chain(draw, dtype) for number in range(CHAINS)}, Target.cpp())
    compiler = toolchain(Target.cpp(), CompileOptions(target=Target.cpp()))
    assert isinstance(compiler, CppToolchain)
    if "clang" in compiler.version:
        pytest.skip("GCC tells which loops are vectors")
    found = _vectors(compiler, unit.text, tmp_path)
    lines = unit.text.splitlines()
    begin = next(number for number, line in enumerate(lines) if "_part(" in line)
    loops = [
        number
        for number, line in enumerate(lines)
        if number > begin and "#pragma omp simd" in line and not _is_memset(lines[number + 2])
    ]
    assert len(loops) >= CHAINS // 2
    left = [number for number in loops if found.isdisjoint(range(number + 1, number + 4))]
    assert not left, "\n".join(lines[left[0] : left[0] + 20])


def _is_memset(line: str) -> bool:
    """Whether it fills memory, for which the C library has a call, or copies it."""
    return re.fullmatch(r"\s*out\d\[\w+\] = (\d+|in\d\[\w+\]);", line) is not None


def _vectors(compiler: CppToolchain, text: str, folder: Path) -> set[int]:
    """The lines, from 1 on, of the loops that are made vectors."""
    options: Sequence[str] = (*compiler.options, "-fopt-info-vec-optimized")
    said = subprocess.run(
        [compiler.compiler, *options, "-", "-o", str(folder / "unit.so")],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    return {int(line) for line in re.findall(r"^<stdin>:(\d+):\d+: optimized: loop vectorized", said, re.M)}
