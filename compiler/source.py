"""What a user registers: a model's program, weights and declared inputs, as plain data that travels as JSON
between the server's processes. Its identity is a content key, so that a warm load finds the artifact without
capturing anything.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from dlcb.compiler.errors import ArtifactError
from dlcb.compiler.modules import factory_file, factory_paths, file_digest
from dlcb.kernel_cache.key import Key


@dataclass(frozen=True)
class InputDeclaration:
    """One input. `dtype` is numpy's spelling, or "bfloat16". A dim of `shape` is a name (free) or a size
    (pinned); `shape` None means any rank. `values` is the half-open range of legal sample values, for tracing
    and checks."""

    name: str
    dtype: str
    shape: tuple[str | int, ...] | None
    values: tuple[float, float] | None = None


@dataclass(frozen=True)
class ModelSource:
    """A registered model: exactly one of `factory` ("module:function") and `program` (path of a .pt2 file,
    with further files of the same model, exported at other sizes, `beside` it).

    `arguments` are plain JSON values for the factory; `weights` are absolute paths, given to it as keyword
    `weights` if it takes one. `dims` are declared inclusive ranges of named dims. `jit` says what an any-rank
    model does at a new rank: serve it eagerly meanwhile ("eager") or hold the request until it is compiled
    ("wait").
    """

    name: str
    version: str
    factory: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    program: str | None = None
    beside: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    inputs: tuple[InputDeclaration, ...] = ()
    outputs: tuple[str, ...] = ()
    dims: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    jit: str = "eager"

    @property
    def files(self) -> dict[str, str]:
        """Paths of what is read beside code, by their keys in the configuration."""
        program = {"program": self.program} if self.program else {}
        beside = {f"program[{number}]": path for number, path in enumerate(self.beside, 1)}
        return program | beside | {f"weights[{number}]": path for number, path in enumerate(self.weights)}

    def file_digests(self, made_of: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
        """Their digests: those of `made_of`, else as they are now. CaptureError when one cannot be read."""
        return {key: made_of.get(key) or file_digest(path) for key, path in self.files.items()}

    def identity(self, made_of: Mapping[str, str] | None = None) -> Key:
        """The key of everything that can change what is compiled. Paths, name and version are not in it; the
        text of the factory's module, file digests, the configuration and the library versions are. With
        `made_of`, digests of the user's modules and files, these are meant and not what is there now."""
        known = made_of or {}
        files = self.file_digests(known)
        configuration = self.to_json()
        for field_name in ("name", "version", "program", "beside", "weights"):
            del configuration[field_name]
        return Key(
            {
                "configuration": json.dumps(configuration, sort_keys=True),
                "factory": self._digest_of_factory(known) if self.factory else "",
                "program": ",".join(digest for key, digest in files.items() if key.startswith("program")),
                "weights": ",".join(digest for key, digest in files.items() if key.startswith("weights")),
                **{
                    f"version of {package}": _version(package)
                    for package in ("torch", "transformers", "dlcb")
                },
            }
        )

    def _digest_of_factory(self, code: Mapping[str, str]) -> str:
        factory = self.factory or ""
        known = (code[path] for path in factory_paths(factory) if path in code)
        return next(known, None) or file_digest(factory_file(factory))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` gives an equal source back."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ModelSource:
        """The inverse of `to_json`. ArtifactError when a field is missing or unknown."""
        try:
            inputs = tuple(
                InputDeclaration(
                    name=entry["name"],
                    dtype=entry["dtype"],
                    shape=None if entry["shape"] is None else tuple(entry["shape"]),
                    values=None if entry.get("values") is None else tuple(entry["values"]),
                )
                for entry in data["inputs"]
            )
            return ModelSource(
                **{
                    **data,
                    "weights": tuple(data["weights"]),
                    "inputs": inputs,
                    "beside": tuple(data["beside"]),
                    "outputs": tuple(data["outputs"]),
                    "dims": {name: tuple(bounds) for name, bounds in data["dims"].items()},
                }
            )
        except (KeyError, TypeError) as error:
            raise ArtifactError(f"not a model source: {error!r}", stage="source") from error


@cache
def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
