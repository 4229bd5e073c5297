"""Typed configuration: one YAML file holds the server's options and the registry of models. Everything is
checked before a process starts; what is wrong becomes a ConfigError of one line that names the file, the
line, the key and the rule.
"""

from __future__ import annotations

import difflib
import importlib.util
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    field_validator,
    model_validator,
)

from dlcb.compiler import InputDeclaration, ModelSource
from dlcb.compiler.signature import may_name_a_size
from dlcb.server.datatypes import DATATYPES, MAX_RANK
from dlcb.server.errors import ConfigError


def _size_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(
            f"'{_shortened(name)}' is no name of a dim: expected letters, digits and _, no digit first"
        )
    if not may_name_a_size(name):
        raise ValueError(f"'{name}' means something in an expression, so no size is called so")
    return name


def _dim(value: Any) -> str | int:
    if type(value) is int and value >= 0:
        return value
    named = isinstance(value, str) and not re.fullmatch(r"[-+]?\d*", value)
    if named:
        return _size_name(value)
    hint = "; a free dim has a name here, such as 'batch'" if str(value) == "-1" else ""
    raise ValueError(
        "expected a name for a free dim (letters, digits and _), or a number of at least 0, found "
        f"{_shortened(repr(value))}{hint}"
    )


Symbol = Annotated[str, AfterValidator(_size_name)]
FreeOrSize = Annotated[str | int, PlainValidator(_dim)]
Reference = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
NAME_IN_WORDS = "expected letters, digits, '.', '_' and '-', the first a letter or digit"
LONGEST_NAME = 100  # characters: name and version of a model are part of a file's name
LEAST_RATE = 1e-6  # requests a second
Size = Annotated[int, Field(ge=0, strict=True)]
PATHS = {"server": ("tls_certificate", "tls_key"), "cache": ("folder", "bundle")}  # beside the file
EXPECTED = {  # in the words of YAML
    "missing": "is missing",
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping",
    "model_type": "expected a mapping",
    "string_type": "expected text, in quotes",
    "int_type": "expected an integer",
    "int_parsing": "expected an integer",
    "float_parsing": "expected a number",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
}

PATTERNS = {  # what a text must look like, by its key
    "factory": "expected module:function",
    "name": NAME_IN_WORDS,
    "version": NAME_IN_WORDS,
}


class BrokenAt(ValueError):
    """A rule that keys of one section break together; `place` is the way from there to the one that is told
    of it."""

    def __init__(self, message: str, *place: str | int) -> None:
        super().__init__(message)
        self.place = place


class Section(BaseModel):
    """A part of the file: unknown keys are errors, values do not change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Limits(Section):
    """Bounds on what clients may ask. Under `server` they hold for every model that names none of its own;
    `inflight_bytes` counts over all models and stands there only."""

    body_bytes: int = Field(64 << 20, gt=0, description="largest request body, also after decompression")
    queue_requests: int = Field(
        1024, gt=0, description="requests that may wait for one model; one more gets 429"
    )
    inflight_bytes: int = Field(1 << 30, gt=0, description="bytes of accepted and unanswered requests")
    timeout_ms: float | None = Field(None, gt=0, description="deadline of requests that name none")
    requests_per_second: float | None = Field(
        None, ge=LEAST_RATE, description="of one model, whoever asks; more get 429"
    )
    memory_bytes: int | None = Field(
        None, gt=0, description="of a run: inputs, outputs and what is between; default: what the device has"
    )


class Batching(Section):
    """How requests are put together, where the compiler has proved that their rows are independent."""

    enabled: bool = True
    max_rows: int = Field(32, gt=0, description="most rows of one batch; a larger request runs alone")
    max_wait_ms: float = Field(
        0.0, ge=0, description="how long a batch waits for more rows; 0 takes what is there"
    )
    mask: str | None = Field(
        None, description="the input that is 0 at padding: requests of different lengths are then stacked"
    )
    max_padding: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="most of a batch that may be padding; default: as much as runs of their own would cost",
    )
    batch_invariant: bool = Field(
        False, description="equal bits whoever else asks: each request runs alone, at its own shape"
    )

    @property
    def stacks(self) -> bool:
        """Whether requests may share a batch."""
        return self.enabled and not self.batch_invariant


class Cache(Section):
    """The kernel cache's place and bounds."""

    folder: Path | None = Field(None, description="default: $DLCB_CACHE, or ~/.cache/dlcb")
    limit_bytes: int = Field(4 << 30, gt=0)
    remote: str | None = Field(None, description="an fsspec URL shared by replicas")
    bundle: Path | None = Field(None, description="a file that `dlcb compile` wrote, to start from")


