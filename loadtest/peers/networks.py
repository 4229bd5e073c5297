"""The models of the race as NumPy functions of one array, for servers that run without PyTorch.

`networks(path)` gives them by name; `path` holds the perceptron's weights as an .npz file, so that every
contestant computes the same values.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

Network = Callable[[np.ndarray], np.ndarray]


def networks(weights: Path) -> dict[str, Network]:
    """Each takes [batch, width] and gives its output, row by row."""
    layers = np.load(weights)
    first, first_bias, second, second_bias = (np.ascontiguousarray(layers[name]) for name in layers.files)

    def perceptron(x: np.ndarray) -> np.ndarray:
        return np.maximum(x @ first + first_bias, 0) @ second + second_bias

    def mean(x: np.ndarray) -> np.ndarray:
        return x.mean(axis=1, keepdims=True)

    return {"identity": lambda x: x, "perceptron": perceptron, "mean": mean}
