"""What the bridge's tests share: small modules from functions, and the comparison of a captured graph with
eager PyTorch through the NumPy oracle."""

from __future__ import annotations

import itertools
import linecache
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dlcb.compiler.bridge import partition
from dlcb.compiler.bridge.capture import bound
from dlcb.compiler.bridge.generalize import Captured, generalize
from dlcb.compiler.ir.graph import Node
from dlcb.compiler.ir.reference import evaluate
from dlcb.compiler.source import InputDeclaration, ModelSource


class Program(nn.Module):
    """A module that is one function of its inputs."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> object:
        return self.function(*inputs)


def in_forward(expression: str, *before: str, **values: object) -> nn.Module:
    """A module whose `forward` of x returns an expression that stands in its line; `before`: statements in
    front of it, `values`: attributes of the module."""
    lines = ["class Written(nn.Module):\n", "    def forward(self, x):\n"]
    lines += [f"        {line}\n" for line in (*before, f"return {expression}")]
    name = f"<written {next(_written)}>.py"
    linecache.cache[name] = (0, None, lines, name)
    space: dict[str, Any] = {"torch": torch, "nn": nn, "F": nn.functional, "math": math}
    exec(compile("".join(lines), name, "exec"), space)
    module = space["Written"]()
    for key, value in values.items():
        setattr(module, key, value)
    return module.eval()


_written = itertools.count()


def source(*inputs: InputDeclaration, **fields: object) -> ModelSource:
    return ModelSource("program", "1", factory="tests:none", inputs=inputs, **fields)


def captured(
    function: Callable[..., object] | nn.Module, *shapes: Sequence[str | int], **fields: object
) -> Captured:
    """A program over float inputs x0, x1, ... of these shapes, generalised."""
    inputs = [InputDeclaration(f"x{k}", "float32", tuple(shape)) for k, shape in enumerate(shapes)]
    module = function if isinstance(function, nn.Module) else Program(function)
    return generalize(source(*inputs, **fields), module.eval())


def graph_outputs(program: Captured, inputs: Mapping[str, Tensor]) -> list[np.ndarray]:
    """The captured graph's outputs by the oracle; eager nodes and cumsum are run by PyTorch and NumPy."""
    tensors = {value.name: x for value, x in zip(program.graph.inputs, inputs.values(), strict=True)}
    sizes = {
        dim.value: int(size)
        for value in program.graph.inputs
        for dim, size in zip(value.shape, tensors[value.name].shape, strict=True)
        if dim.op == "size"
    }

    def opaque(node: Node, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        if node.op.name == "cumsum":
            return [np.cumsum(arrays[0], axis=node.attributes["axis"])]
        operands = [
            torch.from_numpy(np.asarray(array)).to(getattr(torch, value.dtype.name))
            for array, value in zip(arrays, node.inputs, strict=True)
        ]
        results = partition.call(node.attributes["target"], node.attributes["arguments"], operands, sizes)
        return [
            result.float().numpy() if result.is_floating_point() else result.numpy() for result in results
        ]

    arrays = {name: as_array(tensor) for name, tensor in tensors.items()}
    return evaluate(
        program.graph, arrays, {name: as_array(t) for name, t in program.parameters.items()}, opaque
    )


def as_array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy() if tensor.is_floating_point() else tensor.detach().numpy()


def flat(outputs: object) -> list[Tensor]:
    """A module's tensors in order."""
    if isinstance(outputs, Tensor):
        return [outputs]
    values = outputs.values() if isinstance(outputs, Mapping) else outputs
    return [tensor for output in values for tensor in flat(output)]


def assert_agrees(
    program: Captured, module: nn.Module, inputs: Mapping[str, Tensor], tolerance: float = 2e-5
) -> None:
    """Every output of the graph has eager's shape and values."""
    with torch.no_grad():
        expected = flat(module(*inputs.values()))
    found = graph_outputs(program, inputs)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == tuple(other.shape)
        wanted = as_array(other)
        size = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0) if other.is_floating_point() else 1.0
        np.testing.assert_allclose(one, wanted, rtol=tolerance, atol=tolerance * size)


def from_one_trace(module: nn.Module, **inputs: Tensor) -> Captured:
    """What a file that was exported at one size is taken for."""
    arguments, keywords = bound(module, inputs)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of recurrences, whose weights PyTorch lays out anew
        program = torch.export.export(module, arguments, keywords)
    return generalize(ModelSource("lone", "1", program="lone.pt2"), program)
