"""Where a model is captured: on fake tensors of the device that it is compiled for, which need not be there.
So its code finds the device that it will run on (`x.is_cuda`, `torch.arange(n, device=x.device)`), and
PyTorch the rules that it has for that device (autocast)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import nn
from torch._dispatch.python import no_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.cuda.amp import common
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from dlcb.compiler.bridge.one_device import OneDevice, names_devices, plain_tensors
from dlcb.compiler.errors import CaptureError

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Home:
    """The device that a model is captured for. `alone`: all its tensors are made there, whichever device its
    code names."""

    device: torch.device = CPU
    alone: bool = False

    @staticmethod
    def of(target: str) -> Home:
        """By the kind of a target, "cpp" or "cuda"."""
        return Home(torch.device("cuda", 0) if target == "cuda" else CPU)

    def entered(self) -> AbstractContextManager[object]:
        """What a forward on fake tensors runs within."""
        return OneDevice(self.device) if self.alone else nullcontext()

    def labelled(self) -> AbstractContextManager[object]:
        """What a forward that needs values runs within: tensors of the CPU say that they are on the device,
        and are made and moved there in name only."""
        return self.entered() if self.device == CPU else _Labelled(self.device)


HERE = Home()
_LAST = Home(alone=True)
_T = TypeVar("_T")


class AnotherHome(Exception):
    """A forward fails there because of devices."""


def refuse_home(home: Home, error: CaptureError) -> None:
    """Raises AnotherHome where a forward failed because of devices, and there is another to try."""
    if home != _LAST and names_devices(error):
        raise AnotherHome from error


def at_home(target: str, run: Callable[[Home], _T]) -> _T:
    """`run` for the device of a target, where its forward names another device with all tensors there, and
    where that asks for what such a device has and this machine does not, on the CPU."""
    home = Home.of(target)
    for each in dict.fromkeys((home, replace(home, alone=True))):
        with suppress(AnotherHome):
            return run(each)
    return run(_LAST)


class StandIns:
    """Fake tensors of `device` in place of real ones, wherever these are; each has one, and those that share
    memory have some that share memory. Where `device` is the CPU, PyTorch's own fakes serve, and nothing is
    replaced."""

    def __init__(self, mode: FakeTensorMode, device: torch.device = CPU) -> None:
        self.mode, self.device = mode, device
        self.real: dict[int, torch.Tensor] = {}  # by the identity of what stands for it
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by that of what it stands for
        self._memory: dict[int, torch.UntypedStorage] = {}

    @property
    def is_needed(self) -> bool:
        return self.device != CPU

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """What stands for a tensor; itself where it is fake already, or has no plain memory."""
        if isinstance(tensor, FakeTensor) or not _is_plain(tensor):
            return tensor
        known = self._made.get(id(tensor))
        if known is None:
            known = self._made[id(tensor)] = (self._stand_in(tensor), tensor)
            self.real[id(known[0])] = tensor
        return known[0]

    def among(self, value: Any) -> Any:
        """An argument of a call with what stands for its tensors."""
        if isinstance(value, torch.Tensor):
            return self.of(value)
        if isinstance(value, (list, tuple)) and any(isinstance(each, torch.Tensor) for each in value):
            return type(value)([self.among(each) for each in value])
        return value

    def input(self, fake: torch.Tensor) -> torch.Tensor:
        """A fake tensor of the CPU's, whose sizes may be symbolic, as one of the device."""
        return self.labelled(fake, self.device) if self.is_needed else fake

    def on_cpu(self, fake: torch.Tensor) -> torch.Tensor:
        """A fake tensor as one of the CPU's, which shares no memory with it."""
        return self.labelled(fake, CPU)

    def labelled(self, fake: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A fake tensor like another on a device, in memory of its own."""
        with torch._C._DisableTorchDispatch(), no_python_dispatcher():
            shape, stride = fake.shape, fake.stride()
            bare = torch.empty_strided(shape, stride, dtype=fake.dtype, device="meta")
            return FakeTensor(self.mode, bare, device)

    @contextmanager
    def placed(self, module: nn.Module) -> Iterator[None]:
        """While it is entered, they stand in `module` and its parts."""
        if not self.is_needed:
            yield
            return
        changed: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for part in module.modules():
            if isinstance(part, torch.jit.ScriptModule):
                continue  # it keeps its tensors in C++, and its calls are met
            for names in (part._parameters, part._buffers):
                changed.append((names, dict(names)))
                for name, tensor in names.items():
                    if tensor is not None:
                        names[name] = self.of(tensor)  # type: ignore[assignment]
            if held := plain_tensors(part):
                changed.append((vars(part), {name: vars(part)[name] for name in held}))
                for name, value in held.items():
                    vars(part)[name] = pytree.tree_map_only(torch.Tensor, self.of, value)
        try:
            with supposed(self.device):
                yield
        finally:
            for names, before in changed:
                names.update(before)

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        with torch._C._DisableTorchDispatch(), no_python_dispatcher():
            memory = self._memory.get(storage._cdata)
            if memory is None:
                memory = torch.UntypedStorage(storage.nbytes(), device="meta")
                self._memory[storage._cdata] = memory
            bare = torch.empty(0, dtype=tensor.dtype, device="meta")
            bare.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
            made = FakeTensor(self.mode, bare, self.device)
        if isinstance(tensor, nn.Parameter):
            made._is_param = True  # type: ignore[attr-defined]
        return made


def _is_plain(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in (torch.Tensor, nn.Parameter, nn.Buffer)
    return plain and tensor.layout is torch.strided and not tensor.is_quantized


_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"  # c10::impl::device_guard_impl_registry
_CUDA, _META = 1, 14  # places in it


@cache
def _allow_switching() -> None:
    """Before some calls PyTorch switches to the device of its operand. Built with CUDA, and where there is no
    GPU, it has an empty way to do that for fake tensors; built without, it is given the one that it has for
    tensors without data. Where it has no such table, such calls fail."""
    if torch.cuda._is_compiled():
        return
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    with suppress(OSError, ValueError):
        table = (ctypes.c_void_p * (_META + 1)).in_dll(ctypes.CDLL(str(library)), _REGISTRY)
        if table[_CUDA] is None:
            table[_CUDA] = table[_META]


@contextmanager
def supposed(device: torch.device) -> Iterator[None]:
    """While it is entered, autocast for `device` is what it is where there is one."""
    if device.type != "cuda" or torch.cuda.is_available():
        yield
        return
    _allow_switching()
    before = common.amp_definitely_not_available, torch.cuda.is_bf16_supported
    common.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda including_emulation=True: True
    try:
        yield
    finally:
        common.amp_definitely_not_available, torch.cuda.is_bf16_supported = before


class _Labelled(TorchFunctionMode):
    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._answers = {
            torch.Tensor.device.__get__: device,  # type: ignore[attr-defined]
            torch.Tensor.is_cuda.__get__: device.type == "cuda",  # type: ignore[attr-defined]
            torch.Tensor.is_cpu.__get__: device.type == "cpu",  # type: ignore[attr-defined]
            torch.Tensor.get_device: device.index,
        }
        self._here, self._supposed = OneDevice(CPU), supposed(device)

    def __enter__(self) -> Self:
        self._supposed.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._supposed.__exit__(*raised)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._answers and args[0].device.type != "meta":
            return self._answers[func]
        return self._here.__torch_function__(func, types, args, kwargs)
