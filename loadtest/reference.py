"""Expected values from eager PyTorch: each model of a config, built by its own factory and run in this
process.

Nothing of the compiler takes part, so an answer that agrees was right and not merely repeated. A config
error, or a factory that fails, raises; a model without a factory has no reference.
"""

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np

from dlcb.compiler import ModelSource
from dlcb.server import settings
from dlcb.server.errors import ConfigError

Reference = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def eager_references(config: Path | None, models: Collection[str]) -> dict[str, Reference]:
    """A reference for those of `models` that `config` names with a factory; none without a config.
    ConfigError where it does not register one of them."""
    if config is None:
        return {}
    read = settings.read(config)
    settings.import_beside(read.folder)
    names = {model.name for model in read.models}
    if missing := sorted(set(models) - names):
        known = ", ".join(sorted(names))
        raise ConfigError(f"{config}: registers no {', '.join(missing)}; registered are {known}")
    return {
        model.name: eager_reference(model.source(read.folder))
        for model in read.models
        if model.factory and model.name in models
    }


def registered(config: Path) -> set[str]:
    """The names of the models in a config."""
    return {model.name for model in settings.read(config).models}


def eager_reference(source: ModelSource) -> Reference:
    """Runs the factory now; the reference takes and gives named arrays, in fp32 as the model is."""
    torch = importlib.import_module("torch")  # takes seconds, and only this reference needs it
    module_name, _, function_name = str(source.factory).partition(":")
    factory = getattr(importlib.import_module(module_name), function_name)
    takes_weights = "weights" in inspect.signature(factory).parameters
    model = factory(**source.arguments, **({"weights": source.weights} if takes_weights else {})).eval()

    names = [declared.name for declared in source.inputs]
    by_name = not isinstance(model, torch.jit.ScriptModule) and (
        set(names) <= inspect.signature(model.forward).parameters.keys()
    )

    def reference(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = {name: torch.from_numpy(inputs[name]) for name in names}
        with torch.inference_mode():
            outputs = model(**tensors) if by_name else model(*tensors.values())
        if isinstance(outputs, Mapping):
            outputs = [outputs[name] for name in source.outputs if name in outputs] or list(outputs.values())
        ordered = outputs if isinstance(outputs, tuple | list) else (outputs,)
        return {name: tensor.numpy() for name, tensor in zip(source.outputs, ordered, strict=True)}

    return reference
