"""What a file declares of its inputs, and what a configuration does: names, ranges, ranks, outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from captured_programs import Program, assert_agrees
from torch import Tensor, nn
from torch.export import Dim

from dlcb.compiler.bridge.capture import export
from dlcb.compiler.bridge.generalize import generalize
from dlcb.compiler.driver import compile_model
from dlcb.compiler.errors import CaptureError, ContractError, DeclarationError, ShapeError
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.kernel_cache import open_store


def test_names_from_the_declaration_tie_dims_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    torch.export.save(
        export(Program(lambda x, y: x + y).eval(), {"x": torch.randn(3, 5), "y": torch.randn(3, 5)}), path
    )
    declared = tuple(InputDeclaration(name, "float32", ("n", "m")) for name in ("x", "y"))
    program = generalize(ModelSource("file", "1", program=str(path), inputs=declared, dims={"n": (1, 8)}))
    assert [verdict.size for verdict in program.verdicts] == ["n", "m", "n", "m"]
    assert program.verdicts[0].high == 8
    with pytest.raises(ShapeError, match="declared"):
        generalize(
            ModelSource(
                "file",
                "1",
                program=str(path),
                inputs=(InputDeclaration("x", "float32", (4, "m")), declared[1]),
            )
        )


class Pooled(nn.Module):
    """Windows that need rows and columns, so that the least sizes are refused."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, image: Tensor) -> Tensor:
        return self.second(nn.functional.max_pool2d(self.first(image).relu(), 2))


def saved(module: nn.Module, path: Path, dynamic: bool) -> ModelSource:
    """The source of a file that was exported for one size, or with free sizes."""
    free = {0: Dim("batch"), 2: Dim.AUTO, 3: Dim.AUTO}
    sample = (torch.randn(4, 3, 32, 32),)
    torch.export.save(torch.export.export(module, sample, dynamic_shapes=(free,) if dynamic else None), path)
    shape = ("batch", 3, "height", "width")
    return ModelSource("file", "1", program=str(path), inputs=(InputDeclaration("image", "float32", shape),))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_file_of_one_size_refuses_what_its_graph_does_not_allow(tmp_path: Path, dynamic: bool) -> None:
    module = Pooled().eval()
    program = generalize(saved(module, tmp_path / "pooled.pt2", dynamic))
    beyond = [verdict.beyond for verdict in program.verdicts if isinstance(verdict.size, str)]
    assert beyond == ["refused"] * 3  # a file of free sizes has found their least sizes itself
    assert [verdict.low for verdict in program.verdicts] == [0, 3, 8, 8]
    assert any("height = 32" in note for note in program.notes) is not dynamic
    assert_agrees(program, module, {"image": torch.randn(2, 3, 11, 40)})


def test_a_file_that_pins_a_named_dim_is_refused_with_the_line(tmp_path: Path) -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 5)

        def forward(self, image: Tensor) -> Tensor:
            return self.linear(image)

    with pytest.raises(ShapeError, match=r"'width' \(axis 3 of 'image'\) is declared free") as refused:
        generalize(saved(Rows().eval(), tmp_path / "rows.pt2", False))
    assert "test_declared_files.py" in refused.value.source_line


def test_as_many_outputs_are_declared_as_there_are() -> None:
    program = export(Program(lambda x: (x + 1, x * 2, x.sum())).eval(), {"x": torch.randn(3, 5)})
    for names in (("a",), ("a", "b", "c", "d")):
        with pytest.raises(CaptureError, match=f"{len(names)} outputs declared, the program gives 3 tensors"):
            generalize(ModelSource("three", "1", outputs=names), program)
    assert generalize(ModelSource("three", "1", outputs=("a", "b", "c")), program).outputs == ("a", "b", "c")


