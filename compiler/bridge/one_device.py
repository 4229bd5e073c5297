"""A model is on one device: that on which it is captured, or runs. Its code or its file may name others, or
none: a program exported on a CPU makes its positions there, a factory may leave its module on a GPU, and a
forward that says nothing makes tensors where PyTorch's default is."""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._device import _device_constructors

from dlcb.compiler.bridge.call_by_call import uncompiled
from dlcb.compiler.errors import CompilerError

# what PyTorch says where tensors lie on several devices, or on one that is not there
_SAID = re.compile(
    r"(same|expected|different|between|on a cuda|accelerator) devices?\b|device (ordinal|type|string)"
    r"|not (compiled|linked) with|GPUs are available|NVIDIA driver|'\w+' backend|torch\.cuda\.",
    re.IGNORECASE,
)
_TORCH = f"{Path(torch.__file__).parent}/"
_RAISE = dis.opmap["RAISE_VARARGS"]
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")
_NOWHERE = torch.device("meta")  # tensors without values, wherever the others are
_DEVICE_FAILED = (torch.OutOfMemoryError, torch.AcceleratorError)

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


def settle(module: nn.Module, device: torch.device | str) -> nn.Module:
    """`module` itself with all its tensors on `device`, those in plain attributes too; of a program the calls
    that name a device name this one."""
    place = torch.device(device)
    module.to(place)
    for part in module.modules():
        if isinstance(part, GraphModule):
            _rename(part, place)
        for name, value in plain_tensors(part).items():
            if any(not _is_at(each.device, place) for each in _tensors_in(value)):
                vars(part)[name] = pytree.tree_map_only(torch.Tensor, lambda x: _moved(x, place), value)
    return module


def plain_tensors(part: nn.Module) -> dict[str, Any]:
    """The plain attributes of one module that are tensors, or containers with some."""
    return {
        name: value
        for name, value in vars(part).items()
        if isinstance(value, _HOLDERS) and name not in _REGISTERED and _tensors_in(value)
    }


_HOLDERS = (torch.Tensor, list, tuple, dict)
_REGISTERED = frozenset(("_parameters", "_buffers", "_modules"))  # which `to` moves


def _tensors_in(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if not value:
        return []
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _is_at(found: torch.device, place: torch.device) -> bool:
    return found == _NOWHERE or (found.type == place.type and place.index in (None, found.index))


def _moved(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    return tensor if tensor.device == _NOWHERE else tensor.to(place)


def _rename(program: GraphModule, place: torch.device) -> None:
    renamed = False
    for node in program.graph.nodes:
        if node.op == "call_function":
            arguments, keywords = (_named(part, place) for part in (node.args, node.kwargs))
            renamed |= (arguments, keywords) != (node.args, node.kwargs)
            node.args, node.kwargs = arguments, keywords
    if renamed:
        program.recompile()


def _named(part: Any, place: torch.device) -> Any:
    """The same with `place` for each device."""
    return pytree.tree_map_only(torch.device, lambda named: named if named == _NOWHERE else place, part)


class OneDevice(TorchFunctionMode):
    """Within it each tensor is made on, and moved to, one device, whichever is named."""

    def __init__(self, device: torch.device | str) -> None:
        super().__init__()
        self._place = torch.device(device)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = dict(kwargs or {})
        if func in _MOVES:
            return args[0].to(self._place)
        if func is torch.Tensor.to:
            args = tuple(self._place if _is_name(each) else each for each in args)
        named = keywords.get("device")
        if _is_name(named) or (named is None and func in _device_constructors()):
            keywords["device"] = self._place
        elif named is not None:
            keywords["device"] = self._here(named)
        if torch.device in map(type, args):
            args = tuple(map(self._here, args))
        made = func(*args, **keywords)
        return made.to(self._place) if func is torch.from_numpy else made

    def _here(self, argument: Any) -> Any:
        named = isinstance(argument, torch.device) and argument != _NOWHERE
        return self._place if named else argument


_MOVES = frozenset((torch.Tensor.cuda, torch.Tensor.cpu))


def _is_name(argument: object) -> bool:
    return isinstance(argument, str) and _DEVICE.fullmatch(argument) is not None


def names_devices(error: BaseException) -> bool:
    """Whether a forward may have failed because its tensors are on several devices, or on one that is not
    there."""
    if isinstance(error, _DEVICE_FAILED):
        return False
    said = error.message if isinstance(error, CompilerError) else str(error)
    while isinstance(error, CompilerError) and error.__cause__ is not None:
        error = error.__cause__
    return _SAID.search(said) is not None and not _is_users(error)


def _is_users(error: BaseException) -> bool:
    """Whether a statement of the user's raised this, and not PyTorch."""
    place = error.__traceback__
    if place is None:
        return False
    while place.tb_next is not None:
        place = place.tb_next
    code = place.tb_frame.f_code
    return code.co_code[place.tb_lasti] == _RAISE and not code.co_filename.startswith(_TORCH)


def called(module: nn.Module, device: torch.device | str, arguments: Callable[[], Arguments]) -> Any:
    """A forward of a module that was settled on `device`. One that fails because of devices is run again, on
    `arguments` made again, with all tensors on that one, and so are those that follow."""
    if module not in _scattered:
        positional, keywords = arguments()
        try:
            with uncompiled():
                return module(*positional, **keywords)
        except (RuntimeError, AssertionError, TypeError, ValueError) as error:
            if not names_devices(error):
                raise
    positional, keywords = arguments()
    with OneDevice(device), uncompiled():
        result = module(*positional, **keywords)
    _scattered.add(module)
    return result


_scattered: WeakSet[nn.Module] = WeakSet()  # modules whose forward makes tensors elsewhere
