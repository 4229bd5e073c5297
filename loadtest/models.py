"""Small models for measuring the server rather than the model: an identity, a mean and a perceptron."""

from collections.abc import Sequence
from itertools import pairwise

import torch


class Identity(torch.nn.Module):
    """Gives back its input [batch, width]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


class Mean(torch.nn.Module):
    """[batch, width] to the mean of each row, [batch, 1]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1, keepdim=True)


def identity() -> torch.nn.Module:
    return Identity()


def mean() -> torch.nn.Module:
    return Mean()


def perceptron(sizes: Sequence[int] = (64, 256, 256, 10), seed: int = 0) -> torch.nn.Module:
    """ReLU between linear layers of these sizes; random weights, the same for the same seed."""
    layers: list[torch.nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for inner, outer in pairwise(sizes):
            layers += [torch.nn.Linear(inner, outer), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])
