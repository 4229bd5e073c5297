"""Modules of TorchScript, and others that are not quite like PyTorch's own: what a factory may give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dlcb.compiler import CompileOptions, InputDeclaration, ModelSource, compile_model, load_model
from dlcb.compiler.errors import CaptureError
from dlcb.compiler.thunks.model import CompiledModel
from dlcb.kernel_cache import open_store


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolve, self.norm = nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4)

    def forward(self, x: Tensor, scale: float = 2.0) -> tuple[Tensor, dict[str, Tensor]]:
        y = torch.relu(self.norm(self.convolve(x[:, None]))).flatten(1)
        return y * scale, {"total": x.sum(1)}


class Deciding(nn.Module):
    """Its size decides, which PyTorch asks in C++."""

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[0]
        if count > 8:
            x = x * 2
        parts = [x + k for k in range(2)]
        return torch.cat(parts, 1).view(count, 2, -1).sum(1) + torch.arange(count)[:, None]


class Counting(nn.Module):
    """Leaves a number and tensors behind, which TorchScript keeps where Python does not see them."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.last = 0, torch.zeros(8)
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.last = self.last + x.sum(0)
        self.total = self.total + x.sum(0)
        return x * self.count + self.last + self.total


class Attending(nn.Module):
    """PyTorch gives nothing for the weights of attention over nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None]
        return self.attention(x, x, x)[0].flatten(1)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).softmax(-1)


def _exported() -> nn.Module:
    dims = ({0: torch.export.Dim("batch")},)
    return torch.export.export(Pair().eval(), (torch.randn(3, 8),), dynamic_shapes=dims).module()


def _quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(Pair(), {nn.Linear}, dtype=torch.qint8)


GIVEN = {
    "scripted": lambda: torch.jit.script(Plain().eval()),
    "scripted in training": lambda: torch.jit.script(Plain().train()),
    "traced": lambda: torch.jit.trace(Pair().eval(), torch.randn(2, 8)),
    "frozen": lambda: torch.jit.freeze(torch.jit.script(Pair().eval())),
    "compiled": lambda: torch.compile(Pair(), dynamic=True),
    "exported": _exported,
}


def make(name: str) -> nn.Module:
    return GIVEN[name]()


def _compiled(source: ModelSource, folder: Path) -> CompiledModel:
    store = open_store(folder / "store")
    key = compile_model(source, store, CompileOptions(optimisation="-O0")).artifact_key
    return load_model(source, key, store)


X = InputDeclaration("x", "float32", ("batch", 8))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", GIVEN)
def test_what_a_factory_may_give_is_compiled(name: str, tmp_path: Path) -> None:
    source = ModelSource("given", "1", f"{__name__}:make", arguments={"name": name}, inputs=(X,))
    model = _compiled(source, tmp_path)
    assert model.report.tier == "dynamic"
    plain = Plain().eval() if "scripted" in name else Pair().eval()
    for rows in (0, 1, 5):
        x = torch.randn(rows, 8)
        wanted = torch.utils._pytree.tree_leaves(plain(x))
        torch.testing.assert_close(model.call(x), tuple(wanted))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_file_of_torchscript_needs_no_code(tmp_path: Path) -> None:
    torch.jit.script(Plain().eval()).save(str(tmp_path / "plain.pt"))
    path, factory = str(tmp_path / "plain.pt"), "dlcb.compiler.torchscript:load"
    source = ModelSource("file", "1", factory, weights=(path,), inputs=(X,))
    model = _compiled(source, tmp_path)
    assert model.report.tier == "dynamic"
    x = torch.randn(3, 8)
    torch.testing.assert_close(model.call(x)[0], Plain().eval()(x)[0])
    mistaken = ModelSource("file", "1", program=path, inputs=(X,))
    with pytest.raises(CaptureError, match=rf"a file of TorchScript, .*`factory: {factory}`"):
        _compiled(mistaken, tmp_path)
    (tmp_path / "other.pt").write_bytes(b"other")
    for weights, said in (
        ((), "found 0"),
        ((str(tmp_path / "other.pt"),), "is no file that torch.jit.save wrote"),
    ):
        with pytest.raises(CaptureError, match=said):
            _compiled(ModelSource("file", "2", factory, weights=weights, inputs=(X,)), tmp_path)


BROKEN = {
    "another start": (0, 4),
    "another version": (6, 2),
    "names that are no text": (46, 8),
}  # place, bytes


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_is_said_to_be_none(how: str, tmp_path: Path) -> None:
    path = tmp_path / "plain.pt"
    torch.jit.script(Pair().eval()).save(str(path))
    whole = bytearray(path.read_bytes())
    place, count = BROKEN[how]
    first = whole.index(b"PK\x01\x02") + place  # of the list of what is in it
    path.write_bytes(whole[:first] + b"\xff" * count + whole[first + count :])
    factory = ModelSource("file", "1", "dlcb.compiler.torchscript:load", weights=(str(path),), inputs=(X,))
    with pytest.raises(CaptureError, match=r"plain.pt' is no file that torch.jit.save"):
        _compiled(factory, tmp_path)
    with pytest.raises(CaptureError, match=r"program '.*plain.pt'"):
        _compiled(ModelSource("file", "2", program=str(path), inputs=(X,)), tmp_path)


class Nested(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x)


LEFT = {
    "attributes": lambda: torch.jit.script(Counting()),
    "attributes of a part": lambda: torch.jit.script(Nested(Counting())),
}


def leaving(name: str) -> nn.Module:
    return LEFT[name]()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", LEFT)
def test_what_torchscript_leaves_behind_is_gone(name: str, tmp_path: Path) -> None:
    source = ModelSource("leaving", "1", f"{__name__}:leaving", arguments={"name": name}, inputs=(X,))
    model = _compiled(source, tmp_path)
    assert not model.report.quarantined
    for rows in (2, 5, 2):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(model.call(x)[0], Counting()(x))


def attending() -> nn.Module:
    return torch.jit.script(Attending().eval())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_result_that_pytorch_leaves_out_and_nobody_reads(tmp_path: Path) -> None:
    model = _compiled(ModelSource("attending", "1", f"{__name__}:attending", inputs=(X,)), tmp_path)
    assert not model.report.quarantined
    for rows in (0, 1, 3):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(model.call(x)[0], attending()(x))


def deciding() -> nn.Module:
    return torch.jit.script(Deciding())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_whose_sizes_torchscript_asks_for_is_pytorchs(tmp_path: Path) -> None:
    model = _compiled(ModelSource("deciding", "1", f"{__name__}:deciding", inputs=(X,)), tmp_path)
    assert model.report.tier == "eager" and "asks for the size of axis 0 of 'x'" in model.report.quarantined
    for rows in (1, 2, 7, 8, 9, 30):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(model.call(x)[0], Deciding()(x))


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.scale = nn.Linear(8, 8), 2.0

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) * self.scale

    @torch.jit.export
    def shifted(self, x: Tensor) -> Tensor:
        return self.linear(x) + 1


class Around(nn.Module):
    """Calls a part's forward, another method, and looks at what it holds."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        y = self.part(x) + self.part.shifted(x)
        return (y @ self.part.linear.weight * self.part.scale).softmax(-1)