class Sums(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(1), y * 2


XY = (InputDeclaration("x", "float32", ("rows", "m")), InputDeclaration("y", "float32", ("rows", "k")))


def exported(path: Path, x: dict, y: dict, **declared: object) -> ModelSource:
    sample = (torch.randn(4, 6), torch.randn(4, 12))
    torch.export.save(torch.export.export(Sums(), sample, dynamic_shapes=(x, y)), path)
    return ModelSource("file", "1", program=str(path), **declared)


ROWS, WIDE = Dim("rows", min=1, max=8), Dim("wide", min=3, max=50)


@pytest.mark.parametrize("inputs", [XY, ()], ids=["declared", "undeclared"])
def test_ranges_of_a_file_are_declared(inputs: tuple[InputDeclaration, ...], tmp_path: Path) -> None:
    source = exported(tmp_path / "x.pt2", {0: ROWS, 1: 2 * WIDE}, {0: ROWS, 1: Dim.AUTO}, inputs=inputs)
    rows, m, same, k = generalize(source).verdicts
    assert (rows.low, rows.high, rows.size) == (1, 8, same.size)
    assert (m.low, m.high, m.multiple) == (6, 100, 2)
    assert (k.low, k.high, k.multiple) == (0, None, 1)  # the 2 that PyTorch notes there was not declared
    assert {rows.beyond, m.beyond, k.beyond} == {"refused"}
    assert "axis 1 of 'x' in the file" in m.reason
    assert rows.reason == f"exported: the range of '{rows.size}'"


def test_sizes_of_a_file_that_follow_from_others(tmp_path: Path) -> None:
    source = exported(tmp_path / "x.pt2", {0: ROWS, 1: WIDE}, {0: ROWS, 1: 2 * WIDE + 1 - 1}, inputs=XY)
    guards = [repr(guard.condition) for guard in generalize(source).graph.system.solve().guards]
    assert "m * 2 == k" in guards
    other_names = (XY[0], InputDeclaration("y", "float32", ("others", "k")))
    equal = generalize(replace(source, inputs=other_names)).graph.system.solve()
    said = [repr(guard.condition) for guard in equal.guards]
    assert "rows == others" in said or "others == rows" in said, said


def test_a_range_in_the_configuration_counts(tmp_path: Path) -> None:
    source = exported(tmp_path / "x.pt2", {0: ROWS}, {0: ROWS}, inputs=XY, dims={"rows": (2, 5)})
    rows = generalize(source).verdicts[0]
    assert (rows.low, rows.high, rows.reason) == (2, 5, "declared: the range of 'rows'")


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_file_is_stacked_where_its_rows_are_independent(tmp_path: Path, dynamic: bool) -> None:
    source = saved(Pooled().eval(), tmp_path / "pooled.pt2", dynamic)
    source = replace(source, outputs=("y",))
    store = open_store(tmp_path / "cache")
    signature = compile_model(source, store, CompileOptions(check_shapes=2)).signature
    assert signature.batch is not None and signature.batch.symbol == "batch"


def test_beyond_the_range_of_a_file_nothing_is_asked_of_pytorch(tmp_path: Path) -> None:
    source = exported(tmp_path / "x.pt2", {0: ROWS, 1: 2 * WIDE}, {0: ROWS}, inputs=XY, outputs=("p", "q"))
    signature = compile_model(source, open_store(tmp_path / "cache")).signature
    kinds = {"x": "float32", "y": "float32"}
    signature.check({"x": (8, 6), "y": (8, 12)}, kinds)
    for x, rule in (((9, 6), "must be 1 to 8"), ((3, 7), "must be 6 to 100, a multiple of 2")):
        with pytest.raises(ContractError, match=rule):
            signature.check({"x": x, "y": (x[0], 12)}, kinds)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (
            (("x", "float32", (3, "n")),),
            r"'x' is declared with rank 2, shape \[3, n\]; the file takes rank 3",
        ),
        ((("x", "float16", ("b", 3, "n")),), "'x' is declared as float16, the file takes float32"),
        (
            (("x", "float32", ("b", 3, "n")), ("y", "float32", (1,))),
            r"2 inputs are declared \('x', 'y'\), the file takes 1: ",
        ),
    ],
)
def test_inputs_that_the_file_does_not_have_are_said(
    declared: tuple[tuple[str, str, tuple[int | str, ...]], ...], words: str
) -> None:
    inputs = tuple(InputDeclaration(*each) for each in declared)
    program = export(Program(lambda x: x * 2), {"x": torch.randn(2, 3, 5)})
    with pytest.raises(DeclarationError, match=words) as caught:
        generalize(ModelSource("lone", "1", program="lone.pt2", inputs=inputs), program)
    assert caught.value.key == "inputs"
