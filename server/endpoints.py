"""The protocol's small routes: health, metadata, configuration, statistics and the model repository. Each
endpoint turns words into a call of the registry and its answer into words; tensors are `tensors`' business.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib.metadata
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlcb.compiler import Dim, TensorSpec
from dlcb.compiler.signature import describe
from dlcb.server.codec import shape_of
from dlcb.server.datatypes import BY_DTYPE
from dlcb.server.errors import BadRequest, Forbidden, NotFound, TooLarge, Unsupported
from dlcb.server.memory import ADDRESSABLE, check_memory
from dlcb.server.model import ServedModel
from dlcb.server.probing import TOLERANCES
from dlcb.server.registry import LoadFailed, Registry
from dlcb.server.types import State

EXTENSIONS = (
    "binary_tensor_data",
    "model_repository",
    "model_configuration",
    "statistics",
    "schedule_policy",
)
REFUSED_PARAMETERS = "configuration and file overrides are not offered: models are loaded as registered"


@dataclass
class Endpoints:
    """Answers as plain JSON values; errors are ServerErrors."""

    registry: Registry
    admin: bool

    def root(self) -> dict[str, Any]:
        """Who answers here, and where to go on."""
        links = {
            "documentation": "/docs",
            "openapi": "/openapi.json",
            "server": "/v2",
            "models": "/v2/models",
            "ready": "/v2/health/ready",
            "metrics": "/metrics",
        }
        return {"name": "dlcb", "version": importlib.metadata.version("dlcb"), "links": links}

    def server(self) -> dict[str, Any]:
        return {"name": "dlcb", "version": importlib.metadata.version("dlcb"), "extensions": list(EXTENSIONS)}

    def models(self) -> dict[str, Any]:
        return {"models": sorted({entry["name"] for entry in self.registry.index()})}

    def metadata(self, name: str, version: str | None = None) -> dict[str, Any]:
        model = self.registry.get(name, version)
        return {
            "name": model.name,
            "versions": sorted(entry.version for entry in self.registry.served() if entry.name == name),
            "platform": "dlcb",
            "inputs": [_tensor(spec) for spec in model.signature.inputs],
            "outputs": [_output(spec, model) for spec in model.signature.outputs],
        }

    def model_ready(self, name: str, version: str | None = None) -> tuple[int, dict[str, Any]]:
        """503 with the state when the version is known and not ready; NotFound when it is unknown."""
        entry = (
            self.registry.repository.find(name, version)
            if version
            else self.registry.repository.versions(name)[0]
        )
        served = [
            model.version
            for model in self.registry.served()
            if model.name == name and version in (None, model.version)
        ]
        if any(self.registry.state(name, number)[0] is State.READY for number in served):
            return 200, {"name": name, "ready": True}
        return 503, {"name": name, "ready": False, "error": self.registry.why_not_ready(name, entry.version)}

    def config(self, name: str, version: str | None = None) -> dict[str, Any]:
        """The configuration extension, as far as it has meaning here. `max_batch_size` is 0 unless every
        tensor's first axis is the proven batch; the dims then leave that axis out."""
        model = self.registry.get(name, version)
        batch = model.signature.batch
        axes = [] if batch is None else [*batch.input_axes.values(), *batch.output_axes.values()]
        tensors = len(model.signature.inputs) + len(model.signature.outputs)
        stacked = model.batching.enabled and len(axes) == tensors and not any(axes)
        skipped = 1 if stacked else 0
        config: dict[str, Any] = {
            "name": model.name,
            "platform": "dlcb",
            "backend": "dlcb",
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": model.batching.max_rows if stacked else 0,
            "input": [_config_tensor(_tensor(spec), skipped) for spec in model.signature.inputs],
            "output": [_config_tensor(_output(spec, model), skipped) for spec in model.signature.outputs],
            "response_cache": {"enable": False},
            "parameters": {},
        }
        if stacked:
            delay = int(model.batching.max_wait_ms * 1e3)
            config["dynamic_batching"] = {"preferred_batch_size": [], "max_queue_delay_microseconds": delay}
        return config

    def statistics(self, name: str | None = None, version: str | None = None) -> dict[str, Any]:
        if name is None:
            models = self.registry.served()
        else:
            self.registry.get(name, version)
            models = [m for m in self.registry.served() if m.name == name and version in (None, m.version)]
        return {"model_stats": [model.statistics.to_json(model.name, model.version) for model in models]}

    async def index(self, body: Any) -> list[dict[str, str]]:
        ready = _object(body).get("ready", False)
        if type(ready) is not bool:
            raise BadRequest("'ready' must be a boolean")
        await self.registry.look_for_changes()
        return self.registry.index(ready)

    async def load(self, name: str, body: Any) -> None:
        """Load, or load anew, the version that the parameters name, or every registered version: one that
        fails keeps no other from being loaded."""
        self._allow()
        parameters = _parameters(body)
        for key in parameters:
            if key == "config" or key.startswith("file:"):
                raise BadRequest(f"parameter '{key[:60]}': {REFUSED_PARAMETERS}")
        version = _version(parameters, ("version",))
        repository = self.registry.repository
        found = repository.versions(name) if version is None else [repository.find(name, version)]
        failed: list[LoadFailed] = []
        for entry in found:
            try:
                await self.registry.load(entry)
            except LoadFailed as error:
                failed.append(error)
        if failed:
            raise failed[0]

    async def unload(self, name: str, body: Any) -> None:
        """Unload the version that the parameters name, or every version."""
        self._allow()
        await self.registry.unload(name, _version(_parameters(body), ("version", "unload_dependents")))

    async def coverage(self, name: str, version: str | None = None) -> dict[str, Any]:
        """What the compiler proved: symbols and ranges, equalities, graphs and their guards, the tier, why
        PyTorch runs the model where it does, and where the kernels came from; and what its worker has
        counted."""
        model = self.registry.get(name, version)
        await asyncio.gather(self.registry.count(), self.registry.look_for_changes())
        signature, report = model.signature, model.report
        places: dict[str, list[str]] = {}
        symbols: dict[str, Any] = {}
        for spec in signature.inputs:
            for axis, dim in enumerate(spec.dims or ()):
                if isinstance(dim, Dim):
                    places.setdefault(dim.symbol, []).append(f"{spec.name}[{axis}]")
                    symbols[dim.symbol] = {
                        "low": dim.low, "high": dim.high, "multiple": dim.multiple, "reason": dim.reason,
                    }  # fmt: skip
        return {
            "name": model.name,
            "version": model.version,
            "inputs": {
                spec.name: "any rank" if spec.dims is None else describe(spec.dims)
                for spec in signature.inputs
            },
            "values": {
                entry.name: {"drawn": entry.values, "enforced": False} for entry in model.source.inputs
            },
            "symbols": {symbol: {**facts, "axes": places[symbol]} for symbol, facts in symbols.items()},
            "equalities": [axes for axes in places.values() if len(axes) > 1],
            "guards": list(report.get("guards", ())),
            "graphs": list(report.get("graphs", ())),
            "elsewhere": list(report.get("elsewhere", ())),
            "batch": None if signature.batch is None else signature.batch.symbol,
            "batching": model.batching_lines(),
            "padding": _padding(model),
            "batch_invariance": _batch_invariance(model),
            "cost": _cost(model),
            "memory": {"limit": model.memory, "bytes": signature.memory or None},
            "tier": report.get("tier"),
            "quarantined": _quarantined(model),
            "code_changed": model.changed or None,
            "unproven": report.get("unproven") or None,
            "kernels": _kernels(model),
            "ranks": list(model.ranks) if report.get("tier") == "jit" else None,
            "cache": "hit" if report.get("from_cache") else "miss",
            "compile_seconds": model.compile_seconds,
            "load_seconds": model.load_seconds,
            "counters": dict(model.counters),
        }

    def explain(self, name: str, version: str | None = None) -> dict[str, Any]:
        """The compiler's report, whole."""
        model = self.registry.get(name, version)
        return {
            "name": model.name,
            "version": model.version,
            "artifact": model.artifact_key,
            **model.report,
            "batching": model.batching_lines(),
            "batch_invariance": _batch_invariance(model),
        }

    async def plan(self, name: str, body: Any) -> dict[str, Any]:
        """What a request of these shapes would do: output shapes, tier, bytes beside inputs and outputs, all
        its memory and the limit of that, whether the launch plan is cached, whether it would compile, and the
        milliseconds to expect: null before a few runs, and for inputs of more than twice the bytes that were
        run of late (`measured_bytes`: least and most). `refused`: why it would be a 413, or null.
        `{"shapes": {input: [sizes]}}` in; nothing runs."""
        model = self.registry.get(name)
        shapes = _object(_object(body).get("shapes"))
        for key, shape in shapes.items():
            shape_of(key, shape)
        specs = {spec.name: spec for spec in model.signature.inputs}
        bound = model.signature.check(shapes, {key: specs[key].dtype for key in shapes if key in specs})
        size = sum(math.prod(shape) * BY_DTYPE[specs[key].dtype].size for key, shape in shapes.items())
        memory = None if model.footprint is None else model.footprint(bound)
        if (most := max(size, memory or 0)) > ADDRESSABLE:
            raise BadRequest(f"a run at these shapes takes {most} bytes, and {ADDRESSABLE} can be addressed")
        refused = _refused(model, bound)
        planned = await self.registry.plan(model, shapes)
        seconds = model.cost.forecast(size)
        return {
            "symbols": bound,
            "outputs": planned["output_shapes"],
            "tier": planned["tier"],
            "bytes": planned["bytes"],
            "memory": memory,
            "memory_limit": model.memory,
            "refused": refused,
            "cached": planned["cached"],
            "would_compile": planned["would_compile"],
            "predicted_milliseconds": None if seconds is None else seconds * 1e3,
            "input_bytes": size,
            "measured_bytes": model.cost.seen(),
        }

    def refuse(self, what: str) -> None:
        """The extensions that this server leaves out."""
        raise Unsupported(f"{what} is not offered by this server")

    def unknown(self, path: str) -> None:
        raise NotFound(f"there is no path '{path[:200]}'")

    def _allow(self) -> None:
        if not self.admin:
            raise Forbidden("loading and unloading are off: the configuration names no admin key")


