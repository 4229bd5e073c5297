"""What PyTorch refuses is refused, at every size, by its own words and never with another exception; what the
load check met there limits the model, and the report says so."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dlcb.compiler.artifact import Artifact
from dlcb.compiler.driver import Compilation, compile_model, load_model
from dlcb.compiler.errors import ContractError, IndexRangeError, RequestError
from dlcb.compiler.expr.node import size
from dlcb.compiler.refused import Refusal, narrowed, refusals
from dlcb.compiler.report import DimLine, Report
from dlcb.compiler.signature import BatchAxes, Dim, Signature, TensorSpec
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.kernel_cache import open_store

Function = Callable[[torch.Tensor], torch.Tensor]
SIZES = (0, 1, 2, 3, 6)


def attention(x: torch.Tensor) -> torch.Tensor:
    b = x.shape[0]
    q, k, v = torch.cat([x, x, x], -1).view(b, -1, 3, 2, 2).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, -1, 4)


FUNCTIONS: dict[str, tuple[tuple[int | str, ...], Function]] = {
    "a division by the size": (("n", 4), lambda x: x * (1 / x.shape[0])),
    "a size that the user asserts": (("n", 4), lambda x: [x + 1][0 if x.shape[0] != 2 else 5]),
    "resizing nothing": (("n", 3, "h", "w"), lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    "statistics of one value": (("n", 3, "h", "w"), lambda x: F.batch_norm(x, None, None, training=True)),
    "statistics of one pixel": (("n", 3, "h", "w"), F.instance_norm),
    "windows in too little": (("n", 3, "h", "w"), lambda x: F.unfold(x, 3)),
    "attention over nothing": (("b", "s", 4), attention),
    "windows of a view": (("n", "m"), lambda x: x.unfold(1, 4, 2).mean(-1)),
    "blocks of nothing": (("n", 4, "h", "w"), lambda x: F.pixel_unshuffle(x, 2) + 1),
    "the logarithm of no size": (("n", "m"), lambda x: x * int(math.log(x.shape[1]) * 4)),
}


class Program(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = FUNCTIONS[name][1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class AddedAt(nn.Module):
    def forward(self, x: torch.Tensor, places: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        return (x + 1).index_add_(0, places, added)


class Never(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            raise ValueError("not today")
        return x + 1


class EachTimeMore(nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        EachTimeMore.calls += 1
        return x + EachTimeMore.calls


class OtherwiseTraced(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (1 if torch.compiler.is_compiling() else 2)


class LookUp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)


class Recurrent(nn.Module):
    """PyTorch runs it within the program."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.GRU(4, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.steps(x)[0] * 2


class Factors(nn.Module):
    """PyTorch refuses its values, not its sizes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(x) + 1


class WithAGap(nn.Module):
    def forward(
        self, x: torch.Tensor, scale: torch.Tensor | None = None, y: torch.Tensor | None = None
    ) -> torch.Tensor:
        return x * scale if scale is not None else x - y


class WithWeights(nn.Module):
    """Leaves its weights out where there is nothing to weigh, unless it is traced."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        weights = x.softmax(-1)
        if type(x) is torch.Tensor and not torch.compiler.is_compiling() and not x.tolist():
            return x * 2, None
        return x * 2, weights


def program(name: str) -> nn.Module:
    return Program(name)


def module(name: str) -> nn.Module:
    torch.manual_seed(0)
    known = (Never, EachTimeMore, OtherwiseTraced, WithAGap, WithWeights, LookUp, Recurrent, Factors)
    return {each.__name__: each for each in known}[name]()


def compiled(
    tmp_path: Path, factory: str, name: str, *shapes: tuple[int | str, ...]
) -> tuple[Compilation, Callable[..., tuple[torch.Tensor, ...]]]:
    inputs = zip(("x", "y"), shapes, strict=False)
    source = ModelSource(
        "refused", "1", factory=f"{__name__}:{factory}", arguments={"name": name},
        inputs=tuple(InputDeclaration(given, "float32", shape) for given, shape in inputs),
    )  # fmt: skip
    store = open_store(tmp_path)
    compilation = compile_model(source, store)
    return compilation, load_model(source, compilation.artifact_key, store).call