def _resolve_keys(entries: tuple[str, ...]) -> tuple[str, ...]:
    resolved = []
    for entry in entries:
        name = entry.removeprefix("env:")
        value = os.environ.get(name) if entry.startswith("env:") else entry
        place = "a key" if name == entry else f"the environment's '{name}'"
        if value is None:
            raise ValueError(f"the environment has no variable '{name}'")
        if not value or not value.isascii() or not value.isprintable() or value != value.strip():
            raise ValueError(
                f"{place}: expected printable ASCII without space around it, as a header holds it"
            )
        resolved.append(value)
    return tuple(resolved)


Secrets = Annotated[tuple[str, ...], AfterValidator(_resolve_keys)]  # a key each, or `env:NAME`


class Group(Section):
    """Keys that share their models and their rate."""

    name: str = Field(min_length=1)
    keys: Secrets = Field(min_length=1)
    models: tuple[str, ...] | None = Field(None, description="which they may run; null: all")
    requests_per_second: float | None = Field(
        None, ge=LEAST_RATE, description="of all keys of the group together"
    )
    burst: int | None = Field(
        None, ge=1, description="requests at once after a quiet time; default: a second's"
    )


class Keys(Section):
    """API keys. Each entry is the key itself, or `env:NAME` to read it from the environment."""

    infer: Secrets = Field((), description="may run every model at any rate")
    groups: tuple[Group, ...] = ()
    admin: Secrets = Field((), description="load and unload are off while there is none")


class Server(Section):
    """The process: where it listens, how many workers it has, and how it stops."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535, description="0 takes a free port")
    workers: int = Field(1, ge=1, le=64, description="worker processes, each with every model")
    spares: int = Field(1, ge=0, le=8, description="workers kept ready to replace one that dies")
    threads: int | None = Field(None, ge=1, description="compute threads of a worker; default: all cores")
    device: Literal["cpu", "cuda"] | None = Field(None, description="default: cuda where there is a GPU")
    gpus: tuple[Size, ...] = Field(
        (), description="numbers of the GPUs that workers are spread over; default: the first alone"
    )
    grace_seconds: float = Field(5.0, ge=0, description="time between SIGTERM and closing the door")
    drain_seconds: float = Field(30.0, ge=0, description="time accepted requests then have to finish")
    compile: bool = Field(
        True, description="false: what the kernel cache lacks is an error, nothing is compiled"
    )
    exit_on_error: bool = Field(
        True, description="false: a model that does not load at the start is left out, the others serve"
    )
    backend: str = Field("dlcb.compiler", description="module with the names of `dlcb.compiler`")
    access_log_every: int = Field(0, ge=0, description="every n-th request, at any log level; 0 logs none")
    tls_certificate: Path | None = Field(None, description="with tls_key: serve https")
    tls_key: Path | None = None
    limits: Limits = Limits()
    keys: Keys = Keys()

    @model_validator(mode="after")
    def _consistent(self) -> Server:
        if (self.tls_certificate is None) != (self.tls_key is None):
            given = "tls_key" if self.tls_certificate is None else "tls_certificate"
            raise BrokenAt("tls_certificate and tls_key belong together", given)
        for key in ("tls_certificate", "tls_key"):
            path = getattr(self, key)
            if path is not None and not path.is_file():
                raise BrokenAt(f"there is no file {path}", key)
        return self


def _plain_values(arguments: dict[str, Any]) -> dict[str, Any]:
    """What is handed to a factory in another process, and is a part of its artifact's key: JSON values."""
    values: list[Any] = [arguments]
    for value in values:
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            values.extend(value.values())
        elif isinstance(value, list):
            values.extend(value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} has no form in JSON, which carries arguments")
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise ValueError(f"an integer of {value.bit_length()} bits is more than the 64 that are carried")
        elif not isinstance(value, str | float | int | None):
            raise ValueError(f"{_one_line(repr(value))} is {type(value).__name__}, which JSON does not carry")
    return arguments


