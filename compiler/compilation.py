"""Compiling a registered model, or finding what an earlier compilation left of it. Finding needs no PyTorch,
which takes seconds to load: the compiler itself is loaded when there is something to compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dlcb.compiler import artifact as artifacts
from dlcb.compiler.errors import ArtifactError
from dlcb.compiler.garbage import load
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.report import Report
from dlcb.compiler.signature import Signature
from dlcb.compiler.source import ModelSource
from dlcb.kernel_cache import Store, model_owner

Progress = Callable[[str, float], None]  # stage name, share of the whole that is done


@dataclass(frozen=True)
class Compilation:
    """What a compilation leaves: the artifact's key in the store, the model's signature and the report.
    `modules`: digests of the user's modules that it was made of, by their paths in the factory's folder, and
    of the registered files, by their keys in the configuration."""

    artifact_key: str
    signature: Signature
    report: Report
    modules: Mapping[str, str] = field(default_factory=dict)


def find_model(
    source: ModelSource, store: Store, options: CompileOptions | None = None
) -> Compilation | None:
    """What `compile_model` finds of `source` in `store`; None where it would compile. CaptureError where a
    file of the source cannot be read."""
    found = artifacts.find(source, options or CompileOptions(), store)
    if found is None:
        return None
    key, artifact = found
    return Compilation(key, artifact.signature, artifact.report.as_cached(), artifact.modules)


def compile_model(
    source: ModelSource,
    store: Store,
    options: CompileOptions | None = None,
    progress: Progress | None = None,
) -> Compilation:
    """Compile `source`, or find it in `store` by its identity
    (then nothing is captured and no weight is read). Threads that compile wait for each other: a process
    compiles one model at a time.

    Raises CaptureError, ShapeError, ToolchainError, and ArtifactError where `options` refuse to compile.
    An operator without a rule is no error, PyTorch runs it."""
    options = options or CompileOptions()
    found = find_model(source, store, options)
    if found is not None:
        return found
    if options.only_stored:
        target = f"{options.target.kind} {options.target.architecture}"
        raise ArtifactError(
            f"the kernel cache and its bundle hold no '{source.name}' as it is now for {target}, "
            "and compiling is refused"
        )
    driver = load("dlcb.compiler.driver")  # see above
    key, artifact = driver.compile_source(source, store, options, progress)
    return Compilation(key, artifact.signature, artifact.report, artifact.modules)


def pin_model(
    source: ModelSource, artifact_key: str, store: Store, options: CompileOptions | None = None
) -> None:
    """Keep what finding and loading a compiled model takes from eviction, under the model's name and version,
    until `store.unpin(model_owner(name, version))`. ArtifactError when it has left the store already."""
    index = artifacts.index_key(source, options or CompileOptions()).digest
    owner = model_owner(source.name, source.version)
    for key in (index, artifact_key, *artifacts.load(artifact_key, store).needs):
        store.pin(key, owner)
    for key in (index, artifact_key):  # a store's memory may hold what other processes look for on disk
        if store.path(key) is None:
            raise ArtifactError(f"'{source.name}' left the kernel cache while it was compiled")
