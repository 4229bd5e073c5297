"""Runs a user's factory and traces its module at given sizes: a ModelSource comes in, static torch.export
programs go out. Whatever fails in the user's code becomes a CaptureError that names the user's line."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import io
import logging
import re
import traceback
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from dlcb.compiler.bridge.call_by_call import parts_in_python
from dlcb.compiler.bridge.chance import same_numbers
from dlcb.compiler.bridge.fake_calls import INTERPRETED, DataDecide
from dlcb.compiler.bridge.functional import functional
from dlcb.compiler.bridge.indexing import ExplicitSlices, Rebound
from dlcb.compiler.bridge.one_device import names_devices
from dlcb.compiler.bridge.places import short
from dlcb.compiler.bridge.record import Trace, Unrecordable, record
from dlcb.compiler.bridge.regions import inlined
from dlcb.compiler.bridge.stand_ins import HERE, Home
from dlcb.compiler.bridge.unchanged import unchanged
from dlcb.compiler.errors import CaptureError, CompilerError, DeclarationError
from dlcb.compiler.modules import OTHERS_CODE, load_from_text, loaded
from dlcb.compiler.source import ModelSource
from dlcb.compiler.torchscript import is_torchscript

_TORCH = f"{Path(torch.__file__).parent}/"
# torch.export knows which memory is shared at the sizes of a trace: of a single row, a transposed one too
_WRITES = "what is written in place may be seen in other results, at some sizes and not at others"
# PyTorch's errors where a trace would have to know what a tensor holds
ON_VALUES = frozenset(("GuardOnDataDependentSymNode", "DataDependentOutputException"))
_CONSTANT = re.compile(r"Constant (\w+) is mutated")  # PyTorch's words for what `functional` does not take
_LOUD = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")


class ChangesItself(CaptureError):
    """A program that writes to its own tensors or inputs, at whatever sizes."""


def load_module(source: ModelSource) -> nn.Module:
    """The factory's module, in eval mode and without gradients; what it draws it draws in every process. One
    factory of a process runs at a time, others wait.
    Raises CaptureError when there is no such factory or it fails."""
    if source.factory is None:
        raise CaptureError(f"model '{source.name}' has no factory", stage="capture")
    module_name, _, function_name = source.factory.partition(":")
    with contextlib.suppress(CaptureError):  # where there is no such module importing it says so
        load_from_text(source.factory)
    with OTHERS_CODE, user_code(f"factory '{source.factory}'"), same_numbers():
        defining = importlib.import_module(module_name)
        factory = getattr(defining, function_name, None)
        if factory is None:
            raise DeclarationError(_no_such_factory(defining, function_name), key="factory", stage="capture")
        arguments = dict(source.arguments)
        if "weights" in inspect.signature(factory).parameters:
            arguments.setdefault("weights", list(source.weights))
        module = factory(**arguments)
    loaded(source.factory)  # notes what its files are now, for `changed`
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        raise CaptureError(
            f"factory '{source.factory}' gave an object of type '{kind}', not a torch module", stage="capture"
        )
    module = parts_in_python(module)
    with contextlib.suppress(NotImplementedError):  # what was exported stays in the mode that it was in
        module.eval()
    return _without_gradients(module)


def _without_gradients(module: nn.Module) -> nn.Module:
    """`module` itself. What it has made of its parameters, as `torch.nn.utils.weight_norm` does, would
    remember how, and not be copied."""
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                setattr(part, name, value.detach())
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module


def _no_such_factory(module: ModuleType, name: str) -> str:
    known = [other for other, value in vars(module).items() if callable(value) and not other.startswith("_")]
    nearest = difflib.get_close_matches(name, known, 1)
    meant = f", did you mean '{nearest[0]}'?" if nearest else ""
    return f"module '{module.__name__}' has no function '{name}'{meant}"


def load_program(path: str) -> ExportedProgram:
    """The program of a .pt2 file. Raises CaptureError when it cannot be read."""
    if not zipfile.is_zipfile(path):  # torch.export.load would log what else it tried, at length
        raise CaptureError(f"program '{path}' is not a file that torch.export.save wrote", stage="capture")
    if is_torchscript(path):
        raise CaptureError(
            f"program '{path}' is a file of TorchScript, expected one that torch.export.save wrote; say "
            f"`factory: dlcb.compiler.torchscript:load` and `weights: [{path}]` in place of `program`",
            stage="capture",
        )
    try:
        with user_code(f"program '{path}'"):
            program = torch.export.load(path)
    except CaptureError as error:
        if torch.cuda.is_available() or not names_devices(error):
            raise
        raise CaptureError(
            f"{error.message}; it was exported on a device that is not here; one of a CPU's runs on any",
            stage="capture",
        ) from error
    return _functional(program)


def load_eager(source: ModelSource) -> nn.Module:
    """What PyTorch runs of a source: the factory's module, or the program of its file."""
    return load_program(source.program).module() if source.program else load_module(source)


