"""Whether the element type that an input is declared with is why PyTorch refuses a model wherever it is
tried: then it takes the same inputs as another type. Words of PyTorch's do not say so, running it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import torch
from torch import nn

from dlcb.compiler.bridge.agreement import without_fast_path
from dlcb.compiler.bridge.capture import bound, user_code
from dlcb.compiler.bridge.emit import to_torch
from dlcb.compiler.bridge.unchanged import unchanged
from dlcb.compiler.dtype import dtype
from dlcb.compiler.errors import CompilerError, DeclarationError
from dlcb.compiler.source import InputDeclaration

_TRIED = ("float32", "int64", "bool", "float16", "bfloat16", "float64", "int32")  # the likeliest first
_MOST = 4  # sizes at which they are tried

Inputs = Mapping[str, torch.Tensor]


def misdeclared(
    module: nn.Module, declared: Sequence[InputDeclaration], refused: Iterable[Inputs], words: str = ""
) -> DeclarationError | None:
    """What is wrong with the declared types, where the module, which refuses these inputs (in these words),
    takes one of them as another type; None where it does not, or where other values are all it wants."""
    given = list(islice(refused, _MOST))
    said = [_refusal(module, {name: torch.zeros_like(x) for name, x in each.items()}) for each in given]
    if not all(said):
        return None
    for names in _together(declared):
        own = next(each.dtype for each in declared if each.name in names)
        for other in _TRIED:
            if other == own or all(_refusal(module, _as_type(each, names, other)) for each in given):
                continue
            place = next(number for number, each in enumerate(declared) if each.name in names)
            inputs = " and ".join(f"'{name}'" for name in names)
            return DeclarationError(
                f"PyTorch refuses every shape that was tried with {inputs} of type {own}, as declared, "
                f"and takes {other}: {words or said[-1]}",
                key=f"inputs.{place}.datatype",
                stage="capture",
            )
    return None


def _together(declared: Sequence[InputDeclaration]) -> Iterator[list[str]]:
    """Inputs whose declarations may be wrong: each alone, then all of one type."""
    yield from ([each.name] for each in declared)
    for kind in dict.fromkeys(each.dtype for each in declared):
        if len(names := [each.name for each in declared if each.dtype == kind]) > 1:
            yield names


def _as_type(given: Inputs, names: Sequence[str], other: str) -> Inputs:
    """These inputs with some as another type. Integers that floats become are 0, a legal index anywhere."""
    kind = to_torch(dtype(other))

    def changed(x: torch.Tensor) -> torch.Tensor:
        indices = x.is_floating_point() and not kind.is_floating_point
        return torch.zeros_like(x, dtype=kind) if indices else x.to(kind)

    return {name: changed(x) if name in names else x for name, x in given.items()}


def _refusal(module: nn.Module, inputs: Inputs) -> str:
    """PyTorch's words; "" where it takes these inputs."""
    arguments, keywords = bound(module, inputs)
    try:
        with user_code("forward"), unchanged(module), torch.no_grad(), without_fast_path():
            module(*arguments, **keywords)
    except CompilerError as error:
        return error.message.rpartition(" failed: ")[2]
    return ""