def _quarantined(model: ServedModel) -> str | None:
    """Why PyTorch runs the model, since it was compiled or since too many shapes disagreed."""
    refuted = model.counters.get("refuted", 0) if model.counters.get("quarantined") else 0
    return model.report.get("quarantined") or (
        f"{refuted} shapes disagreed with PyTorch" if refuted else None
    )


def _kernels(model: ServedModel) -> list[str]:
    """Names of the model's kernels; of a model of any rank those of all ranks that were met, each once."""
    of_ranks = [name for rank in model.ranks for name in rank["kernels"]]
    return list(dict.fromkeys([*(kernel["name"] for kernel in model.report.get("kernels", ())), *of_ranks]))


def _padding(model: ServedModel) -> dict[str, Any]:
    """Which sizes are padded so that requests of different lengths share a batch, and why no other is.
    `unused` says why a declared mask, or a padding that was proven, is not used."""
    padding, signature = model.padding, model.signature
    used = [] if padding is None else list(padding.symbols)
    rows = None if signature.batch is None else signature.batch.symbol
    off = model.unpadded or ("" if model.stacks else "requests are not put together")
    return {
        "symbols": used,
        "mask": (padding.mask or None) if padding is not None else None,
        "obstacles": {
            name: obstacle or off
            for name, obstacle in signature.padding.items()
            if name not in used and name != rows and (obstacle or off)
        },
        "unused": model.unpadded or None,
        "most": model.batching.max_padding,
    }


