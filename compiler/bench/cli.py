"""The command `bench`: which suite, which cases, which peers, and where results are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from dlcb.compiler.bench.machine import describe_machine
from dlcb.compiler.bench.report import keep, print_results
from dlcb.compiler.bench.run import run_case
from dlcb.compiler.bench.suites import SUITES, cases

app = typer.Typer(add_completion=False, help="Measure ours beside eager PyTorch and torch.compile.")


@app.command()
def bench(
    suite: Annotated[str, typer.Option(help=f"one of {', '.join(SUITES)}")] = "survey",
    only: Annotated[str, typer.Option(help="comma-separated cases; empty: all")] = "",
    peers: Annotated[str, typer.Option(help="comma-separated peers")] = "eager,compile-dynamic",
    device: Annotated[str, typer.Option(help="cpu or cuda; default: cuda where there is a GPU")] = "",
    rounds: Annotated[int, typer.Option(help="interleaved rounds")] = 7,
    out: Annotated[Path | None, typer.Option(help="a JSON file to keep results in, merged by case")] = None,
) -> None:
    """Print times, ratios, compile seconds, break-even calls and first calls at unseen shapes."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    wanted = set(filter(None, only.split(",")))
    chosen = [case for case in cases(suite, device) if not wanted or case.source.name in wanted]
    results = [run_case(case, device, tuple(filter(None, peers.split(","))), rounds=rounds) for case in chosen]
    machine = describe_machine(device)
    if out is not None:
        keep(results, machine, out)
    print_results(results, machine)
