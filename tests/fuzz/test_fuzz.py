"""A bounded run of random programs. A failure prints its seed and a smaller program; tests/fuzz/run.py runs
as many as one likes."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dlcb.compiler.driver import options_for
from dlcb.compiler.ir import ops
from dlcb.compiler.options import Target
from dlcb.kernel_cache import open_store

from . import draw
from .campaign import Tally, Way, campaign, smaller
from .compiled import CPP
from .program import graph, show
from .rows import ROWS

SEED, PROGRAMS, SHAPES = 20, 40, 6


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # random programs do what PyTorch warns of
        yield
    torch.set_num_threads(threads)


def clean(tmp_path: Path, seeds: range, bridge: bool = False, target: Target = CPP) -> Tally:
    tally, way = Tally(), Way(SHAPES, open_store(tmp_path), bridge, target)
    campaign(seeds, way, tally)
    if tally.failures:
        pytest.fail(f"{len(tally.failures)} failures; {smaller(tally.failures[0], way)}")
    assert tally.programs == len(seeds)
    return tally


def test_random_programs_agree_with_eager_and_the_oracle(tmp_path):
    tally = clean(tmp_path, range(SEED, SEED + PROGRAMS))
    assert tally.verdict.shapes > 4 * PROGRAMS
    assert tally.verdict.noisy < PROGRAMS // 4
    assert len(tally.covered) > 90


def test_random_casts_are_eager_s(tmp_path):
    tally, way = Tally(), Way(SHAPES, open_store(tmp_path), casts=True)
    campaign(range(PROGRAMS // 2), way, tally)
    assert not tally.failures, smaller(tally.failures[0], way)
    assert tally.verdict.shapes > 2 * PROGRAMS


def test_random_neighbours_agree_with_eager_and_the_oracle(tmp_path):
    tally, way = Tally(), Way(SHAPES, open_store(tmp_path), interleaved=True)
    campaign(range(PROGRAMS // 2), way, tally)
    assert not tally.failures, smaller(tally.failures[0], way)
    assert tally.verdict.shapes > 2 * PROGRAMS


def test_random_programs_through_the_bridge(tmp_path):
    tally = clean(tmp_path, range(4), bridge=True)
    assert tally.verdict.shapes > 8


@pytest.mark.device
@pytest.mark.timeout(600)
def test_random_programs_on_a_gpu(tmp_path):
    tally = clean(tmp_path, range(SEED, SEED + PROGRAMS), target=options_for("cuda").target)
    assert tally.verdict.shapes > 4 * PROGRAMS


def test_every_operator_is_drawn():
    """But `eager`, which has no rule, parts of composites, and what a pass makes of weights."""
    parts = {"eager", "adaptive_sum_pool", "adaptive_count", "window_count", "cast_evenly"}
    assert {*ops.OPS} - parts == {*ROWS}


def test_a_program_is_known_by_its_seed():
    assert draw.program(5) == draw.program(5)
    assert show(draw.program(5)) != show(draw.program(6))
    assert 3 <= len(draw.program(5).steps) <= 20
    assert graph(draw.program(5)).name == "p5"
