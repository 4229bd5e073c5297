"""Cases P1 to P3, R1 and R2: free sizes cost no optimisation, no division and no compile."""

import re
import time
from dataclasses import replace

import pytest
import torch
from case_running import OPTIONS, compiled, declare, random

from dlcb.compiler import ModelSource
from dlcb.compiler.bridge.capture import load_module
from dlcb.compiler.bridge.generalize import Captured, generalize
from dlcb.compiler.build.toolchain import calls
from dlcb.compiler.kgen import generate
from dlcb.compiler.options import Target
from dlcb.compiler.passes.pipeline import run_passes, schedule

LENGTHS = (3, 5, 8, 13, 17, 21, 34, 40, 55, 64, 70, 89, 100, 111, 128, 144, 190, 233)


def test_P1_images_lie_channels_last_for_free_sizes_too(store):
    named = {"x": ("n", 3, "h", "w")}
    free, fixed = (
        [node.op.name for node in run_passes(_captured("convolution_net", shapes).graph, "cuda").nodes]
        for shapes in (named, {"x": (2, 3, 20, 24)})
    )
    assert free.count("convolution_nhwc") == 2 and "convolution" not in free
    assert free == fixed
    compiled(store, "convolution_net", named).agrees(random(2, 3, 20, 24))


@pytest.mark.parametrize(
    ("factory", "free", "fixed"),
    [
        ("encoder", ("b", "s", 32), (2, 24, 32)),
        ("convolution_net", ("n", 3, "h", "w"), (2, 3, 20, 24)),
        ("smoothed", ("b", "s"), (3, 40)),
        ("heads", ("b", "s", 32), (2, 9, 32)),
    ],
)
def test_P2_as_many_kernels_as_for_fixed_sizes(store, factory, free, fixed):
    dynamic = compiled(store, factory, {"x": free})
    static = compiled(store, factory, {"x": fixed}, options=replace(OPTIONS, static=True))
    assert static.report.tier == "static"
    assert [k.operators for k in dynamic.report.kernels] == [k.operators for k in static.report.kernels]
    assert [(c.operator, c.tier, c.count) for c in dynamic.report.calls] == [
        (c.operator, c.tier, c.count) for c in static.report.calls
    ]
    dynamic.agrees(random(*fixed))
    static.agrees(random(*fixed), tier="static")


def _captured(factory: str, shapes: dict) -> Captured:
    inputs = declare(shapes, {}, {})
    captured = generalize(ModelSource(factory, "1", f"case_models:{factory}", inputs=inputs), options=OPTIONS)
    captured.graph.system.solve()
    return captured


def _sources(factory: str, free: tuple, target: Target) -> list[str]:
    plan = schedule(run_passes(_captured(factory, {"x": free}).graph, target.kind))
    return [
        k.body for g in plan.groups for k in generate(g, plan.layouts, plan.graph.system, target).variants
    ]


@pytest.mark.parametrize("target", [Target.cpp(), Target.cuda()], ids=["cpp", "cuda"])
@pytest.mark.parametrize(
    ("factory", "free"),
    [
        ("encoder", ("b", "s", 32)),
        ("convolution_net", ("n", 3, "h", "w")),
        ("heads", ("b", "s", 32)),
        ("repeat_and_flip", ("m", "n")),
        ("chunks_of_eight", ("b", "n", 3)),
    ],
)
def test_P3_no_division_and_nothing_twice(factory, free, target):
    for body in _sources(factory, free, target):
        assert not re.search(r"[/%] *(?:\(int64_t\))?size", body), body
        assert not _twice(body), body


def _twice(body: str) -> list[str]:
    """What is given a name while what is spelled alike still has one, in the same block or around it."""
    blocks, found = [set()], []
    for line in body.splitlines():
        for text in re.findall(r"const [\w ]+ \w+ = ([^;\[]+);", line):
            if re.search(r"[-+*/<]", text):
                found += [text for block in blocks if text in block]
                blocks[-1].add(text)
        for brace in re.findall(r"[{}]", line):
            blocks = [*blocks, set()] if brace == "{" else blocks[:-1]
    return found


def test_R1_eighteen_lengths(store):
    before = calls.total
    case = compiled(store, "encoder", {"x": ("b", "s", 32)})
    assert calls.total - before <= 1
    for _ in range(2):
        for length in LENGTHS:
            case.agrees(random(2, length, 32))
    again = [case.model.run({"x": random(2, length, 32).numpy()}) for length in LENGTHS]
    assert {(outcome.tier, outcome.result) for outcome in again} == {("dynamic", "hit")}


def test_R2_each_length_once(store):
    case = compiled(store, "encoder", {"x": ("b", "s", 32)})
    eager = load_module(case.source)
    case.agrees(random(1, 599, 32))
    with torch.no_grad():
        eager(random(1, 598, 32))
    before, slow = calls.total, []
    for length in torch.randperm(1500, generator=torch.Generator().manual_seed(0))[:30].add(600).tolist():
        ours, theirs = _first_calls(case, eager, length)
        if ours > 2 * theirs:
            slow.append(length)
    # another program of this machine may stop either at any moment: what was slow is asked again at fresh
    # lengths
    slow = [
        n
        for n in slow
        if all(a > 2 * b for a, b in (_first_calls(case, eager, 2200 + 3 * n + k) for k in range(3)))
    ]
    assert not slow
    assert calls.total == before


def _first_calls(case, eager, length: int) -> tuple[float, float]:
    x = random(1, length, 32)
    start = time.perf_counter()
    case.model.call(x)
    middle = time.perf_counter()
    with torch.no_grad():
        eager(x)
    return middle - start, time.perf_counter() - middle