class Input(Section):
    """One input tensor of a model."""

    name: str = Field(min_length=1)
    datatype: str
    shape: Annotated[tuple[FreeOrSize, ...], Field(max_length=MAX_RANK)] | None = Field(
        description="a name is a free dim, null any rank"
    )
    values: tuple[float, float] | None = Field(
        None, description="half-open range that samples are drawn from; requests are not held to it"
    )

    @field_validator("datatype")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in DATATYPES:
            raise ValueError(f"'{value}' is not one of {', '.join(DATATYPES)}")
        return value

    @field_validator("values")
    @classmethod
    def _ascending(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not value[0] < value[1]:
            raise ValueError(f"holds nothing: {value[0]:g} is not below {value[1]:g}")
        return value


class Model(Section):
    """One registered model version."""

    name: str = Field(pattern=NAME, max_length=LONGEST_NAME)
    version: str = Field("1", pattern=NAME, max_length=LONGEST_NAME)
    factory: Reference | None = Field(None, description="module:function that returns an nn.Module")
    arguments: Annotated[dict[str, Any], AfterValidator(_plain_values)] = {}
    program: Path | Annotated[tuple[Path, ...], Field(min_length=1)] | None = Field(
        None, description="a .pt2 file, or several of one model, instead of a factory"
    )
    weights: tuple[str, ...] = ()
    inputs: tuple[Input, ...] = Field(min_length=1)
    outputs: tuple[str, ...] = Field(min_length=1)
    dims: dict[Symbol, tuple[Size, Size | None]] = {}
    jit: Literal["eager", "wait"] = "eager"
    load: bool = Field(True, description="load when the server starts")
    bench: tuple[dict[Symbol, Size] | tuple[Size, ...], ...] = Field(
        (), description="what `dlcb bench` measures: sizes of the dims, or a shape for inputs of any rank"
    )
    batching: Batching = Batching()
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _consistent(self) -> Model:
        if (self.factory is None) == (self.program is None):
            place = () if self.program is None else ("program",)
            raise BrokenAt("exactly one of 'factory' and 'program' must be given", *place)
        inputs = [entry.name for entry in self.inputs]
        for names, what in ((inputs, "input"), (list(self.outputs), "output")):
            for index, name in enumerate(names):
                if name in names[:index]:
                    raise BrokenAt(f"{what} '{name}' is declared twice", f"{what}s", index)
        if "inflight_bytes" in self.limits.model_fields_set:
            raise BrokenAt(
                "counts over all models: it stands under server.limits", "limits", "inflight_bytes"
            )
        if self.batching.mask is not None and self.batching.mask not in inputs:
            raise BrokenAt(
                f"'{self.batching.mask}' is no input; inputs are {_words_of(inputs)}", "batching", "mask"
            )
        used = {dim for entry in self.inputs for dim in entry.shape or () if isinstance(dim, str)}
        for symbol, (low, high) in self.dims.items():
            if symbol not in used:
                raise BrokenAt(f"'{symbol}' stands in no input's shape", "dims", symbol)
            if high is not None and high < low:
                raise BrokenAt(f"'{symbol}' has the empty range {low} to {high}", "dims", symbol)
        for index, sizes in enumerate(self.bench):
            if isinstance(sizes, dict) and sizes.keys() != used:
                raise BrokenAt(
                    f"expected sizes of {_words_of(used)}, found {_words_of(sizes)}", "bench", index
                )
            if isinstance(sizes, tuple) and all(entry.shape is not None for entry in self.inputs):
                raise BrokenAt("a shape is for inputs of any rank; give sizes by name", "bench", index)
        return self

    def source(self, folder: Path) -> ModelSource:
        """What the compiler is given; files are looked up beside the configuration file. ConfigError when
        missing."""
        files = self.program if isinstance(self.program, tuple) else (self.program,)
        programs = [str(resolve(str(file), folder)) for file in files if file is not None]
        return ModelSource(
            name=self.name,
            version=self.version,
            factory=self.factory,
            arguments=self.arguments,
            program=programs[0] if programs else None,
            beside=tuple(programs[1:]),
            weights=tuple(str(resolve(entry, folder)) for entry in self.weights),
            inputs=tuple(
                InputDeclaration(entry.name, DATATYPES[entry.datatype].dtype, entry.shape, entry.values)
                for entry in self.inputs
            ),
            outputs=self.outputs,
            dims=self.dims,
            jit=self.jit,
        )


class Settings(Section):
    """The whole file."""

    server: Server = Server()
    cache: Cache = Cache()
    models: tuple[Model, ...] = Field(min_length=1)
    folder: Path = Field(Path(), exclude=True, description="where the file lies; set by `read`")
    file: Path = Field(Path(), exclude=True, description="as it was called; set by `read`")

    def at_key(self, model: Model, key: str, rule: str) -> ConfigError:
        """What is said of a model's key, with dots on the way to it, of which it turns out later that it is
        wrong."""
        way = (int(part) if part.isdigit() else part for part in key.split("."))
        place = ("models", self.models.index(model), *way)
        try:
            tree = yaml.compose(self.file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except (OSError, ValueError, yaml.YAMLError):  # it has changed since
            tree = None
        return ConfigError(f"{self.file}:{_line(tree, place)}: {'.'.join(map(str, place))}: {rule}")


def read(
    path: Path,
    overrides: Mapping[str, Any] = MappingProxyType({}),
    cache_overrides: Mapping[str, Any] = MappingProxyType({}),
) -> Settings:
    """The settings of a file, with overrides of its `server` and `cache` sections (they come from the command
    line). ConfigError with one line, `file:line: key: rule`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read: {reason}; --config names another file") from error
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:  # a date that is none, an integer of thousands of digits
        raise ConfigError(f"{path}:1: not YAML: {_one_line(str(error))}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}:1: lists and mappings in it are nested too deep") from error
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path}:1: expected a mapping with 'models'")
    if (twice := _key_given_twice(tree)) is not None:
        line = twice.start_mark.line + 1
        raise ConfigError(f"{path}:{line}: key '{twice.value}' is given twice in one mapping")
    try:
        data = _beside(data, path.resolve().parent)
        for section, given in (("server", overrides), ("cache", cache_overrides)):
            options = data.get(section) or {}
            if given and isinstance(options, Mapping):
                data = {**data, section: {**options, **given}}
        settings = Settings(**{**data, "folder": path.resolve().parent, "file": path})
    except ValidationError as error:
        errors = error.errors()
        first = next((entry for entry in errors if entry["type"] == "extra_forbidden"), errors[0])
        broken = first.get("ctx", {}).get("error")
        place = (*first["loc"], *(broken.place if isinstance(broken, BrokenAt) else ()))
        key = ".".join(str(part) for part in place if not _is_branch(part)) or "file"
        words = _unknown_key(place) if first["type"] == "extra_forbidden" else _words(first)
        raise ConfigError(f"{path}:{_line(tree, place)}: {key}: {words}") from error
    except TypeError as error:  # a key that is not a string
        raise ConfigError(f"{path}:1: {error}") from error
    for place, rule in _broken_between(settings):
        key = ".".join(str(part) for part in place[:2])
        raise ConfigError(f"{path}:{_line(tree, place)}: {key}: {rule}")
    return settings


def _broken_between(settings: Settings) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Rules that sections of the file break together, or a section and the files it names, with the place of
    each."""
    seen: set[tuple[str, str]] = set()
    for index, model in enumerate(settings.models):
        if (model.name, model.version) in seen:
            yield (
                ("models", index, "name"),
                f"'{model.name}' version '{model.version}' is registered twice",
            )
        seen.add((model.name, model.version))
        try:
            model.source(settings.folder)
        except ConfigError as error:
            yield ("models", index, "weights"), str(error)
    registered = {name for name, _version in seen}
    owners = {key: "'infer'" for key in settings.server.keys.infer}
    for index, group in enumerate(settings.server.keys.groups):
        for name in group.models or ():
            if name not in registered:
                yield (
                    ("server", "keys", "groups", index, "models"),
                    f"group '{group.name}' names model '{name}'; registered are {_words_of(registered)}",
                )
        for key in group.keys:
            owner = owners.setdefault(key, f"group {index}")
            if owner != f"group {index}":
                yield (
                    ("server", "keys", "groups", index, "keys"),
                    f"a key of group '{group.name}' is one of {owner} as well, which would decide for it",
                )


def _key_given_twice(tree: yaml.Node | None) -> yaml.Node | None:
    """The second of two equal keys of a mapping, of which YAML would silently keep the last."""
    found, nodes = set[int](), [tree]
    while nodes:
        node = nodes.pop()
        if node is None or id(node) in found:  # an alias may lead back
            continue
        found.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            nodes.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            keys: set[tuple[str, str]] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in keys:
                    return key
                if isinstance(key, yaml.ScalarNode):
                    keys.add((key.tag, key.value))
                nodes += [key, value]
    return None


def _beside(data: Mapping[Any, Any], folder: Path) -> dict[Any, Any]:
    """What the file holds, with its paths relative to where it lies."""
    found = dict(data)
    for section, keys in PATHS.items():
        if isinstance(options := data.get(section), Mapping):
            paths = {key: options[key] for key in keys if isinstance(options.get(key), str)}
            found[section] = {
                **options,
                **{key: str(folder / os.path.expanduser(text)) for key, text in paths.items()},
            }
    return found


def import_beside(folder: Path) -> None:
    """Let factories be found in modules that lie beside the configuration file, after all that is installed.
    Whoever may write there may change the file, which names the code to run."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def device_of(settings: Settings) -> str:
    """The configured device, else cuda where the driver shows one. The front asks the file system, since it
    loads neither torch nor CUDA."""
    if settings.server.device is not None:
        return settings.server.device
    return "cuda" if Path("/dev/nvidiactl").exists() else "cpu"


def resolve(entry: str, folder: Path) -> Path:
    """A file's absolute path. `package:name/path` lies inside an installed package, which is found and not
    imported; anything else is relative to `folder`. ConfigError when there is no such file."""
    match = re.fullmatch(r"package:([A-Za-z_][\w.]*)/(.+)", entry)
    if match is None:
        found = folder / os.path.expanduser(entry)
    else:
        try:
            spec = importlib.util.find_spec(match[1])
        except ImportError:  # of the package around it
            spec = None
        roots = list(spec.submodule_search_locations or ()) if spec else []
        if not roots:
            raise ConfigError(
                f"'{entry}': there is no package '{match[1]}'; pip install it, without its dependencies"
            )
        found = Path(roots[0]) / match[2]
    try:
        is_file = found.is_file()
    except OSError as error:  # a name that is too long, a folder that may not be searched
        raise ConfigError(f"'{_shortened(entry)}': cannot be looked up: {error.strerror}") from error
    if not is_file:
        raise ConfigError(f"'{entry}': there is no file {found}")
    return found.resolve()


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}..."


def _line(tree: yaml.Node | None, place: tuple[str | int, ...]) -> int:
    """The line of the deepest node on the way to `place`."""
    node, line = tree, 1
    for part in place:
        if isinstance(node, yaml.MappingNode):
            pair = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line


def _is_branch(part: str | int) -> bool:
    """Whether this names one of several types that a value may have, and no place in the file."""
    return isinstance(part, str) and ("[" in part or part.startswith("constrained-"))


def _unknown_key(place: tuple[str | int, ...]) -> str:
    """What to say of a key that its section does not have: the nearest that it has, or all of them."""
    section: type[BaseModel] = Settings
    for part in place[:-1]:
        if isinstance(part, str):
            section = _section_in(section.model_fields[part].annotation)
    known = [name for name, about in section.model_fields.items() if not about.exclude]
    nearest = difflib.get_close_matches(str(place[-1]), known, 1)
    return "unknown key; " + (f"did you mean '{nearest[0]}'?" if nearest else f"known are {_words_of(known)}")


def _section_in(annotation: Any) -> type[BaseModel]:
    """The section that a field holds, be it in a tuple or beside None."""
    parts = [annotation]
    for part in parts:
        parts.extend(get_args(part))
    return next(part for part in parts if isinstance(part, type) and issubclass(part, BaseModel))


def _words_of(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)) or "nothing"


def _words(error: Mapping[str, Any]) -> str:
    message = EXPECTED.get(error["type"], error["msg"].removeprefix("Value error, "))
    if error["type"] == "string_pattern_mismatch":
        message = PATTERNS[error["loc"][-1]]
    found = error.get("input")
    if error["type"] in ("missing", "value_error", "extra_forbidden") or isinstance(found, dict | list):
        return _one_line(message)
    return _one_line(f"{message}, found {found!r}")


def _one_line(text: str) -> str:
    return " ".join(text.split())
