"""Exported programs with parts in autocast, or with gradients on or off: files hold these as their own
programs."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dlcb.compiler import CompileOptions, InputDeclaration, ModelSource, compile_model, load_model
from dlcb.compiler.bridge.generalize import generalize
from dlcb.compiler.errors import CaptureError
from dlcb.compiler.ir import text
from dlcb.compiler.loading import options_for
from dlcb.compiler.options import Target
from dlcb.kernel_cache import open_store

X = InputDeclaration("x", "float32", ("batch", 8))
HALF, SINGLE = "bfloat16", "float32"


class Parts(nn.Module):
    """In autocast for the devices of `kind`, a part of it without, and another with gradients."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.kind = nn.Linear(8, 8), kind

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = x * 2
        with torch.autocast(self.kind, dtype=torch.bfloat16):
            y = self.linear(x)
            z = y.softmax(-1).reshape(x.shape[0], 4, 2) + 1
            with torch.autocast(self.kind, enabled=False):
                w = x @ self.linear.weight
        with torch.enable_grad():
            u = self.linear(w).relu()
        return z * 2, y.sum(), w, u


def exported(kind: str, path: Path, device: str = "cpu") -> str:
    module = Parts(kind).eval().requires_grad_(False).to(device)
    sizes = ({0: torch.export.Dim("batch", max=512)},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there may be no GPU
        program = torch.export.export(
            module, (torch.randn(3, 8, device=device),), dynamic_shapes=sizes, strict=False
        )
    file = str(path / f"{kind}.pt2")
    torch.export.save(program, file)
    return file


class Writing(nn.Module):
    """Changes tensors within such parts, and views of them that others see."""

    def __init__(self, changed: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.changed = nn.Linear(8, 8), changed
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        view = y[:, 1:]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = self.linear(x)
            z.add_(1)
            z[:, :2].mul_(3)
            view.mul_(3)
            if self.changed:
                getattr(self, self.changed).add_(1)
        with torch.enable_grad():
            y[:, 0] = 7
            z = z * self.count
        return y, z, view + 1


def written(changed: str, path: Path) -> ModelSource:
    module = Writing(changed).eval().requires_grad_(False)
    sizes = ({0: torch.export.Dim("batch", max=512)},)
    program = torch.export.export(module, (torch.randn(3, 8),), dynamic_shapes=sizes, strict=False)
    torch.export.save(program, path / "written.pt2")
    return ModelSource("written", "1", program=str(path / "written.pt2"), inputs=(X,))


def test_what_parts_change_in_place_is_changed_for_who_reads_it_later(tmp_path: Path) -> None:
    model_source, store = written("", tmp_path), open_store(tmp_path)
    key = compile_model(model_source, store, CompileOptions(optimisation="-O0")).artifact_key
    model = load_model(model_source, key, store)
    assert model.report.tier == "dynamic", model.report.quarantined
    for batch in (1, 2, 9):
        x = torch.randn(batch, 8)
        for ours, theirs in zip(model.call(x), Writing().eval()(x), strict=True):
            torch.testing.assert_close(ours, theirs.detach(), atol=2e-2, rtol=2e-2)


def test_a_part_that_leaves_something_behind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="the program changes count"):
        compile_model(written("count", tmp_path), open_store(tmp_path), CompileOptions(optimisation="-O0"))


@pytest.mark.parametrize(
    ("target", "kinds"),
    [(Target.cpp(), [HALF, HALF, SINGLE, SINGLE]), (Target.cuda(), [SINGLE] * 4)],
    ids=["cpp", "cuda"],
)
def test_a_file_has_the_casts_of_the_device_it_is_for(
    target: Target, kinds: list[str], tmp_path: Path
) -> None:
    source = ModelSource("parts", "1", program=exported("cpu", tmp_path), inputs=(X,))
    program = generalize(source, None, CompileOptions(target=target))
    assert [value.dtype.name for value in program.graph.outputs] == kinds
    assert program.verdicts[0].size != 3 and not program.notes
    shown = text.show(program.graph)
    assert shown.count("linear(") == 2 and "eager" not in shown
    assert ("cast(" in shown) is (target.kind == "cpp")


def test_what_autocast_adds_to_a_call_is_in_the_graph(tmp_path: Path) -> None:
    """On CUDA softmax is told the type of its result, and of its operand it is not."""
    program = torch.export.load(exported("cpu", tmp_path))
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            if "wrap_with_autocast" in str(node.target):
                node.args = ("cuda", *node.args[1:])  # as a GPU exports it
    torch.export.save(program, str(tmp_path / "on_gpu.pt2"))
    source = ModelSource("parts", "1", program=str(tmp_path / "on_gpu.pt2"), inputs=(X,))
    found = generalize(source, None, CompileOptions(target=Target.cuda()))
    assert [value.dtype.name for value in found.graph.outputs] == [SINGLE, HALF, SINGLE, SINGLE]
    softmax = next(node for node in found.graph.nodes if node.op.name == "softmax")
    assert [value.dtype.name for value in (*softmax.inputs, softmax.result)] == [SINGLE, SINGLE]
    assert "eager" not in text.show(found.graph)


def test_a_file_with_such_parts_agrees_with_eager(tmp_path: Path) -> None:
    _agrees(exported("cpu", tmp_path), "cpu", tmp_path)


@pytest.mark.device
@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_a_file_with_such_parts_agrees_with_eager_on_the_device(kind: str, tmp_path: Path) -> None:
    _agrees(exported(kind, tmp_path, "cuda"), "cuda", tmp_path)


def _agrees(path: str, device: str, folder: Path) -> None:
    source = ModelSource("parts", "1", program=path, inputs=(X,))
    store = open_store(folder / "store")
    key = compile_model(source, store, options_for(device)).artifact_key
    model = load_model(source, key, store, device=device)
    assert model.report.tier == "dynamic" and not model.report.quarantined
    module = torch.export.load(path).module()
    for rows in (2, 3, 40):
        x = torch.randn(rows, 8, device=device)
        for ours, wanted in zip(model.call(x), module(x), strict=True):
            torch.testing.assert_close(ours, wanted, atol=5e-2, rtol=2e-2)
