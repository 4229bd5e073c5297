"""Several .pt2 files of one model, exported at other sizes: what differs follows the sizes, what they cannot
tell apart is an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from captured_programs import Program, assert_agrees
from torch import Tensor, nn
from torch.export import Dim

from dlcb.compiler.bridge.generalize import generalize
from dlcb.compiler.driver import compile_model, load_model
from dlcb.compiler.errors import ContractError, DeclarationError, ShapeError
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.kernel_cache import open_store

SIZES = ((2, 12), (7, 31), (11, 54))
FREE = (InputDeclaration("x", "float32", ("rows", "columns")),)


def files(
    folder: Path, module: nn.Module, shapes: Sequence[tuple[int, ...]], **fields: object
) -> ModelSource:
    """The source of files that a module was exported to at these shapes."""
    paths = [str(folder / f"{place}.pt2") for place in range(len(shapes))]
    for path, shape in zip(paths, shapes, strict=True):
        torch.export.save(torch.export.export(module, (torch.randn(shape),)), path)
    return ModelSource("model", "1", program=paths[0], beside=tuple(paths[1:]), **fields)


def of(function: str) -> nn.Module:
    """A function that forward calls, so that no file has its line."""
    return Program(eval(f"lambda x: {function}", {"torch": torch, "F": nn.functional})).eval()


@pytest.mark.parametrize(
    "function",
    [
        "torch.roll(x, x.shape[1] // 2, 1)",
        "x / x.shape[1] + x.shape[0] ** -0.5",
        "0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))",
        "x[:, 3 : x.shape[1] - 1]",
        "F.pad(x, (0, -x.shape[1] % 8))",
        "x.view(x.shape[0], 1, -1).expand(-1, 2, -1).flatten(1)",
        "torch.cat([x, torch.zeros(x.shape[0], x.shape[1] // 4)], 1)",
    ],
)
def test_what_one_file_holds_several_leave_free(function: str, tmp_path: Path) -> None:
    source = files(tmp_path, of(function), SIZES, inputs=FREE)
    with pytest.raises(ShapeError, match="name files of other sizes as well"):
        generalize(replace(source, beside=()))
    program = generalize(source)
    assert [verdict.size for verdict in program.verdicts] == ["rows", "columns"]
    for shape in (*SIZES, (3, 12), (1, 30), (16, 8)):
        assert_agrees(program, of(function), {"x": torch.randn(shape)})


@pytest.mark.parametrize(
    ("function", "shapes", "words"),
    [
        ("x * (x.shape[1] % 2)", ((2, 8), (9, 30)), r"other 0, in a function .* may be columns % 2"),
        ("torch.roll(x, x.shape[1] // 2, 1)", ((2, 8), (7, 9)), r"shifts 4, .* may be columns // 2"),
        (
            "torch.roll(x, x.shape[1] // 2, 1)",
            ((3, 8), (5, 16)),
            "may be columns // 2 or ",
        ),
        ("torch.roll(x, x.shape[1] // 2, 1)", ((4, 8), (8, 16)), r"rows is columns // 2 in all of them"),
        ("x * torch.full((2,), x.shape[0] ** 1.5).sum()", SIZES, "are explained by no size in the graph"),
        ("x[:, :9] * 2 if x.shape[1] > 9 else x", ((3, 8), (7, 31)), "the graph"),
    ],
)
def test_what_files_do_not_tell_apart_is_an_error(
    function: str, shapes: Sequence[tuple[int, int]], words: str, tmp_path: Path
) -> None:
    with pytest.raises(DeclarationError, match=words) as caught:
        generalize(files(tmp_path, of(function), shapes, inputs=FREE))
    assert all(name in caught.value.message for name in ("0.pt2", "1.pt2"))
    assert caught.value.key == "program"


def test_a_size_that_all_files_have_is_that(tmp_path: Path) -> None:
    source = files(tmp_path, of("torch.roll(x, 3, 1)"), ((2, 9), (7, 9)))
    program = generalize(source)
    assert [verdict.size for verdict in program.verdicts] == ["s0", 9]
    assert "all 2 files have it as 9: name one with another size as well" in program.verdicts[1].reason
    with pytest.raises(ShapeError, match="all 2 files have it as 9"):
        generalize(replace(source, inputs=FREE))


class Weighted(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def refused(folder: Path, other: nn.Module, shape: tuple[int, ...], **export: object) -> str:
    """What is said of a file beside one of `Weighted`."""
    source = files(folder, Weighted(0).eval(), ((2, 6),))
    path = str(folder / "other.pt2")
    torch.export.save(torch.export.export(other.eval(), (torch.randn(shape),), **export), path)
    with pytest.raises(DeclarationError) as caught:
        generalize(replace(source, beside=(path,)))
    return caught.value.message


def test_files_that_are_not_of_one_model_are_refused(tmp_path: Path) -> None:
    assert "the constant 'linear.weight' changes" in refused(tmp_path, Weighted(1), (5, 6))
    assert "the graph" in refused(tmp_path, nn.Linear(6, 3, bias=False), (5, 6))
    assert "the file takes rank 3" in refused(tmp_path, Weighted(0), (5, 2, 6))
    rows = {"x": {0: Dim("rows")}}
    assert "needs no file beside it" in refused(tmp_path, Weighted(0), (5, 6), dynamic_shapes=rows)


def test_several_files_are_compiled_and_found_again(tmp_path: Path) -> None:
    module = of("torch.roll(x, x.shape[1] // 2, 1) * 3")
    source = files(tmp_path, module, SIZES, inputs=FREE, outputs=("y",))
    store = open_store(tmp_path / "cache")
    compiled = compile_model(source, store)
    again = compile_model(ModelSource.from_json(source.to_json()), store)
    assert again.artifact_key == compiled.artifact_key
    model = load_model(source, compiled.artifact_key, store)
    x = torch.randn(4, 10)
    torch.testing.assert_close(model.call(x)[0], module(x))
    with pytest.raises(ContractError):
        model.call(torch.randn(4))
    one = replace(source, beside=())
    other = replace(source, program=source.beside[0], beside=(str(source.program),))
    assert len({each.identity() for each in (source, one, other)}) == 3