def _refused(model: ServedModel, sizes: Mapping[str, int]) -> str | None:
    try:
        check_memory(model.name, model.footprint, sizes, model.memory, model.signature.batch)
    except TooLarge as error:
        return str(error)
    return None


def _batch_invariance(model: ServedModel) -> dict[str, Any]:
    """Whether a request's bits are the same whoever else asks, and what to expect where they are not."""
    if not model.stacks or model.signature.batch is None:
        return {"promised": True, "why": "each request runs alone, at its own shape"}
    return {
        "promised": False,
        "why": "matrix products and convolutions sum in another order at other row counts, and vectorised "
        "functions round differently at the end of a row; `batch_invariant: true` runs each request alone",
        "tolerances": TOLERANCES,
    }


def _cost(model: ServedModel) -> dict[str, Any]:
    """What runs have taken of late, and from which size on a batch waits for nobody."""
    fixed, byte = model.cost.line()
    return {
        "fixed_milliseconds": fixed * 1e3,
        "milliseconds_per_megabyte": byte * 1e9,
        "preferred_bytes": model.cost.preferred(),
    }


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(
            "the body must be a JSON object, and so must 'parameters' and 'shapes' in it, "
            'for example {"shapes": {"input_ids": [1, 7]}}'
        )
    return value


def _parameters(body: Any) -> Mapping[str, Any]:
    parameters = _object(_object(body).get("parameters", {}))
    for key, value in parameters.items():
        if not isinstance(value, str | int | float | bool):
            raise BadRequest(f"parameter '{key[:60]}' must be a string, number or boolean")
    return parameters


