"""What a compilation leaves for workers: signature, host program, report and where the parameters are, as
versioned JSON in the store beside the kernels it names. It is found by what was registered, before anything
is captured and without PyTorch. No pickle.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from dlcb.compiler import modules
from dlcb.compiler.errors import ArtifactError
from dlcb.compiler.host.program import Program
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.report import Report
from dlcb.compiler.signature import Signature
from dlcb.compiler.source import ModelSource
from dlcb.kernel_cache.key import Key
from dlcb.kernel_cache.store import Store

VERSION = 8  # of the JSON, and of the entry that finds it; an artifact of another version is compiled again


Shapes = tuple[tuple[int, ...], ...]  # of all inputs, in their order


@dataclass(frozen=True)
class Reference:
    """A parameter that is a tensor of a registered file: the file's sha256 and the tensor's name in it."""

    file: str
    tensor: str


@dataclass(frozen=True)
class Artifact:
    """A compiled model. `program` is None where every rank compiles for itself, and where the model is
    quarantined.

    `others` are programs for sizes that `program` does not serve, in the order in which they are tried.
    `unmasked` is an input and a program for calls in which each of its values is 1.
    `references` say which parameters lie in registered files; `constants` is the store's key of the others,
    as safetensors ("": there are none). `quarantined` says why outputs come from eager PyTorch, where they
    do. `confirmed`: shapes at which the programs are known to be the model, where that is not known of all
    (None: it is). `modules`: digests of the user's modules that it was made of, by their paths in the
    factory's folder, and of the registered files, by their keys in the configuration.
    """

    signature: Signature
    report: Report
    program: Program | None = None
    graph: str = ""
    references: Mapping[str, Reference] | None = None
    constants: str = ""
    quarantined: str = ""
    others: tuple[Program, ...] = ()
    unmasked: tuple[str, Program] | None = None
    confirmed: tuple[Shapes, ...] | None = None
    modules: Mapping[str, str] = field(default_factory=dict)

    @property
    def programs(self) -> tuple[Program, ...]:
        """Those that serve any values, in the order in which they are tried."""
        return () if self.program is None else (self.program, *self.others)

    @property
    def every_program(self) -> tuple[Program, ...]:
        """`programs`, and the one of `unmasked` at the end."""
        return self.programs if self.unmasked is None else (*self.programs, self.unmasked[1])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` gives an equal artifact back."""
        return {
            "version": VERSION,
            "signature": self.signature.to_json(),
            "report": self.report.to_json(),
            "program": None if self.program is None else self.program.to_json(),
            "graph": self.graph,
            "references": {name: [r.file, r.tensor] for name, r in (self.references or {}).items()},
            "constants": self.constants,
            "quarantined": self.quarantined,
            "others": [program.to_json() for program in self.others],
            "unmasked": None if self.unmasked is None else [self.unmasked[0], self.unmasked[1].to_json()],
            "confirmed": self.confirmed,
            "modules": dict(self.modules),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Artifact:
        """The inverse of `to_json`. ArtifactError for another version or form."""
        version = data.get("version") if isinstance(data, Mapping) else None
        if version != VERSION:
            raise ArtifactError(
                f"an artifact of version {VERSION} is needed, found {version!r}", stage="artifact"
            )
        try:
            return Artifact(
                signature=Signature.from_json(data["signature"]),
                report=Report.from_json(data["report"]),
                program=None if data["program"] is None else Program.from_json(data["program"]),
                graph=data["graph"],
                references={name: Reference(*pair) for name, pair in data["references"].items()},
                constants=data["constants"],
                quarantined=data["quarantined"],
                others=tuple(map(Program.from_json, data["others"])),
                unmasked=_unmasked(data["unmasked"]),
                confirmed=_confirmed(data["confirmed"]),
                modules=dict(data["modules"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(f"not an artifact: {error!r}", stage="artifact") from error

    @property
    def needs(self) -> tuple[str, ...]:
        """Keys of what must be in the store beside the artifact itself."""
        units = dict.fromkeys(key for program in self.every_program for key in program.units)
        return (*units, self.constants) if self.constants else tuple(units)


def _unmasked(data: Any) -> tuple[str, Program] | None:
    if data is None:
        return None
    name, program = data
    return name, Program.from_json(program)


def _confirmed(data: Any) -> tuple[Shapes, ...] | None:
    return None if data is None else tuple(tuple(map(tuple, shapes)) for shapes in data)


def put(artifact: Artifact, source: ModelSource, store: Store) -> str:
    """Put an artifact whose parameters are placed already; gives its key."""
    payload = json.dumps(artifact.to_json(), sort_keys=True).encode()
    return store.keep(payload, kind="artifact", label=source.name)


def enter(key: str, source: ModelSource, options: CompileOptions, store: Store) -> None:
    """Let `find` give this artifact for the source from now on, while the user's modules that are loaded stay
    as they are: the last thing a compilation does."""
    payload = json.dumps(
        {"artifact": key, "modules": modules.loaded(source.factory)}, sort_keys=True
    ).encode()
    store.put(index_key(source, options).digest, payload, kind="source", label=source.name)


def load(key: str, store: Store) -> Artifact:
    """The artifact under a key. ArtifactError when it is missing, damaged or of another version."""
    payload = store.get(key)
    if payload is None:
        raise ArtifactError(
            f"the store has no artifact under {key}: compile the model again", stage="artifact"
        )
    try:
        return Artifact.from_json(json.loads(payload))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ArtifactError(f"the artifact under {key} is not JSON: {error}", stage="artifact") from error


def find(
    source: ModelSource, options: CompileOptions, store: Store, code: Mapping[str, str] | None = None
) -> tuple[str, Artifact] | None:
    """Key and artifact of a source that was compiled before with equal options; None when it was not, when a
    module of the user's that it loaded has changed, or when anything it needs has left the store. Whether
    kernels and constants are whole shows when they are loaded. With `code`, digests of the user's modules and
    files, what was compiled of these is looked for, whatever they hold now."""
    entry = store.get(index_key(source, options, code).digest)
    if entry is None:
        return None
    try:
        found = json.loads(entry)
        key = found["artifact"]
        if modules.disagreement(found["modules"], code or {}):
            return None
        if not code and not modules.unchanged(source.factory, found["modules"]):
            return None
        artifact = load(key, store)
    except (ArtifactError, ValueError, KeyError, TypeError):
        return None
    if not all(map(store.has, artifact.needs)):
        return None
    return key, artifact


def stored_keys(source: ModelSource, options: CompileOptions, store: Store) -> tuple[str, ...]:
    """Everything that another store needs so that `find` gives this source's artifact there: index entry,
    artifact, kernels and constants. ArtifactError when it was not compiled with equal options."""
    found = find(source, options, store)
    if found is None:
        raise ArtifactError(f"'{source.name}' is not in the store: compile it first", stage="artifact")
    key, artifact = found
    return (index_key(source, options).digest, key, *artifact.needs)


def index_key(source: ModelSource, options: CompileOptions, code: Mapping[str, str] | None = None) -> Key:
    """What a compilation's result depends on and is known before anything is captured. Not the C++ compiler:
    it is in the key of the kernels it made, and a machine that starts from a bundle may have none."""
    target = options.target
    return Key(
        {
            **source.identity(code),
            "artifact version": str(VERSION),
            "compiler": compiler_digest(),
            "target": f"{target.kind} {target.architecture}",
            "processor": processor_features() if target.kind == "cpp" else "",
            "options": json.dumps(
                {
                    f.name: getattr(options, f.name)
                    for f in fields(options)
                    if f.name in ("optimisation", "static", "tf32")
                },
                sort_keys=True,
            ),
        }
    )


@cache
def compiler_digest() -> str:
    """A digest of this compiler's own sources: when they change, every model is compiled again."""
    state, folder = hashlib.sha256(), Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        if path.relative_to(folder).parts[0] != "bench":
            state.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return state.hexdigest()


@cache
def processor_features() -> str:
    """What C++ kernels may rely on here; they are compiled for the processor at hand, and a store may travel.
    It is asked of the system, since a machine that starts from a bundle may have no compiler to ask."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return hashlib.sha256(" ".join(sorted(features.split())).encode()).hexdigest()
