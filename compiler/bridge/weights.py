"""The tensors a program brings along: parameters and buffers by their state-dict name, other constants as
"constant.k", and from which weights file each comes. Passes see names, shapes and types only; values go to
the artifact."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from dlcb.compiler.errors import ArtifactError


@dataclass(frozen=True)
class Parameters:
    """`names`: placeholder -> name; `tensors`: name -> value."""

    names: Mapping[str, str]
    tensors: Mapping[str, torch.Tensor]

    @staticmethod
    def of(program: ExportedProgram) -> Parameters:
        """The parameters, buffers and constants of an exported program."""
        names: dict[str, str] = {}
        tensors: dict[str, torch.Tensor] = {}
        for spec in program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT or spec.target is None:
                continue
            held = program.state_dict if spec.target in program.state_dict else program.constants
            value = held.get(spec.target)
            if not isinstance(value, torch.Tensor):
                continue
            lifted = spec.kind is InputKind.CONSTANT_TENSOR
            name = (
                f"constant.{sum(1 for known in tensors if known.startswith('constant.'))}"
                if lifted
                else spec.target
            )
            names[spec.arg.name] = name
            tensors[name] = value.detach()
        return Parameters(names, tensors)


@dataclass(frozen=True)
class Origin:
    """Where a parameter's value stands: the file's place among the source's weights, and the tensor's name
    there."""

    file: int
    name: str


def origins(tensors: Mapping[str, torch.Tensor], files: Sequence[str]) -> dict[str, Origin]:
    """For each tensor that is bit for bit in one of the weights files, where. A name that ends alike is
    preferred, then the first file. Raises ArtifactError when a file cannot be read."""
    stored: dict[tuple, list[Origin]] = {}
    for position, path in enumerate(files):
        for name, value in _read(path).items():
            stored.setdefault(_content(value), []).append(Origin(position, name))
    found = {}
    for name, value in tensors.items():
        candidates = stored.get(_content(value), ())
        if candidates:
            found[name] = min(
                candidates, key=lambda origin: (not name.endswith(origin.name), origin.file, origin.name)
            )
    return found


def _read(path: str) -> dict[str, torch.Tensor]:
    try:
        if Path(path).suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        held = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # the readers raise many types
        raise ArtifactError(f"weights file '{path}' cannot be read: {error}", stage="weights") from error
    return {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}


def _content(value: torch.Tensor) -> tuple:
    plain = value.detach().contiguous().cpu()
    digest = (
        hashlib.blake2b(plain.flatten().view(torch.uint8).numpy().data, digest_size=16).digest()
        if plain.numel()
        else b""
    )
    return str(plain.dtype), tuple(plain.shape), digest
