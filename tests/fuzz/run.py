"""A long run of random programs: python -m tests.fuzz.run --programs 2000 --seed 0. Prints failures made
small, counts, and the operators that were met least; the exit status is 1 where anything failed."""

from __future__ import annotations

import argparse
import faulthandler
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from dlcb.compiler.driver import options_for
from dlcb.compiler.ir import ops
from dlcb.compiler.options import CompileOptions, Target
from dlcb.kernel_cache import open_store

from .campaign import Tally, Way, campaign, smaller

# `eager` has no rule of its own; `cast_evenly`, made by a pass, may give either neighbour of the exact value
_NOT_DRAWN = {"eager", "cast_evenly"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the next has the next")
    parser.add_argument("--shapes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=40, help="programs in one translation unit")
    parser.add_argument(
        "--shrink", type=int, default=5, help="failures of different kinds that are made smaller"
    )
    parser.add_argument("--bridge", action="store_true", help="capture the programs from PyTorch")
    parser.add_argument("--casts", action="store_true", help="casts between all types, compared bit by bit")
    parser.add_argument("--looked-up", action="store_true", help="long rows that data choose")
    parser.add_argument("--interleaved", action="store_true", help="neighbours that are unlike each other")
    parser.add_argument(
        "--values",
        type=int,
        default=CompileOptions.region_values,
        help="that a region may compute for an element before it is divided",
    )
    parser.add_argument("--target", choices=("cpp", "cuda"), default="cpp")
    parser.add_argument("--optimisation", default="-O1", help="the C++ compiler's level; the server's is -O2")
    given = parser.parse_args()
    faulthandler.enable()  # a library may end the process
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tally, start, told = Tally(), time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        target = Target.cpp() if given.target == "cpp" else options_for("cuda").target
        drawn = (given.bridge, target, given.casts, given.looked_up, given.values, given.interleaved)
        way = Way(given.shapes, open_store(Path(folder)), *drawn, given.optimisation)
        for first in range(given.seed, given.seed + given.programs, given.batch):
            last = min(first + given.batch, given.seed + given.programs)
            campaign(range(first, last), way, tally)
            for failure in tally.failures[told:]:
                print(f"seed {failure.program.seed}: {failure.kind}\n    {failure.lines[0][:300]}")
            told = len(tally.failures)
            print(f"{_counts(tally)}, {time.monotonic() - start:.0f} s", flush=True)
        kinds = {failure.kind: failure for failure in reversed(tally.failures)}
        for failure in list(kinds.values())[: given.shrink]:
            print(smaller(failure, way), flush=True)
    print(f"seeds {given.seed} to {given.seed + given.programs - 1}: {_counts(tally)}")
    if given.casts:
        return 1 if tally.failures else 0
    counts = sorted((tally.covered[name], name) for name in ops.OPS if name not in _NOT_DRAWN)
    print(f"each of {len(counts)} operators in {counts[0][0]} programs or more; least covered:")
    print(", ".join(f"{name} {count}" for count, name in counts[:12]))
    return 1 if tally.failures else 0


def _counts(tally: Tally) -> str:
    total = tally.verdict
    ran = f"{tally.programs} programs, {tally.kernels} kernels, {total.shapes} shapes run"
    refused = f"{total.refused} refused ({total.narrow} of them by us alone)"
    noisy = f"{total.noisy} outputs within what rounding does"
    unread = f"{total.unread} with a bad index that nothing reads"
    return f"{ran}, {refused}, {noisy}, {unread}, {len(tally.failures)} failures"


if __name__ == "__main__":
    sys.exit(main())
