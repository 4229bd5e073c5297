"""Random programs through the passes, CUDA kernels and host programs, on emulated threads whose accesses must
be aligned, beside eager PyTorch and the oracle. tests/fuzz/run.py --target cuda runs more on a GPU."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from cuda_on_cpu import EmulatedDevice, library
from fuzz import draw, interleaved, looked_up
from fuzz.compiled import model, ready
from fuzz.judge import judge
from fuzz.program import Program, graph, show

from dlcb.compiler.kgen import translation_unit
from dlcb.compiler.options import Target
from dlcb.kernel_cache import open_store

Drawn = Callable[[int], Program]
SEEDS = (3, 48, 51, 132, 2, 5)  # the first four found text that no compiler takes, and nests without one
LOOKED_UP = (8, 35, 36)
NEIGHBOURS = range(8)
BATCH = 10  # programs in a library
SHAPES = 3


def agree(drawn: Drawn, seeds: Sequence[int], folder: Path) -> None:
    target = Target.cuda()
    programs = [drawn(seed) for seed in seeds]
    made = [ready(graph(program), target) for program in programs]
    text = translation_unit([kernels for each in made for kernels in each.kernels], target)
    device = EmulatedDevice(library(text, [k for each in made for s in each.kernels for k in s.kernels]))
    store, ran = open_store(folder), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # random programs do what PyTorch warns of
        for program, each in zip(programs, made, strict=True):
            verdict = judge(program, each, model(each, draw.parameters(program), "", store, device), SHAPES)
            if verdict.failures:
                pytest.fail(f"seed {program.seed}: {verdict.failures[0]}\n{show(program)}")
            ran += verdict.shapes
    assert ran > 2 * len(programs)


@pytest.mark.parametrize(
    "drawn, seeds",
    [(draw.program, SEEDS), (looked_up.program, LOOKED_UP), (interleaved.program, NEIGHBOURS)],
)
def test_random_programs_agree_with_eager_and_the_oracle(
    drawn: Drawn, seeds: Sequence[int], tmp_path: Path
) -> None:
    agree(drawn, seeds, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 300, BATCH))
def test_many_programs_around_looked_up_rows(first: int, tmp_path: Path) -> None:
    agree(looked_up.program, range(first, first + BATCH), tmp_path)
