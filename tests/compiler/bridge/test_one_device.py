"""Models whose code, or whose file, names another device than that on which they run, or none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dlcb.compiler import CompileOptions, InputDeclaration, ModelSource, compile_model, load_model
from dlcb.compiler.bridge import one_device
from dlcb.compiler.bridge.one_device import Arguments, OneDevice, called, names_devices, settle
from dlcb.compiler.errors import CaptureError
from dlcb.compiler.loading import options_for
from dlcb.kernel_cache import open_store


class Positions(nn.Module):
    """Looks positions up and hides what comes later; `where` its forward makes these: with its input, at
    PyTorch's default, or on a device that it names."""

    def __init__(self, where: str = "follows") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.where = where
        self.table, self.linear = nn.Embedding(64, 8), nn.Linear(8, 8)
        self.kept = [torch.ones(8)]  # no buffer

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        device = {"follows": x.device, "default": None}.get(self.where, self.where)
        hidden = torch.full((length, length), float("-inf"), device=device).triu(1)
        places = torch.arange(length, device=device)
        y = self.linear(x) * self.kept[0].to(x.device) + self.table(places)
        return (y @ y.mT / torch.tensor(8.0, device=device).sqrt() + hidden).softmax(-1) @ y


class Adding(nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.kept = where, [torch.ones(8)]

    def forward(self, x: Tensor) -> Tensor:
        device = {"follows": x.device, "default": None}.get(self.where, self.where)
        return x * self.kept[0] + torch.arange(8, device=device)


class Carrying(nn.Module):
    """Brings what it makes to a device in the ways that there are."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + torch.from_numpy(np.ones(3, np.float32)).cuda()
        y = y.to("cuda:0") + torch.zeros(3).to(torch.device("cuda"), non_blocking=True)
        return (y.to(device="cuda") + torch.tensor([1.0, 2.0, 3.0]).to(y)).cpu()


def made(where: str) -> nn.Module:
    return Positions(where)


def carrying() -> nn.Module:
    return Carrying()


@pytest.mark.parametrize("where", ["cuda", "cuda:0", "default"])
def test_a_forward_that_names_a_device_is_compiled_for_the_one_it_runs_on(where: str, tmp_path: Path) -> None:
    declared = InputDeclaration("x", "float32", ("batch", "length", 8))
    source = ModelSource("positions", "1", f"{__name__}:made", arguments={"where": where}, inputs=(declared,))
    store = open_store(tmp_path)
    key = compile_model(source, store, CompileOptions(optimisation="-O0")).artifact_key
    model = load_model(source, key, store)
    assert model.report.tier == "dynamic"
    for sizes in ((1, 1), (3, 7), (0, 5)):
        x = torch.randn(*sizes, 8)
        torch.testing.assert_close(model.call(x)[0], Positions()(x))


def test_what_pytorch_runs_of_it_runs_there_too(tmp_path: Path) -> None:
    declared = InputDeclaration("x", "float32", ("batch", 3))
    source = ModelSource("carrying", "1", f"{__name__}:carrying", inputs=(declared,))
    store = open_store(tmp_path)
    key = compile_model(source, store, CompileOptions(optimisation="-O0", check_shapes=2)).artifact_key
    model = load_model(source, key, store)
    x = torch.randn(4, 3)
    torch.testing.assert_close(model.call(x)[0], x + torch.tensor([2.0, 3.0, 4.0]))
    assert not model.report.quarantined


@pytest.mark.parametrize("where", ["follows", "default", "cpu"])
def test_a_forward_fails_on_a_device_of_its_own_and_is_run_again(where: str) -> None:
    """As on a GPU, by tensors without values."""
    with FakeTensorMode() as mode:
        module = Adding(where)
        module.kept = [torch.empty(8, device="cuda")]
        x = torch.empty(2, 5, 8, device="cuda")
    asked: list[int] = []

    def arguments() -> Arguments:
        asked.append(1)
        return (x,), {}

    with mode:
        for _ in range(2):
            assert called(module, "cuda", arguments).device.type == "cuda"
    assert len(asked) == (2 if where == "follows" else 3)  # the second call knows


def test_a_program_is_settled_with_what_it_makes(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 8)
    program = torch.export.export(Positions("cpu").eval(), (x,), strict=False)
    module = program.module()
    before = module(x)
    moved = settle(program.module(), "meta")
    named = [v for node in moved.graph.nodes for v in node.kwargs.values() if isinstance(v, torch.device)]
    assert len(named) >= 2 and set(named) == {torch.device("meta")}
    assert moved(x.to("meta")).device.type == "meta"
    torch.testing.assert_close(settle(program.module(), "cpu")(x), before)


def test_tensors_in_plain_attributes_are_settled() -> None:
    module = settle(Adding("follows"), "meta")
    assert module.kept[0].device.type == "meta"


def test_other_failures_are_not_run_again() -> None:
    class Failing(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x.view(7)

    module = Failing()
    with pytest.raises(RuntimeError, match="shape"):
        called(module, "cpu", lambda: ((torch.zeros(3),), {}))
    assert module.calls == 1
    assert module not in one_device._scattered
    assert not names_devices(torch.OutOfMemoryError("CUDA out of memory"))


@pytest.mark.parametrize(
    "words",
    ["no such device in the table", "expected the same device", "the CUDA version of this comes later"],
)
def test_what_a_model_says_of_devices_itself_is_no_reason_to_run_it_again(words: str) -> None:
    class Refusing(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            raise RuntimeError(words)

    module = Refusing()
    with pytest.raises(RuntimeError, match=words):
        called(module, "cpu", lambda: ((torch.zeros(3),), {}))
    assert module.calls == 1


def test_what_pytorch_says_of_devices_is_known() -> None:
    calls = [
        lambda: torch.cat([torch.zeros(2), torch.zeros(2, device="meta")]),
        lambda: torch.zeros(2).to("xpu"),
        lambda: torch.tensor(1, device="mps"),
    ]
    for call in calls:
        with pytest.raises((RuntimeError, AssertionError)) as caught:
            call()
        assert names_devices(caught.value), caught.value
    for words in (
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        "indices should be either on cpu or on the same device as the indexed tensor (cuda)",
        "Could not run 'aten::mm' with arguments from the 'CUDA' backend.",
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
        "can't convert cuda:0 device type tensor to numpy.",
        "Found no NVIDIA driver on your system.",
        "No CUDA GPUs are available",
    ):
        assert names_devices(RuntimeError(words)), words


def test_tensors_without_values_stay_where_they_are() -> None:
    with OneDevice("cpu"):
        assert torch.zeros(2, device="meta").device.type == "meta"
        assert torch.zeros(2, device="cuda").device.type == "cpu"
        assert torch.zeros(2).to("cuda", torch.float64).dtype == torch.float64


# ---- on a GPU ------------------------------------------------------------------------------------------


def on_gpu(where: str, dtype: str = "float32") -> nn.Module:
    return Positions(where).to("cuda", getattr(torch, dtype))


@pytest.mark.device
@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("where", ["follows", "default", "cuda", "cpu"])
@pytest.mark.parametrize("factory", ["made", "on_gpu"])
def test_a_factory_may_leave_its_module_anywhere(
    factory: str, where: str, device: str, tmp_path: Path
) -> None:
    declared = InputDeclaration("x", "float32", ("batch", "length", 8))
    source = ModelSource("any", "1", f"{__name__}:{factory}", arguments={"where": where}, inputs=(declared,))
    _agrees(source, device, tmp_path)


@pytest.mark.device
@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("exported_on", ["cuda", "cpu"])
def test_a_program_runs_on_either_device(exported_on: str, device: str, tmp_path: Path) -> None:
    x = torch.randn(3, 7, 8, device=exported_on)
    dims = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=64)}
    module = settle(Positions().eval(), exported_on)
    program = torch.export.export(module, (x,), dynamic_shapes=(dims,), strict=False)
    path = tmp_path / "positions.pt2"
    torch.export.save(program, path)
    declared = InputDeclaration("x", "float32", ("batch", "length", 8))
    _agrees(ModelSource("any", "1", program=str(path), inputs=(declared,)), device, tmp_path)


class Transformed(nn.Module):
    """Half a spectrum, which PyTorch has on a GPU alone."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(x).abs()


def transformed() -> nn.Module:
    return Transformed()


@pytest.mark.device
def test_what_runs_on_a_gpu_alone_is_pytorchs_there(tmp_path: Path) -> None:
    declared = InputDeclaration("x", "float16", ("batch", 8))
    source = ModelSource("halves", "1", f"{__name__}:transformed", inputs=(declared,))
    store = open_store(tmp_path)
    made = compile_model(source, store, options_for("cuda"))
    assert made.report.tier == "eager" and "complex32" in made.report.quarantined
    model = load_model(source, made.artifact_key, store, device="cuda")
    x = torch.randn(3, 8, device="cuda").half()
    torch.testing.assert_close(model.call(x)[0], torch.fft.rfft(x).abs())
    with pytest.raises(CaptureError, match="Half"):
        compile_model(source, open_store(tmp_path / "cpu"), CompileOptions())


def _agrees(source: ModelSource, device: str, folder: Path) -> None:
    store = open_store(folder / "store")
    key = compile_model(source, store, options_for(device)).artifact_key
    model = load_model(source, key, store, device=device)
    assert model.report.tier == "dynamic", model.report.quarantined
    for sizes in ((1, 1), (3, 7), (5, 40)):
        x = torch.randn(*sizes, 8)
        (found,) = model.call(x.to(device))
        torch.testing.assert_close(found.cpu(), Positions()(x), atol=1e-4, rtol=1e-4)