@pytest.mark.parametrize("name", FUNCTIONS)
def test_refuses_what_pytorch_refuses(name: str, tmp_path: Path) -> None:
    shape, function = FUNCTIONS[name]
    compilation, call = compiled(tmp_path, "program", name, shape)
    assert not compilation.report.quarantined
    free = [dim for dim in shape if isinstance(dim, str)]
    for chosen in itertools.product(SIZES, repeat=len(free)):
        sizes = dict(zip(free, chosen, strict=True))
        x = torch.randn([sizes.get(dim, dim) for dim in shape], generator=torch.Generator().manual_seed(0))
        try:
            expected = function(x)
        except Exception:  # the cases raise many kinds
            with pytest.raises(RequestError):
                call(x)
        else:
            torch.testing.assert_close(call(x)[0], expected, equal_nan=True, atol=1e-5, rtol=1e-4)


def test_the_least_size_is_in_the_report_and_the_signature(tmp_path: Path) -> None:
    compilation, _ = compiled(tmp_path, "program", "a division by the size", ("n", 4))
    line = compilation.report.dims[0]
    assert (line.low, line.reason) == (1, "a branch: n != 0")
    assert compilation.signature.inputs[0].dims[0].low == 1


def test_the_least_size_of_a_call_within_the_program_is_in_the_signature(tmp_path: Path) -> None:
    compilation, call = compiled(tmp_path, "module", "Recurrent", ("b", "n", 4))
    batch, length, _ = compilation.report.dims
    assert (batch.low, length.low) == (0, 1)
    assert length.reason.startswith("PyTorch refuses n = 0: Expected sequence length to be larger than 0")
    with pytest.raises(ContractError, match=r"must be at least 1 .* nearest legal shape \[2, 1, 4\]"):
        compilation.signature.check({"x": (2, 0, 4)}, {"x": "float32"})
    assert call(torch.ones(0, 3, 4))[0].shape == (0, 3, 3)


def test_values_that_a_call_within_the_program_refuses_limit_no_size(tmp_path: Path) -> None:
    compilation, call = compiled(tmp_path, "module", "Factors", ("n", "n"))
    assert (compilation.report.dims[0].low, compilation.report.guards) == (0, ())
    torch.testing.assert_close(call(torch.eye(3))[0], torch.eye(3) + 1)


def test_what_is_known_besides_is_kept_and_what_no_longer_holds_is_not() -> None:
    """The reason for the most stays beside that for the least; what is refused together is not stacked."""
    n, m = Dim("n", 0, 5, 1, "a table of 5"), Dim("m", 0, None)
    rows = BatchAxes("m", {"x": 1}, {})
    proven = Artifact(
        Signature((TensorSpec("x", "float32", (n, m)),), (), batch=rows),
        Report("dynamic", dims=(DimLine("x", 0, "n", 0, 5, 1, "a table of 5", "", "proven"),)),
    )
    alone = Refusal(size("n") >= 1, "PyTorch refuses n = 0: no", ("n", 1))
    found = narrowed(proven, [alone])
    assert found.report.dims[0].reason == "a table of 5; PyTorch refuses n = 0: no"
    limited = found.signature.inputs[0].dims[0]
    assert (limited.reason, limited.reason_of_low) == ("a table of 5", "PyTorch refuses n = 0: no")
    assert found.signature.batch == rows
    together = Refusal((size("n") >= 2) | (size("m") >= 2), "PyTorch refuses n = 1, m = 1: no")
    found = narrowed(proven, [together])
    assert found.signature.batch is None
    assert found.report.batching[1] == "requests are not stacked along 'm': PyTorch refuses n = 1, m = 1: no"


def test_sizes_that_are_refused_together_are_no_range(tmp_path: Path) -> None:
    compilation, _ = compiled(tmp_path, "program", "statistics of one pixel", ("n", 3, "h", "w"))
    assert [line.low for line in compilation.report.dims] == [0, 3, 0, 0]
    assert any("h = 1, w = 1" in guard.reason for guard in compilation.report.guards)


def test_a_model_that_pytorch_never_runs_is_served_by_it(tmp_path: Path) -> None:
    compilation, call = compiled(tmp_path, "module", "Never", ("n", 4))
    assert compilation.report.quarantined == "PyTorch refuses every shape that was tried: not today"
    with pytest.raises(RequestError, match="not today"):
        call(torch.ones(3, 4))


def test_values_beyond_their_table_are_said_with_what_they_should_be(tmp_path: Path) -> None:
    """Whether some calls that the check draws stay inside of the table or none does."""
    for values in ((0, 9), (20, 29)):
        source = ModelSource(
            "looked-up", "1", factory=f"{__name__}:module", arguments={"name": "LookUp"},
            inputs=(InputDeclaration("ids", "int64", ("n", 4), values),),
        )  # fmt: skip
        report = compile_model(source, open_store(tmp_path / str(values[0]))).report
        said = "; ".join((report.quarantined, *report.notes))
        assert "for 'ids', where 0 to 6 is legal: its `values` should be [0, 7]" in said