def _version(parameters: Mapping[str, Any], known: Sequence[str]) -> str | None:
    """The version that is meant, None for all. BadRequest for a parameter that is not among the known: one
    that is misspelt would mean all versions."""
    for key in parameters:
        if key not in known:
            nearest = difflib.get_close_matches(key[:60], known, 1)
            meant = f", did you mean '{nearest[0]}'?" if nearest else ";"
            names = ", ".join(f"'{name}'" for name in known)
            raise BadRequest(f"unknown parameter '{key[:60]}'{meant} known are {names}")
    version = parameters.get("version")
    if version is not None and not isinstance(version, str):
        raise BadRequest(f"parameter 'version' is {str(version)[:60]}, expected text in quotes")
    return version


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    if spec.dims is None:
        return _any_rank(spec)
    shape = [-1 if isinstance(dim, Dim) else dim for dim in spec.dims]
    return {"name": spec.name, "datatype": BY_DTYPE[spec.dtype].name, "shape": shape}


def _output(spec: TensorSpec, model: ServedModel) -> dict[str, Any]:
    """An output's dims are expressions: what is not a number is variable."""
    texts = model.signature.output_dims.get(spec.name)
    if texts is None:
        return _any_rank(spec)
    shape = [int(text) if text is not None and text.isdigit() else -1 for text in texts]
    return {"name": spec.name, "datatype": BY_DTYPE[spec.dtype].name, "shape": shape}


def _any_rank(spec: TensorSpec) -> dict[str, Any]:
    """The protocol cannot say that a rank varies: clients that know only it see one variable dim."""
    return {
        "name": spec.name,
        "datatype": BY_DTYPE[spec.dtype].name,
        "shape": [-1],
        "parameters": {"rank": "any"},
    }


def _config_tensor(tensor: dict[str, Any], skipped: int) -> dict[str, Any]:
    return {
        "name": tensor["name"],
        "data_type": f"TYPE_{tensor['datatype']}",
        "dims": tensor["shape"][skipped:] or [1],
    }
