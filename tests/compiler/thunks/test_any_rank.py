"""Models of unknown rank from the factory to a restart: graphs that torch.fx recorded without shapes, new
ranks that a compile process builds, ranks that follow the sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

from dlcb.compiler import CompiledModel, InputDeclaration, ModelSource, compile_model, load_model
from dlcb.compiler.bridge.ranks import specialise
from dlcb.compiler.build.toolchain import calls
from dlcb.compiler.errors import CaptureError, GuardError
from dlcb.compiler.thunks.assemble import load_model as load_thunks
from dlcb.kernel_cache import LayeredStore, open_store

HERE = Path(__file__).parent


def any_rank(factory: str, **fields: object) -> ModelSource:
    inputs = (InputDeclaration("x", "float32", None),)
    return ModelSource(
        factory, "1", factory=f"thunk_models:{factory}", inputs=inputs, outputs=("out",), **fields
    )


@pytest.fixture
def store(tmp_path: Path) -> LayeredStore:
    return open_store(tmp_path)


def in_process(store: Path, *shapes: str) -> dict:
    done = subprocess.run(
        [sys.executable, str(HERE / "jit_process.py"), str(store), *shapes],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_rank_is_served_then_compiled_elsewhere_then_found_after_a_restart(tmp_path: Path) -> None:
    first = in_process(tmp_path, "2x3x4", "5x1x4", "2x3x4")
    assert first["served"] == [["eager", True], ["jit", True], ["jit", True]]
    assert first["requested"] == 1
    assert (first["compiler runs here"], first["compiler runs in the compile process"]) == (0, 1)
    restarted = in_process(tmp_path, "4x3x2", "1x1x1")
    assert restarted["served"] == [["jit", True], ["jit", True]]
    assert restarted["requested"] == 0
    assert (restarted["compiler runs here"], restarted["compiler runs in the compile process"]) == (0, 0)


def test_outputs_have_the_type_that_traces_show(store: LayeredStore) -> None:
    compilation = compile_model(any_rank("places"), store)
    assert [spec.dtype for spec in compilation.signature.outputs] == ["int64"]
    assert compilation.report.tier == "jit"
    taken, *refused = compilation.report.notes
    assert taken == "takes ranks 2, 3, 4, 5 of those tried"
    assert [note.partition(":")[0] for note in refused] == ["rank 0", "rank 1"]
    with pytest.raises(CaptureError, match="bool at rank 2"):
        compile_model(any_rank("changing"), store)


def test_a_graph_without_shapes_runs_at_a_declared_rank_too(store: LayeredStore) -> None:
    inputs = (InputDeclaration("x", "float32", ("n", "m")),)
    source = ModelSource(
        "normalised", "1", factory="thunk_models:normalised", inputs=inputs, outputs=("out",)
    )
    compilation = compile_model(source, store)
    assert compilation.report.tier == "dynamic" and compilation.report.free_dims == ("n", "m")
    model = load_model(source, compilation.artifact_key, store)
    x = torch.randn(3, 5)
    torch.testing.assert_close(model.call(x)[0], torch.relu(torch.softmax(x, -1) - 0.1))


def test_squeeze_without_an_axis_has_a_graph_for_each_rank_that_comes_out(store: LayeredStore) -> None:
    source = any_rank("squeezed", jit="wait")
    model = load_model(source, compile_model(source, store).artifact_key, store)
    for shape in ((3, 4), (1, 4), (3, 1), (1, 1), (3, 4)):
        x = torch.randn(shape)
        outcome = model.run({"x": x.numpy()})
        assert outcome.tier == "jit"
        assert outcome.outputs["out"].shape == tuple(x.squeeze().shape)
        torch.testing.assert_close(torch.from_numpy(outcome.outputs["out"]), torch.exp(x).squeeze() * 2)
    assert model.counters.compiles_requested == 1


def test_a_width_that_weights_pin_is_no_wish(store: LayeredStore) -> None:
    source = any_rank("projected", jit="wait")
    model = load_model(source, compile_model(source, store).artifact_key, store)
    for shape in ((3, 4), (4,), (2, 3, 4), (0, 4)):
        x = torch.randn(shape)
        outcome = model.run({"x": x.numpy()})
        assert outcome.tier == "jit"
        expected = torch.relu(x @ torch.linspace(-1, 1, 12).view(4, 3))
        torch.testing.assert_close(torch.from_numpy(outcome.outputs["out"]), expected)
    with pytest.raises(GuardError, match=r"axis 1 of input 'x' is 5, expected .* 4"):
        model.run({"x": torch.randn(3, 5).numpy()})


# ---- waiting


def waiting(store: LayeredStore, answer: Future[str], seconds: float) -> CompiledModel:
    source = any_rank("normalised", jit="wait")
    key = compile_model(source, store).artifact_key
    return load_thunks(source, key, store, request_compile=lambda ranked: answer, wait_seconds=seconds)


def test_a_request_waits_no_longer_than_it_may(store: LayeredStore) -> None:
    never: Future[str] = Future()
    model = waiting(store, never, seconds=0.05)
    x = torch.randn(3, 5)
    assert model.plan({"x": (3, 5)}).tier == "jit"
    assert model.run({"x": x.numpy()}).tier == "eager"
    assert model.plan({"x": (3, 5)}).tier == "eager"  # the time is up: nobody else waits for this rank
    assert model.run({"x": x.numpy()}).tier == "eager"


def test_what_comes_after_the_time_is_up_serves_from_then_on(store: LayeredStore) -> None:
    late: Future[str] = Future()
    model = waiting(store, late, seconds=0.0)
    x = torch.randn(3, 5)
    assert model.run({"x": x.numpy()}).tier == "eager"
    ranked = specialise(model.source, [2])
    compiled = compile_model(ranked, store)
    late.set_result(compiled.artifact_key)
    before = calls.total
    assert model.loaded_ranks == {}
    assert model.run({"x": x.numpy()}).tier == "jit"
    assert calls.total == before
    assert [(ranks, report.kernels) for ranks, report in model.loaded_ranks.items()] == [
        ((2,), compiled.report.kernels)
    ]


def test_code_that_is_wrong_at_every_rank_is_an_error_when_it_is_compiled(store: LayeredStore) -> None:
    with pytest.raises(CaptureError, match="no attribute 'abss'"):
        compile_model(any_rank("misspelt"), store)