def trace(module: nn.Module, inputs: Mapping[str, torch.Tensor], home: Home = HERE) -> Trace:
    """The static program that `module` is at `home` and these inputs, before decomposition: recorded in one
    forward, or torch.export's where that does not follow. Inputs go by name where `forward` has parameters
    of these names, else in the order given."""
    arguments, keywords = bound(module, inputs)
    names, _ = _passed(module, inputs)
    with user_code(f"forward at {_sizes(inputs)}"), torch.no_grad(), home.entered(), ExplicitSlices():
        try:
            with unchanged(module):
                recorded = record(module, arguments, keywords, names, home)
            changes = any(_changes_in_place(node) for node in recorded.nodes)
            return functional(recorded) if changes else recorded
        except (Unrecordable, AttributeError, NotImplementedError):
            pass  # PyTorch's own hooks, which the recorder uses, differ between its versions
    with home.labelled():
        program = _exported(module, inputs)
    return inlined(Trace.of(_functional(program), _WRITES if _writes(program) else ""), home.device)


def export(module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> ExportedProgram:
    """The same as torch.export's program, in functional form."""
    return _functional(_exported(module, inputs))


def _exported(module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> ExportedProgram:
    arguments, keywords = bound(module, inputs)
    quiet = contextlib.redirect_stderr(io.StringIO())  # where torch.export prints the graph of a failure
    tracing = user_code(f"forward at {_sizes(inputs)}")
    with tracing, unchanged(module), torch.no_grad(), ExplicitSlices(spelling=False), quiet:
        return torch.export.export(module, arguments, keywords, strict=False)


def _writes(program: ExportedProgram) -> bool:
    """Whether it changes tensors in place, or a part of it does that is a program of its own."""
    parts = (each for each in program.graph_module.modules() if isinstance(each, torch.fx.GraphModule))
    return any(_changes_in_place(node) for part in parts for node in part.graph.nodes)


def _functional(program: ExportedProgram) -> ExportedProgram:
    """`program` itself; where it changes tensors in place, the functional form of it, nothing else
    decomposed."""
    if _writes(program):
        try:
            with user_code("the functional form"):
                program = program.run_decompositions({})
        except CaptureError as error:
            if (found := _CONSTANT.search(error.message)) is None:
                raise
            name = "" if found[1].startswith("lifted_") else f" '{found[1]}'"
            raise ChangesItself(
                f"the program changes a tensor{name} that is no buffer", stage="capture"
            ) from error
    signature = program.graph_signature
    weights = getattr(signature, "parameters_to_mutate", {})  # which PyTorch 2.11 does not list
    changed = {**weights, **signature.buffers_to_mutate, **signature.user_inputs_to_mutate}
    if changed:
        raise ChangesItself(f"the program changes {', '.join(changed.values())}", stage="capture")
    return program


def _changes_in_place(node: torch.fx.Node) -> bool:
    """Whether a node writes to a tensor that somebody else may read: activations on fresh results are left
    to the lowering."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable:
        return False
    if node.target is torch.ops.aten.detach_.default:
        return False
    if node.target is torch.ops.aten.dropout_.default and node.args[2] is False:
        return False
    return not (node.args and _is_fresh(node.args[0]))


def _is_fresh(written: Any) -> bool:
    """Whether nobody but its one user can see this result: a call made it, in memory of its own or in place
    on a fresh result (`out += shortcut` before `relu_`)."""
    if not isinstance(written, torch.fx.Node) or written.op != "call_function" or len(written.users) != 1:
        return False
    schema = getattr(written.target, "_schema", None)
    if schema is None or written.meta.get("shares"):
        return False
    if schema.is_mutable:
        return bool(written.args) and _is_fresh(written.args[0])
    return all(result.alias_info is None for result in schema.returns)


def bound(module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> tuple[tuple, dict[str, torch.Tensor]]:
    names, by_place = _passed(module, inputs)
    return tuple(inputs[name] for name in names[:by_place]), {name: inputs[name] for name in names[by_place:]}


def _passed(module: nn.Module, inputs: Iterable[str]) -> tuple[list[str], int]:
    """The inputs in the order in which they reach `forward`, and how many of them do by place: those without
    a gap before them. DeclarationError where a name is that of a parameter at another place, and not all
    are names of parameters."""
    parameters, given = inspect.signature(module.forward).parameters, list(inputs)
    names = list(parameters)
    if not set(given) <= set(names):
        if _go_by_any_name(parameters.values(), len(given)):
            return given, 0
        if any(name in names and names.index(name) != place for place, name in enumerate(given)):
            raise DeclarationError(_unknown("input", given, names), key="inputs", stage="capture")
        return given, len(given)
    first = [
        name
        for name in takewhile(given.__contains__, names)
        if parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    return [*first, *(name for name in given if name not in first)], len(first)


def _go_by_any_name(parameters: Iterable[inspect.Parameter], count: int) -> bool:
    """Whether `forward` has fewer places than there are inputs, and takes any names (`**batch`)."""
    kinds = [parameter.kind for parameter in parameters]
    places = kinds.count(inspect.Parameter.POSITIONAL_ONLY) + kinds.count(
        inspect.Parameter.POSITIONAL_OR_KEYWORD
    )
    return (
        inspect.Parameter.VAR_KEYWORD in kinds
        and inspect.Parameter.VAR_POSITIONAL not in kinds
        and places < count
    )


def _unknown(what: str, declared: Sequence[str], known: Sequence[str]) -> str:
    """Of names of which some are known, those that are not."""
    said = []
    for name in declared:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1)
            said.append(f"'{name}'" + (f" (did you mean '{nearest[0]}'?)" if nearest else ""))
    where = "parameter of `forward`" if what == "input" else f"{what} of the model"
    return f"{what} {', '.join(said)} is no {where}: it has {', '.join(known)}"


def _sizes(inputs: Mapping[str, torch.Tensor]) -> str:
    return ", ".join(f"{name}{list(tensor.shape)}" for name, tensor in inputs.items())


# ---- the user's lines ------------------------------------------------------------------------------


@contextlib.contextmanager
def user_code(what: str) -> Iterator[None]:
    """Runs the user's code: torch's warnings are silenced, exceptions become a CaptureError."""
    try:
        with warnings.catch_warnings(), _quiet_logs():
            warnings.simplefilter("ignore")
            yield
    except CompilerError:
        raise
    except Exception as error:  # the user's code and PyTorch may raise anything
        frame = user_frame(traceback.extract_tb(error.__traceback__))
        place = f"{short(frame.filename)}:{frame.lineno}" if frame else ""
        said = f"{what} failed: {_first_lines(error)}" + (
            f", at `{frame.line}`" if frame and frame.line else ""
        )
        raise CaptureError(said, stage="capture", source_line=place) from error


@contextlib.contextmanager
def _quiet_logs() -> Iterator[None]:
    """PyTorch logs each shape that a program refuses, and what it looks for to explain a branch on values;
    here a refusal is an answer, which is told once."""
    loggers = [logging.getLogger(name) for name in _LOUD]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _first_lines(error: Exception) -> str:
    if isinstance(error, (DataDecide, Rebound)):
        return str(error)
    lines = str(error).strip().splitlines()
    interpreted = bool(lines) and INTERPRETED in lines[0]  # what it met stands below where it met it
    text = " ".join(line.strip() for line in (lines[-1:] if interpreted else lines[:3]))
    name = type(error).__name__
    if name in ON_VALUES:
        return f"what it does next depends on values of tensors ({name})"
    return f"{name}: {text[:400]}"


def user_frame(frames: Sequence[traceback.FrameSummary]) -> traceback.FrameSummary | None:
    """The innermost frame outside torch and this package."""
    here = str(Path(__file__).parent)
    for frame in reversed(frames):
        if (
            not frame.filename.startswith((_TORCH, here, "<"))
            and Path(frame.filename).name != "contextlib.py"
        ):
            return frame
    return None


def node_line(node: torch.fx.Node) -> str:
    """ "file:line" of the user's code that made a node, from the trace; empty where the program carries
    none."""
    if (recorded := node.meta.get("place")) is not None:
        return f"{short(recorded[0])}:{recorded[1]}"
    text = node.meta.get("stack_trace") or ""
    place = ""
    for line in text.splitlines():
        entry = line.strip()
        if entry.startswith('File "'):
            path, _, rest = entry[6:].partition('", line ')
            if not path.startswith(_TORCH):
                place = f"{short(path)}:{rest.partition(',')[0]}"
    return place


# ---- the parts of a program ------------------------------------------------------------------------


def result_names(program: Trace, declared: Sequence[str]) -> list[str]:
    """Names of the program's outputs in order, see `names_of`."""
    results = [x.meta.get("val") if isinstance(x, torch.fx.Node) else x for x in program.outputs]
    return names_of(results, program.output_spec, declared)


def names_of(results: Sequence[Any], spec: Any, declared: Sequence[str]) -> list[str]:
    """Names of flattened results that `spec` packs: declared ones, else keys of a mapping, else output_0, ...
    A result that is None is left out, as exporters do; CaptureError for any other that is no tensor.
    DeclarationError where fewer or more are declared, unless those are keys, and where some are keys and
    others are not: these would stand for tensors of other names."""
    keys = _keys(spec)
    named = len(keys) == len(results)
    found: list[str] = []
    for place, result in enumerate(results):
        if hasattr(result, "dtype"):
            found.append(keys[place] if named else f"output_{len(found)}")
        elif result is not None:
            which = f"'{keys[place]}'" if named else str(place)
            raise CaptureError(
                f"output {which} is of type {type(result).__name__}; a served model gives tensors",
                stage="capture",
            )
    by_key = named and set(declared) <= set(found)
    if named and not by_key and not set(declared).isdisjoint(found):
        raise DeclarationError(_unknown("output", declared, found), key="outputs", stage="capture")
    if declared and len(declared) != len(found) and not by_key:
        raise DeclarationError(
            f"{len(declared)} outputs declared, the program gives {len(found)} tensors",
            key="outputs",
            stage="capture",
        )
    return found if by_key or not declared else list(declared)


def _keys(spec: Any) -> list[str]:
    context = getattr(spec, "context", None)
    if isinstance(context, type) and hasattr(context, "_fields"):
        context = context._fields  # a named tuple
    if isinstance(context, (list, tuple)) and context and isinstance(context[0], (list, tuple)):
        context = context[0]  # registered dataclasses keep their keys beside their type
    flat = (
        all(child.is_leaf() for child in spec.children()) if context and hasattr(spec, "children") else False
    )
    return [str(key) for key in context] if flat and isinstance(context, (list, tuple)) else []
