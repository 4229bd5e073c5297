"""A tensor without axes: what has no rule there is PyTorch's, and the model still compiles and answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dlcb.compiler.driver import compile_model, load_model
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.kernel_cache import open_store


@pytest.mark.filterwarnings("ignore:std.. degrees of freedom:UserWarning")
def test_a_reduction_over_the_last_axis_of_a_scalar(tmp_path: Path) -> None:
    source = ModelSource(
        "scalar",
        "1",
        factory="dlcb.compiler.quickstart:standardize",
        inputs=(InputDeclaration("x", "float32", ()),),
        outputs=("y",),
    )
    store = open_store(tmp_path)
    compilation = compile_model(source, store, CompileOptions(check_shapes=0))
    assert compilation.report.tier == "static"
    (found,) = load_model(source, compilation.artifact_key, store).call(torch.tensor(3.0))
    assert found.shape == () and found.isnan()
