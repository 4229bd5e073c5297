"""A wrong element type in the declaration of an input is told as such, in PyTorch's words, where PyTorch
takes another; values that a model does not want are no such thing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from dlcb.compiler import CompileOptions, DeclarationError, InputDeclaration, ModelSource, compile_model
from dlcb.compiler.bridge.datatypes import misdeclared
from dlcb.compiler.runtime.types import TORCH
from dlcb.kernel_cache import open_store


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.layer(y)


class Positive(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not (x >= 0).all():
            raise ValueError("negative")
        return x


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return undefined(x)  # type: ignore[name-defined]  # noqa: F821


class Linear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class Embedding(nn.Embedding):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class Inverse(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(x)


@pytest.mark.parametrize(
    ("module", "declared", "key", "takes"),
    [
        (Linear(4, 3), ["int64"], "inputs.0.datatype", "float32"),
        (Linear(4, 3).half(), ["float32"], "inputs.0.datatype", "float16"),
        (Embedding(5, 3), ["float32"], "inputs.0.datatype", "int64"),
        (Sums(), ["float32", "int64"], "inputs.1.datatype", "float32"),
        (Sums(), ["bool", "bool"], "inputs.0.datatype", "float32"),
        (Embedding(5, 3), ["int64"], "", ""),  # whose ids are out of range
        (Positive(), ["float32"], "", ""),
        (Inverse(), ["float32"], "", ""),
        (Broken(), ["float32"], "", ""),
    ],
)
def test_the_type_is_at_fault_where_pytorch_takes_another(
    module: nn.Module, declared: list[str], key: str, takes: str
) -> None:
    names = "xy"[: len(declared)]
    inputs = [InputDeclaration(name, dtype, ("n", 4)) for name, dtype in zip(names, declared, strict=True)]
    given = {each.name: (-10 * torch.ones(4, 4)).to(TORCH[each.dtype]) for each in inputs}
    wrong = misdeclared(module, inputs, [given], "its words")
    if not key:
        assert wrong is None
        return
    assert wrong is not None and wrong.key == key
    assert f"of type {declared[0 if key[7] == '0' else 1]}, as declared, and takes {takes}: its words" in str(
        wrong
    )


def linear() -> nn.Module:  # traced as it is declared
    return Linear(4, 3)


def embedding() -> nn.Module:  # not traced at all
    return Embedding(5, 3)


@pytest.mark.parametrize("shape", [("n", 4), None], ids=["of two dims", "of any rank"])
@pytest.mark.parametrize(
    ("factory", "declared", "words"),
    [
        ("linear", "int64", "have the same dtype, but got Long and Float"),
        ("embedding", "float32", "Expected tensor for argument #1 'indices'"),
    ],
)
def test_a_compilation_ends_there(
    factory: str, declared: str, words: str, shape: tuple[str | int, ...] | None, tmp_path: Path
) -> None:
    source = ModelSource(
        *("m", "1", f"{__name__}:{factory}"),
        inputs=(InputDeclaration("x", declared, shape),),
        outputs=("y",),
    )
    with pytest.raises(DeclarationError) as caught:
        compile_model(source, open_store(tmp_path), CompileOptions(optimisation="-O0", check_shapes=2))
    assert caught.value.key == "inputs.0.datatype" and words in str(caught.value)
