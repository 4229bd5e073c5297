"""Where the parameters of an artifact lie: it names those that are tensors of registered files; the others go
to the store as one payload. Tensors come in after a compilation, and out, mapped, when a worker loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from dlcb.compiler.artifact import Artifact, Reference
from dlcb.compiler.errors import ArtifactError
from dlcb.compiler.host.program import Program
from dlcb.compiler.made_of import require_same_files
from dlcb.compiler.runtime.weights import WeightFile, mapped, match, pack, unpack
from dlcb.compiler.source import ModelSource
from dlcb.kernel_cache.store import Store


def place(
    artifact: Artifact, source: ModelSource, parameters: Mapping[str, torch.Tensor], store: Store
) -> Artifact:
    """The artifact with its `references` and `constants`: what no registered file holds is put in the store.

    A program keeps only the parameters that it reads.
    """
    names = dict.fromkeys(name for program in artifact.every_program for name in _parameter_names(program))
    wanted = {name: parameters[name] for name in names}
    files = {digest: WeightFile(path) for digest, path in _digests(source).items()}
    found = match(wanted, files)
    rest = {name: tensor for name, tensor in wanted.items() if name not in found}
    constants = ""
    if rest:
        constants = store.keep(pack(rest), kind="constants", label=source.name)
    references = {name: Reference(*where) for name, where in found.items()}
    return replace(artifact, references=references, constants=constants)


def load_parameters(artifact: Artifact, source: ModelSource, store: Store) -> dict[str, torch.Tensor]:
    """Every parameter by name, files mapped. ChangedCode when a file has changed, ArtifactError when the
    constants are gone."""
    parameters: dict[str, torch.Tensor] = {}
    references = artifact.references or {}
    if references:
        require_same_files(source, artifact.modules, {reference.file for reference in references.values()})
        paths = _digests(source)
        files: dict[str, WeightFile] = {}
        for name, reference in references.items():
            if reference.file not in paths:
                raise ArtifactError(
                    f"parameter '{name}' of '{source.name}' lies in a file with sha256 {reference.file}, "
                    f"which is none of: {', '.join(source.weights) or 'no weights'}",
                    stage="load",
                )
            if reference.file not in files:
                files[reference.file] = WeightFile(paths[reference.file])
            parameters[name] = files[reference.file][reference.tensor]
    if artifact.constants:
        path = store.path(artifact.constants)
        payload = store.get(artifact.constants) if path is None else None
        if path is not None:
            parameters |= mapped(path)
        elif payload is not None:
            parameters |= unpack(payload)
        else:
            raise ArtifactError(f"the constants of '{source.name}' are gone from the store", stage="load")
    return parameters


def _parameter_names(program: Program) -> list[str]:
    """Parameters that come from outside: those of the program and its prologue that the prologue does not
    make."""
    made = {output.name for output in program.prologue.outputs} if program.prologue else set()
    names = [buffer.name for buffer in program.parameters if buffer.name not in made]
    if program.prologue:
        names += [given.name for given in program.prologue.inputs]
    return list(dict.fromkeys(names))


def _digests(source: ModelSource) -> dict[str, str]:
    """The registered weight files by sha256."""
    weights = replace(source, program=None, beside=()).file_digests()
    return dict(zip(weights.values(), source.weights, strict=True))
