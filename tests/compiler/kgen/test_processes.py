"""Kernels that other processes generate are those that this one would have generated, and come from here
where the others fail."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from kernel_programs import Program
from kernel_rows import ROWS

from dlcb.compiler.expr.node import ONE, size
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Graph
from dlcb.compiler.kgen import KernelSet, processes, shares
from dlcb.compiler.kgen.deadline import Allowance
from dlcb.compiler.kgen.handover import from_bytes, to_bytes
from dlcb.compiler.kgen.processes import KernelProcesses, kernel_processes
from dlcb.compiler.kgen.regions import generate_all
from dlcb.compiler.options import CompileOptions, Target
from dlcb.compiler.passes.pipeline import run_passes, schedule
from dlcb.compiler.passes.steps import Schedule
from dlcb.compiler.solver.pattern import any_of
from dlcb.compiler.solver.rule import Rule

CUDA = CompileOptions(target=Target.cuda(), threads=64)
CPP = CompileOptions(target=Target.cpp(), threads=64)
LOADED = 60.0  # seconds that a busy machine may take to start a process


def plan_of(graph: Graph, options: CompileOptions = CUDA) -> Schedule:
    return schedule(run_passes(graph, options.target.kind))


def norms() -> Schedule:
    """Six kernels, each for rows of another length."""
    p = Program("norms")
    rows = [p.tensor(f"x{width}", f"b {width}") for width in range(40, 46)]
    return plan_of(p.builder.build(*(p.layer_norm(x, dims=1, eps=1e-5) for x in rows)))


def generated(plan: Schedule, options: CompileOptions = CUDA) -> list[KernelSet]:
    return generate_all(plan, options, Allowance(60.0, 600.0), lambda made: made)[1]


@pytest.fixture(scope="module")
def others() -> Iterator[KernelProcesses]:
    with KernelProcesses() as started:
        assert started.is_ready(LOADED)
        yield started


def test_they_generate_what_this_process_would(others: KernelProcesses) -> None:
    plan = norms()
    assert others.generate(plan, CUDA)
    assert shares.missing(plan, CUDA) == {}
    assert generated(plan) == generated(norms())
    again = norms()
    assert others.generate(again, CUDA)  # one schedule after the other
    assert generated(again) == generated(plan)


@pytest.mark.parametrize("options", [CUDA, CPP], ids=["cuda", "cpp"])
@pytest.mark.parametrize("name", ROWS)
def test_every_program_has_the_same_kernels(name: str, options: CompileOptions) -> None:
    """As in the processes, but in this one."""
    plan = plan_of(ROWS[name].graph(name), options)
    asked = shares.missing(plan, options)
    there, places, said = from_bytes(to_bytes((plan, [*asked], options)))
    assert said == options
    made = from_bytes(to_bytes(shares.generate_share(there, places, said)))
    assert [place for place, _ in made.kernels] == [*asked]
    assert shares.accept([made], asked, plan.graph.system)
    assert generated(plan, options) == generated(plan_of(ROWS[name].graph(name), options), options)


def test_little_is_generated_here(others: KernelProcesses) -> None:
    p = Program("small")
    assert not others.generate(plan_of(p.builder.build(p.sigmoid(p.tensor("x", "b s")))), CUDA)


def test_equal_groups_are_asked_for_once_and_shared_out_evenly() -> None:
    p = Program("layers")
    rows = [p.tensor(f"x{k}", f"b {40 + k % 7}") for k in range(40)]
    plan = plan_of(p.builder.build(*(p.layer_norm(x, dims=1, eps=1e-5) for x in rows)))
    assert len(shares.missing(plan, CUDA)) < len(plan.groups) / 2
    parts = shares.shares(plan, range(40))
    assert sorted(place for part in parts for place in part) == [*range(40)]
    costs = [shares.costs(plan, part) for part in parts]
    assert max(costs) - min(costs) <= shares.costs(plan, [0])


def test_a_process_that_ends_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with KernelProcesses() as started:
        assert started.is_ready(LOADED)
        os.kill(started._process.pid, signal.SIGKILL)
        plan = norms()
        assert not started.generate(plan, CUDA)
        assert not started.generate(plan, CUDA)  # said once
    assert len(caplog.records) == 1
    assert generated(plan) == generated(norms())


def test_one_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_PATIENCE", 0.1)
    with KernelProcesses() as started:
        assert started.is_ready(LOADED)
        os.kill(started._process.pid, signal.SIGSTOP)
        assert not started.generate(norms(), CUDA)
    assert started._process.returncode == -signal.SIGKILL


def test_one_that_is_not_ready_is_not_waited_for() -> None:
    with KernelProcesses() as started:
        os.kill(started._process.pid, signal.SIGSTOP)
        assert not started.generate(norms(), CUDA)


def test_an_error_in_a_share_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with KernelProcesses() as started:
        assert started.is_ready(LOADED)
        wrong = replace(CUDA, region_values="many")  # type: ignore[arg-type]
        assert not started.generate(norms(), wrong)
    assert "TypeError" in caplog.text


def test_a_region_that_is_too_large_is_left_out_and_divided_here() -> None:
    options = replace(CUDA, region_values=5)
    plan = plan_of(ROWS["gelu_add_norm"].graph("gelu_add_norm"))
    asked = shares.missing(plan, options)
    made = shares.generate_share(from_bytes(to_bytes(plan)), [*asked], options)
    assert made.kernels == ()
    assert shares.accept([made], asked, plan.graph.system)
    assert len(generated(plan, options)) > len(plan.groups)


def test_what_might_have_been_cut_short_here_is_not_taken() -> None:
    plan = norms()
    asked = shares.missing(plan, CUDA)
    made = shares.generate_share(from_bytes(to_bytes(plan)), [*asked], CUDA)
    engine = plan.graph.system.simplifier.engine
    for much in (replace(made, beyond=engine.at_once + 1), replace(made, steps=engine.budget)):
        assert not shares.accept([much], asked, plan.graph.system)
    assert shares.missing(plan, CUDA) == asked


def test_they_need_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads, expected in ((5, 64, False), (6, 64, True), (64, 5, False)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)))
        with kernel_processes(replace(CUDA, threads=threads)) as started:
            assert (started is not None) == expected


def test_where_none_can_be_started_there_are_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processes, "ENOUGH_CORES", 1)
    monkeypatch.setattr(sys, "executable", "/no/python")
    with kernel_processes(CUDA) as started:
        assert started is None
    assert "No such file" in caplog.text


@pytest.mark.parametrize("here", [False, True], ids=["folder", "cwd"])
def test_files_of_a_model_that_are_named_as_pythons_stay_unread(
    here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("multiprocessing", "numbers", "resource", "numpy", "dlcb"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'read')!r}, 'w')\nraise SystemExit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["" if here else str(tmp_path), *sys.path, tmp_path / "it's no text"])
    with KernelProcesses() as started:
        assert started.is_ready(LOADED)
        plan = norms()
        assert started.generate(plan, CUDA)
    assert not (tmp_path / "read").exists()


_COMPILES = """
from dlcb.compiler.kgen.processes import KernelProcesses
with KernelProcesses() as started:
    assert started.is_ready(60)
    print(started._process.pid, flush=True)
    input()
"""


def test_they_end_with_the_compiler_however_it_ends() -> None:
    command = [sys.executable, "-c", _COMPILES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as compiler:
        assert compiler.stdout is not None
        helper = int(compiler.stdout.readline())
        compiler.kill()
    until = time.monotonic() + LOADED
    with suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.kill(helper, 0)
            time.sleep(0.02)
        pytest.fail(f"process {helper} is still there")


# ---- what is handed over


def test_expressions_stay_what_they_are() -> None:
    e = (size("n") + ONE) // 4 * size("m")
    assert from_bytes(to_bytes(e)) is e


def test_what_only_one_process_has_stays_there() -> None:
    rule = Rule("own", any_of("x", "add"), lambda know, x: x)
    with pytest.raises(pickle.PicklingError, match="rule own"):
        to_bytes(rule)
    with pytest.raises(pickle.PicklingError, match="operator add"):
        to_bytes(replace(ops.OPS["add"], kind="other"))
