"""Random programs through the passes, CUDA kernels and host programs, on emulated threads, beside eager
PyTorch and the oracle. tests/fuzz/run.py --target cuda runs more of them on a GPU."""

import warnings
from pathlib import Path

import pytest
from cuda_on_cpu import EmulatedDevice, library
from fuzz import draw
from fuzz.compiled import model, ready
from fuzz.judge import judge
from fuzz.program import graph, show

from dlcb.compiler.kgen import translation_unit
from dlcb.compiler.options import Target
from dlcb.kernel_cache import open_store

SEEDS = (3, 48, 51, 132, 2, 5)  # the first four found text that no compiler takes, and nests without one
SHAPES = 3


def test_random_programs_agree_with_eager_and_the_oracle(tmp_path: Path) -> None:
    target = Target.cuda()
    programs = [draw.program(seed) for seed in SEEDS]
    made = [ready(graph(program), target) for program in programs]
    text = translation_unit([kernels for each in made for kernels in each.kernels], target)
    device = EmulatedDevice(library(text, [k for each in made for s in each.kernels for k in s.kernels]))
    store, ran = open_store(tmp_path), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # random programs do what PyTorch warns of
        for program, each in zip(programs, made, strict=True):
            verdict = judge(program, each, model(each, draw.parameters(program), "", store, device), SHAPES)
            if verdict.failures:
                pytest.fail(f"seed {program.seed}: {verdict.failures[0]}\n{show(program)}")
            ran += verdict.shapes
    assert ran > 2 * len(programs)
