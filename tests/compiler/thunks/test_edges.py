"""Programs that are the same at the edge of a branch and not beyond, and what the load check must survive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from dlcb.compiler.driver import compile_model, load_model
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.kernel_cache import open_store

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "at least 300": lambda x: x / max(x.shape[0], 300),
    "at most 300": lambda x: x / min(x.shape[0], 300),
    "from far behind": lambda x: x[-100:] * 2,
    "all but far ahead": lambda x: x[:-100] * 2,
    "a narrower type": lambda x: x.float() @ torch.eye(4, dtype=torch.float32),
    "nothing is divided": lambda x: x * (1 / x.shape[0]),
}
HELD_BY_EAGER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a size of a result that nobody reads": lambda x: torch.unique(x, dim=0),
}


class Program(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = (FUNCTIONS | HELD_BY_EAGER)[name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def program(name: str) -> nn.Module:
    return Program(name)


@pytest.mark.parametrize("name", [*FUNCTIONS, *HELD_BY_EAGER])
def test_agrees_on_both_sides_of_the_edge(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLCB_CACHE", str(tmp_path / "cache"))  # where reproductions go
    source = ModelSource(
        "edge", "1", factory=f"{__name__}:program", arguments={"name": name}, outputs=("y",),
        inputs=(InputDeclaration("x", "float32", ("n", 4)),),
    )  # fmt: skip
    store = open_store(tmp_path)
    compilation = compile_model(source, store)
    assert bool(compilation.report.quarantined) == (name in HELD_BY_EAGER)
    assert compilation.signature.batch is None or name in FUNCTIONS
    model = load_model(source, compilation.artifact_key, store)
    for rows in (1, 7, 99, 100, 101, 120, 299, 300, 301, 600):
        x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))
        torch.testing.assert_close(model.call(x)[0], program(name)(x))
