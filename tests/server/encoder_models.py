"""PyTorch's own transformer layers as models, for the test that serves them to many clients at once."""

from __future__ import annotations

import torch
from torch import nn

WIDTH = 32


class Encoder(nn.Module):
    """Two layers behind a mask that is True at padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layers(x, src_key_padding_mask=mask)


class Decoder(nn.Module):
    """One causal layer whose mask is made of places; positions come before rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[0]
        later = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
        return self.layer(x, src_mask=later)