class Beyond(nn.Module):
    """Does something else where there are many rows."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "shape":
            count = x.shape[0]
        elif self.how == "size":
            count = x.size(0)
        else:
            count = len(x)
        if count > 60:
            x = x.relu()
        return x + 1


def around() -> nn.Module:
    return Around(torch.jit.script(Part()))


def beyond(how: str, within: bool) -> nn.Module:
    scripted = torch.jit.script(Beyond(how))
    return Nested(scripted) if within else scripted


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_part_of_torchscript_is_compiled_with_the_module_around_it(tmp_path: Path) -> None:
    model = _compiled(ModelSource("around", "1", f"{__name__}:around", inputs=(X,)), tmp_path)
    assert model.report.tier == "dynamic" and not model.report.unproven
    for rows in (1, 3, 40):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(model.call(x)[0], Around(Part())(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("how", ["shape", "size", "len"])
def test_a_branch_that_torchscript_takes_by_a_size_is_no_answer_for_all(
    how: str, within: bool, tmp_path: Path
) -> None:
    arguments = {"how": how, "within": within}
    source = ModelSource("beyond", "1", f"{__name__}:beyond", arguments=arguments, inputs=(X,))
    model = _compiled(source, tmp_path)
    assert model.report.tier == "eager" and "asks for the size of axis 0 of 'x'" in model.report.quarantined
    for rows in (1, 60, 61, 90):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(model.call(x)[0], Beyond(how)(x))


def quantised() -> nn.Module:
    return _quantised()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_packed_weights_stay_pytorchs(tmp_path: Path) -> None:
    model = _compiled(ModelSource("quantised", "1", f"{__name__}:quantised", inputs=(X,)), tmp_path)
    assert model.report.tier == "eager" and "quantized.linear_dynamic" in model.report.quarantined
    x = torch.randn(3, 8)
    torch.testing.assert_close(model.call(x)[0], quantised()(x))