def test_outputs_without_declared_names_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLCB_CACHE", str(tmp_path / "cache"))  # where the reproduction goes
    compilation, _ = compiled(tmp_path, "module", "OtherwiseTraced", ("n", 4))
    assert "deviations from eager" in compilation.report.quarantined


def test_a_model_that_answers_otherwise_each_time_is_pytorchs(tmp_path: Path) -> None:
    compilation, _ = compiled(tmp_path, "module", "EachTimeMore", ("n", 4))
    assert "another answer at each call" in compilation.report.quarantined


def test_sizes_at_which_an_output_is_missing_are_refused(tmp_path: Path) -> None:
    compilation, call = compiled(tmp_path, "module", "WithWeights", ("b", "s", 8))
    assert not compilation.report.quarantined
    assert [line.low for line in compilation.report.dims] == [1, 0, 8]
    with pytest.raises(RequestError, match="outputs"):
        call(torch.ones(0, 3, 8))
    with torch.no_grad():
        expected = module("WithWeights").eval()(torch.ones(2, 3, 8))
    for found, wanted in zip(call(torch.ones(2, 3, 8)), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_inputs_go_by_name(tmp_path: Path) -> None:
    compilation, call = compiled(tmp_path, "module", "WithAGap", ("n", 4), ("n", 4))
    assert not compilation.report.quarantined
    torch.testing.assert_close(call(torch.full((3, 4), 5.0), torch.ones(3, 4))[0], torch.full((3, 4), 4.0))


def test_what_stands_together_is_found() -> None:
    def refuses(sizes: dict[str, int]) -> bool:
        return sizes["a"] * sizes["b"] <= 1 or sizes["c"] < 3

    accepted = [{"a": 7, "b": 9, "c": 20}, {"a": 0, "b": 9, "c": 4}]
    tried = [
        ({"a": 1, "b": 1, "c": 8}, "one"),
        ({"a": 2, "b": 9, "c": 0}, "few"),
        ({"a": 9, "b": 9, "c": 2}, "few"),
    ]
    found = refusals(tried, accepted[:1], refuses)
    assert [each.condition for each in found] == [(size("a") >= 2) | (size("b") >= 2), size("c") >= 3]
    assert [each.least for each in found] == [None, ("c", 3)]


def test_an_index_into_nothing_is_refused_though_pytorch_reads_none(tmp_path: Path) -> None:
    inputs = (
        InputDeclaration("x", "float32", ("n", 3)),
        InputDeclaration("places", "int64", ("m",), (0, 1)),
        InputDeclaration("added", "float32", ("m", 3)),
    )
    source = ModelSource("added", "1", factory=f"{__name__}:AddedAt", inputs=inputs)
    store = open_store(tmp_path)
    compilation = compile_model(source, store)
    assert not compilation.report.quarantined
    model = load_model(source, compilation.artifact_key, store)
    for rows, count in ((0, 0), (1, 0), (1, 5), (4, 2)):
        given = torch.randn(rows, 3), torch.zeros(count, dtype=torch.int64), torch.randn(count, 3)
        torch.testing.assert_close(model.call(*given)[0], AddedAt()(*given))
    with pytest.raises(IndexRangeError, match="where 0 to -1"):
        model.call(torch.zeros(0, 3), torch.zeros(1, dtype=torch.int64), torch.zeros(1, 3))


class Factored(nn.Module):
    """From 21 rows on it makes something of its buffer that PyTorch refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", -torch.eye(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 20:
            x = x @ torch.linalg.cholesky(self.matrix)
        return x * 2


def factored() -> nn.Module:
    return Factored()


def test_what_is_refused_at_load_is_refused_where_pytorch_comes_to_it(tmp_path: Path) -> None:
    inputs = (InputDeclaration("x", "float32", ("n", 4)),)
    source = ModelSource("factored", "1", factory=f"{__name__}:factored", inputs=inputs, outputs=("y",))
    store = open_store(tmp_path)
    model = load_model(source, compile_model(source, store).artifact_key, store)
    x = torch.randn(3, 4)
    assert torch.equal(model.call(x)[0], x * 2)
    with pytest.raises(RequestError, match="cholesky"):
        model.call(torch.randn(30, 4))
