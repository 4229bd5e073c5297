"""Small models for measuring the server rather than the model: an identity and a three-layer perceptron."""

import torch


class Identity(torch.nn.Module):
    """Gives back its input [batch, width]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


def identity() -> torch.nn.Module:
    return Identity()


def perceptron(width: int = 64, hidden: int = 256, classes: int = 10, seed: int = 0) -> torch.nn.Module:
    """Random weights, the same for the same seed: [batch, width] to [batch, classes]."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            torch.nn.Linear(width, hidden),
            torch.nn.ReLU(),
            torch.nn.Linear(hidden, hidden),
            torch.nn.ReLU(),
            torch.nn.Linear(hidden, classes),
        )
