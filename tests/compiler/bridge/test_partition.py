"""Calls left to PyTorch: plain arguments there and back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from captured_programs import Program, assert_agrees, captured
from torch import Tensor, nn

from dlcb.compiler import CompileOptions, InputDeclaration, ModelSource, compile_model, load_model
from dlcb.compiler.bridge import partition
from dlcb.compiler.dtype import FLOAT32
from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.expr.node import as_expr, size
from dlcb.compiler.ir.graph import GraphBuilder
from dlcb.compiler.thunks import eager
from dlcb.kernel_cache import open_store


def test_arguments_become_plain_and_the_call_comes_back() -> None:
    x = GraphBuilder("calls").input("x", (size("n"), 3), FLOAT32)
    tensors, plain = partition.encode(
        [x, [size("n") * 3]], {"dtype": torch.float64, "device": torch.device("cpu")}
    )
    assert tensors == (x,)
    assert plain == ("$0", (size("n") * 3,), ("dtype=", "dtype:float64"), ("device=", "device"))
    given = torch.randn(2, 3)
    (result,) = partition.call("aten.new_zeros.default", plain, [given], {"n": 2})
    assert result.shape == (6,) and result.dtype is torch.float64


def test_a_call_with_several_results_and_equal_tensors() -> None:
    x = GraphBuilder("calls").input("x", (4,), FLOAT32)
    tensors, plain = partition.encode([x, x], {})
    assert tensors == (x,) and plain == ("$0", "$0")
    values, order = partition.call("aten.sort.default", ("$0", 0, True), [torch.tensor([1.0, 3.0, 2.0])], {})
    assert values.tolist() == [3.0, 2.0, 1.0] and order.tolist() == [1, 2, 0]


def test_an_operator_that_pytorch_lacks_is_named() -> None:
    with pytest.raises(UnsupportedOperator, match=r"aten\.no_such\.default"):
        partition.find("aten.no_such.default")


def test_a_write_into_a_fresh_tensor_is_no_write_in_the_graph() -> None:
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        rows = (x[:, 0] > 0).long()
        return torch.zeros(2, 3).index_add_(0, rows, x), torch.zeros(2, 3).index_add_(0, rows, 2 * x)

    program = captured(twice, ("n", 3))
    targets = [node.attributes["target"] for node in program.graph.nodes if node.op.name == "eager"]
    assert targets == ["aten.index_add.default"] * 2  # else both would write into the one tensor of zeros
    assert_agrees(program, Program(twice), {"x0": torch.randn(5, 3)})


def test_a_write_that_nothing_says_without_one_is_refused() -> None:
    with pytest.raises(UnsupportedOperator, match="writes into its operands"):
        partition.name_of(torch.ops.aten.add.out)


@torch.library.custom_op("tests_partition::thrice", mutates_args=())
def thrice(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * 3)


thrice.register_fake(torch.empty_like)


def tripled() -> nn.Module:
    return Program(lambda x: torch.ops.tests_partition.thrice(x * 2).relu())


def test_an_operator_of_an_installed_library_is_called_between_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (partition, eager):
        monkeypatch.setattr(module, "is_installed", __name__.__eq__)
    target = f"{__name__}:tests_partition.thrice.default"
    assert partition.name_of(torch.ops.tests_partition.thrice.default) == target
    declared = InputDeclaration("x", "float32", ("n", 3))
    source = ModelSource("thrice", "1", factory=f"{__name__}:tripled", inputs=(declared,))
    store = open_store(tmp_path)
    made = compile_model(source, store, CompileOptions(optimisation="-O0"))
    assert [line.operator for line in made.report.calls if line.tier == "eager"] == [target]
    assert made.report.kernels
    model = load_model(source, made.artifact_key, store)
    for rows in (0, 1, 5):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(model.call(x), ((x * 6).relu(),))


def test_what_is_installed_and_what_is_the_users_own() -> None:
    assert partition.is_installed("torch.nn.functional")
    assert not any(map(partition.is_installed, (__name__, "json", "no.such.module", "")))


def test_an_operator_of_the_users_own_leaves_the_model_to_pytorch() -> None:
    @torch.library.custom_op("tests_partition::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return 2 * x

    twice.register_fake(torch.empty_like)
    with pytest.raises(UnsupportedOperator, match=r"tests_partition\.twice\.default is no operator"):
        captured(lambda x: twice(x) + 1, ("n", 3))


def test_the_sizes_that_pytorch_gives_are_those_of_the_symbolic_forward() -> None:
    weight = torch.ones(1, 1, 2)

    def back(x: Tensor) -> Tensor:
        up = nn.functional.conv_transpose1d(nn.functional.max_pool1d(x, 2), weight, stride=2)
        return x + nn.functional.pad(up, (0, x.shape[2] - up.shape[2]))

    program = captured(back, ("n", 1, "m"))
    (call,) = [node for node in program.graph.nodes if node.op.name == "eager"]
    n, m = size("n"), size("m")
    assert call.attributes["shapes"] == ((n, as_expr(1), m // 2 * 2),)
    assert not [verdict for verdict in program.verdicts if verdict.multiple > 1]
    for length in (6, 7):
        assert_agrees(program, Program(back), {"x0": torch.randn(2, 1, length)})
