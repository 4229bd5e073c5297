"""Who is right on the cases: this compiler and torch.compile(dynamic=True), both against eager PyTorch on
the same inputs. Opt-in, since torch.compile takes minutes: `python -m tests.cases.compare [--only A7,W4]`
prints a Markdown table."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import torch
from torch._dynamo.utils import counters

sys.path.insert(0, str(Path(__file__).parent))  # where the factories of the cases are found

from case_running import OPTIONS, declare

from dlcb.compiler import ModelSource, compile_model, load_model
from dlcb.compiler.bridge.agreement import Reference, as_tuple, compare
from dlcb.compiler.bridge.capture import load_module
from dlcb.compiler.build.toolchain import calls
from dlcb.compiler.errors import RequestError
from dlcb.kernel_cache import LayeredStore, open_store

Call = Callable[..., Sequence[torch.Tensor]]
REFUSALS = (RequestError, RuntimeError, IndexError, ValueError, TypeError)  # ours, and what PyTorch raises


@dataclass(frozen=True)
class Row:
    """One case: a factory of case_models, its declared inputs, and the shapes it is called with, in order."""

    case: str
    factory: str
    inputs: dict[str, tuple[str | int, ...]]
    shapes: list[list[tuple[int, ...]]]
    outputs: int = 1
    types: dict[str, str] = field(default_factory=dict)
    highest: int = 2  # integers are drawn below this


def _each(sizes: Sequence[int], *rest: int) -> list[list[tuple[int, ...]]]:
    return [[(n, *rest)] for n in sizes]


ROWS = (
    Row("A1", "hundreds", {"x": ("n",)}, _each((2100, 2099, 300))),
    Row("A2", "add", {"x": ("b", 3), "y": ("b", 3)}, [[(4, 3), (4, 3)], [(4, 3), (7, 3)]]),
    Row("A7", "below_ten", {"x": ("n", 3)}, _each((9, 2, 10, 40, 0), 3)),
    Row("A10", "parity", {"x": ("n", 4)}, _each((3, 4, 1, 8, 31), 4)),
    Row("A10", "mean_by_hand", {"x": ("n", 4)}, _each((3, 4, 1, 8, 31), 4)),
    Row("A10", "loop_over_a_size", {"x": ("n", 4)}, _each((3, 4, 1, 8), 4)),
    Row("W1", "repeat_and_flip", {"x": ("m", "n")}, [[(2, 2)], [(3, 5)]]),
    Row("W4", "round_to_tens", {"x": ("n",)}, _each((14, 15, 16, 25))),
    Row("W6", "upsampled", {"x": ("b", 1, "h", "w")}, [[(1, 1, 3, 4)], [(2, 1, 7, 5)], [(2, 1, 20, 33)]]),
    Row("W8", "negative_places", {"x": ("n",)}, _each((3, 1, 21)), outputs=2),
    Row("W8", "negative_sizes", {"x": ("n",)}, _each((3, 1, 2, 21)), outputs=2),
    Row("W9", "every_second", {"x": ("e",)}, _each((2, 1, 4, 5, 9))),
    Row("W11", "permuted", {"x": ("n", "h", "w", "c")}, [[(2, 3, 4, 5)], [(1, 1, 1, 1)]], outputs=3),
    Row("W18", "pool_and_sum", {"x": ("b", "c", "h", "w")}, [[(1, 1, 320, 640)], [(1, 1, 720, 1280)]]),
    Row("W21", "sizes_back", {"x": ("a", "b")}, [[(4, 8)], [(3, 1)]], outputs=3),
    Row(
        "W25",
        "joined_and_reshaped",
        {"x": ("b", "n"), "y": ("b", 3)},
        [[(2, 1), (2, 3)], [(4, 7), (4, 3)], [(1, 2), (1, 3)]],
    ),
    Row(
        "S1",
        "add_four",
        {name: (f"{name}0",) for name in "abcd"},
        [[(4,), (1,), (4,), (1,)], [(1,), (4,), (1,), (1,)], [(4,)] * 4, [(1,)] * 4],
    ),
    Row(
        "S3",
        "add",
        {"x": ("a", "b"), "y": ("c", "d")},
        [[(5, 3), (1, 3)], [(5, 1), (1, 3)], [(1, 1), (5, 3)], [(5, 3), (5, 3)]],
    ),
    Row("S4", "smoothed", {"x": ("b", "s")}, _each((1, 2, 3, 7, 4, 0, 1), 6)),
    Row("S6", "ignores_second", {"x": ("n",), "unused": ("m",)}, [[(5,), (0,)], [(5,), (2,)]]),
    Row("S8", "root_mean_square", {"x": ("b", "s", 48)}, [[(1, 1, 48)], [(2, 17, 48)], [(0, 3, 48)]]),
    Row(
        "S12",
        "attention",
        {name: ("b", 2, "s", 16) for name in "qkv"},
        [[(2, 2, n, 16)] * 3 for n in (320, 256, 1)],
    ),
    Row("E1", "least", {"x": ("n", 3)}, _each((4, 0), 3)),
    Row("E3", "mean_and_sum", {"x": ("n", "m")}, [[(3, 2)], [(3, 0)], [(0, 3)]], outputs=2),
    Row("E3", "largest", {"x": ("n", "m")}, [[(3, 2)], [(3, 0)]]),
    Row("I1", "lookup", {"ids": ("b", "s")}, [[(3, 4)], [(5, 1)]], types={"ids": "int64"}, highest=10),
    Row("R1", "encoder", {"x": ("b", "s", 32)}, [[(2, n, 32)] for n in (3, 17, 64, 233)]),
    Row(
        "Swin's windows",
        "windows",
        {"x": ("b", "h", "w", 8)},
        [[(1, 4, 4, 8)], [(2, 5, 8, 8)], [(2, 9, 13, 8)]],
    ),
    Row("GPT-2's mask", "causal_block", {"x": ("b", "s", 32)}, [[(1, 7, 32)], [(2, 7, 32)], [(3, 1, 32)]]),
    Row("T5's bias", "relative_encoder", {"x": ("b", "s", 32)}, [[(1, 2, 32)], [(2, 17, 32)], [(2, 1, 32)]]),
    Row("three graphs", "three_ways", {"x": ("n", 3)}, _each((5, 15, 16, 99, 100, 400), 3)),
    Row("squeeze", "without_ones", {"x": ("n", 3)}, _each((2, 1, 9), 3)),
)


@dataclass(frozen=True)
class Answer:
    """`wrong` says where it was; `compiled`: graphs (torch.compile) or runs of a compiler (ours)."""

    wrong: tuple[str, ...]
    compiled: int
    seconds: float

    def __str__(self) -> str:
        verdict = "right" if not self.wrong else f"WRONG in {len(self.wrong)} calls, first {self.wrong[0]}"
        return f"{verdict} ({self.compiled}, {self.seconds:.1f} s)"


def judge(row: Row, source: ModelSource, reference: Reference, call: Call) -> tuple[str, ...]:
    """The calls that go otherwise than eager: other outputs, or a refusal on one side alone."""
    wrong = []
    for number, shapes in enumerate(row.shapes):
        inputs = _inputs(source, shapes, row.highest, number)
        try:
            reference.eager(list(inputs.values()))
        except REFUSALS:
            if _runs(call, inputs):
                wrong.append(f"{shapes}: eager refuses, this does not")
            continue
        try:
            rows = compare(call, reference, inputs, source.outputs)
        except REFUSALS as error:
            wrong.append(f"{shapes}: {type(error).__name__}")
            continue
        wrong += [f"{shapes}: {each.reason or f'error {each.error:.1e}'}" for each in rows if not each.agrees]
    return tuple(wrong)


def _runs(call: Call, inputs: dict[str, torch.Tensor]) -> bool:
    try:
        call(*inputs.values())
    except REFUSALS:
        return False
    return True


def _inputs(
    source: ModelSource, shapes: Sequence[tuple[int, ...]], highest: int, seed: int
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        declared.name: torch.randint(0, highest, shape, generator=generator)
        if declared.dtype == "int64"
        else torch.randn(shape, generator=generator)
        for declared, shape in zip(source.inputs, shapes, strict=True)
    }


def ours(row: Row, source: ModelSource, reference: Reference, store: LayeredStore) -> Answer:
    before, start = calls.total, time.perf_counter()
    model = load_model(source, compile_model(source, store, OPTIONS).artifact_key, store)
    wrong = judge(row, source, reference, model.call)
    return Answer(wrong, calls.total - before, time.perf_counter() - start)


def theirs(row: Row, source: ModelSource, reference: Reference) -> Answer:
    torch._dynamo.reset()
    counters.clear()
    start = time.perf_counter()
    module = torch.compile(load_module(source), dynamic=True)

    def call(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        with torch.no_grad():
            return as_tuple(module(*tensors))

    wrong = judge(row, source, reference, call)
    return Answer(wrong, counters["stats"]["unique_graphs"], time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="case ids, separated by commas")
    only = set(filter(None, parser.parse_args().only.split(",")))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"{date.today()}, commit {commit}, torch {torch.__version__}, CPU.", end=" ")
    print("In brackets: runs of a compiler for ours, graphs compiled for torch.compile, and seconds.\n")
    print("| case | program | ours | torch.compile(dynamic=True) |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder))
        for row in ROWS:
            if only and row.case not in only:
                continue
            inputs = declare(row.inputs, row.types, dict.fromkeys(row.types, (0, row.highest)))
            names = tuple(f"out{k}" for k in range(row.outputs))
            factory = f"case_models:{row.factory}"
            source = ModelSource(row.factory, "1", factory=factory, inputs=inputs, outputs=names)
            reference = Reference(load_module(source))
            answers = ours(row, source, reference, store), theirs(row, source, reference)
            print(f"| {row.case} | {row.factory} | {answers[0]} | {answers[1]} |", flush=True)


if __name__ == "__main__":
    main()
