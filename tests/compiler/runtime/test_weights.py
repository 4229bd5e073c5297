"""Constants in the store: tensors of every type come back as they were, mapped and aligned. Of complex ones a
program holds the parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from dlcb.compiler.errors import ArtifactError
from dlcb.compiler.runtime.types import NAMES
from dlcb.compiler.runtime.weights import ALIGNMENT, aligned, mapped, pack, unpack

TENSORS = {
    **{
        f"of {dtype}": torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
        for dtype in NAMES
        if not dtype.is_complex
    },
    "large": torch.randn(3, 64),
    "transposed": torch.randn(5, 16).t(),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 4),
}


def assert_same(found: dict[str, torch.Tensor]) -> None:
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype is tensor.dtype
        assert torch.equal(found[name], tensor)


def test_what_was_packed_is_unpacked_mapped_and_read_by_others(tmp_path: Path) -> None:
    payload = pack(TENSORS)
    (tmp_path / "payload").write_bytes(payload)
    assert_same(unpack(payload))
    assert_same(mapped(tmp_path / "payload"))
    assert_same(load(payload))


def test_a_tensor_of_whole_lines_is_used_where_it_is_mapped(tmp_path: Path) -> None:
    (tmp_path / "payload").write_bytes(pack(TENSORS))
    large = mapped(tmp_path / "payload")["large"]
    assert aligned(large, torch.device("cpu")).data_ptr() == large.data_ptr()
    assert large.data_ptr() % ALIGNMENT == 0


def test_what_is_no_payload_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "payload").write_bytes(b"something else")
    with pytest.raises(ArtifactError, match="cannot be read"):
        mapped(tmp_path / "payload")
    with pytest.raises(ArtifactError, match="cannot be read"):
        unpack(b"something else")
