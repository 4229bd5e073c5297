"""Tensors by name in the files that users register, safetensors or torch files, and as one safetensors
payload in the store. Files are mapped, not read; torch files are opened with `weights_only`, so nothing in
them is run.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from dlcb.compiler.errors import ArtifactError
from dlcb.compiler.torchscript import is_torchscript

ALIGNMENT = 64  # bytes; kernels may assume it of every parameter
_LENGTH = struct.Struct("<Q")  # of the header, at the beginning of a safetensors file
_SPELLED = {  # there
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


class WeightFile:
    """The tensors of one file. ArtifactError when it cannot be read as what its suffix says."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            if self.path.suffix == ".safetensors":
                self._file = safe_open(str(self.path), framework="pt")
                self._tensors = None
                self.names = tuple(self._file.keys())
            else:
                self._tensors = dict(_named("", _load(self.path)))
                self.names = tuple(self._tensors)
        except (OSError, EOFError, SafetensorError, RuntimeError, ValueError, UnpicklingError) as error:
            raise ArtifactError(f"weights '{self.path}' cannot be read: {error}", stage="load") from error

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.names:
            raise ArtifactError(f"weights '{self.path}' hold no tensor '{name}'", stage="load")
        return self._file.get_tensor(name) if self._tensors is None else self._tensors[name]


def _load(path: Path) -> object:
    """What a torch file holds: mapped where it is a zip archive, read where it is older than those, or one of
    TorchScript."""
    if is_torchscript(path):
        return torch.jit.load(path, map_location="cpu").state_dict()
    return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))


def match(
    parameters: Mapping[str, torch.Tensor], files: Mapping[str, WeightFile]
) -> dict[str, tuple[str, str]]:
    """Which parameters are, byte for byte, tensors of the files: parameter name -> (key of the file, tensor
    name).

    Names need not agree, since a factory may rename what it loads.
    """
    candidates: dict[tuple, list[tuple[str, str, torch.Tensor]]] = {}
    for key, file in files.items():
        for name in file.names:
            tensor = file[name]
            candidates.setdefault((tensor.dtype, tensor.shape), []).append((key, name, tensor))
    found: dict[str, tuple[str, str]] = {}
    for parameter, value in parameters.items():
        for key, name, tensor in candidates.get((value.dtype, value.shape), ()):
            if torch.equal(value, tensor):
                found[parameter] = key, name
                break
    return found


def pack(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """One safetensors payload, in which tensors lie at multiples of ALIGNMENT, but for those of odd sizes at
    the end. (The library's own `save` copies everything three times, and aligns to 8.)"""
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    ordered = sorted(held.items(), key=lambda item: item[1].nbytes % ALIGNMENT > 0)
    header: dict[str, object] = {}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        spelled = _SPELLED[tensor.dtype]
        header[name] = {"dtype": spelled, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(_LENGTH.size + len(text)) % ALIGNMENT)
    bodies = (tensor.reshape(-1).view(torch.uint8).numpy().data for _, tensor in ordered if tensor.numel())
    return b"".join((_LENGTH.pack(len(text)), text, *bodies))


def mapped(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file that holds what `pack` gave, mapped. ArtifactError for anything else."""
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"constants in '{path}' cannot be read: {error}", stage="load") from error


def unpack(payload: bytes) -> dict[str, torch.Tensor]:
    """The inverse of `pack`. ArtifactError for anything else."""
    try:
        return safetensors.torch.load(payload)
    except SafetensorError as error:
        raise ArtifactError(f"constants in the store cannot be read: {error}", stage="load") from error


def aligned(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the device, contiguous, at an address that is a multiple of ALIGNMENT."""
    tensor = tensor.detach().to(device).contiguous()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def _named(prefix: str, loaded: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of nested dictionaries and lists under dotted names; what else a checkpoint holds is passed
    over."""
    if isinstance(loaded, torch.Tensor):
        yield prefix, loaded
    elif isinstance(loaded, Mapping):
        for key, value in loaded.items():
            yield from _named(f"{prefix}.{key}" if prefix else str(key), value)
    elif isinstance(loaded, list | tuple):
        for position, value in enumerate(loaded):
            yield from _named(f"{prefix}.{position}" if prefix else str(position), value)
