"""Operators that have no row, or whose row refuses, become eager nodes: an ATen call by name with plain
arguments, between the regions that compile. Also the other direction: running such a call on tensors."""

from __future__ import annotations

import importlib
import importlib.util
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._library import custom_ops

from dlcb.compiler.bridge.number import Number
from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import evaluate
from dlcb.compiler.ir.graph import Value
from dlcb.compiler.modules import OTHERS_CODE

_DTYPE, _DEVICE, _INPUT, _NUMBER, _KEYWORD = "dtype:", "device", "$", "#", "="
_COMPLEX = "complex:"
_BROUGHT = ":"  # after the module that brings an operator
# whose functional form has another name than the others'
_FUNCTIONAL = {"normal_.default": "normal_functional.default", "bernoulli_.float": "bernoulli.p"}


def encode(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[tuple[Value, ...], tuple]:
    """The tensors of a call, and its arguments as plain values: the k-th tensor is "$k", the
    number that it holds "#k", a type "dtype:float32", a device "device", a complex number "complex:1j", lists
    are tuples, keywords trailing pairs ("name=", value)."""
    tensors: list[Value] = []

    def plain(value: Any) -> Any:
        if isinstance(value, (Value, Number)):
            tensor = value.value if isinstance(value, Number) else value
            if tensor not in tensors:
                tensors.append(tensor)
            return f"{_NUMBER if isinstance(value, Number) else _INPUT}{tensors.index(tensor)}"
        if isinstance(value, (list, tuple)):
            return tuple(plain(item) for item in value)
        if isinstance(value, torch.dtype):
            return f"{_DTYPE}{str(value).removeprefix('torch.')}"
        if isinstance(value, torch.device):
            return _DEVICE
        if isinstance(value, complex):
            return f"{_COMPLEX}{value}"
        if isinstance(value, Expr) or value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, torch.Generator):
            raise UnsupportedOperator("random numbers are drawn by a generator of the program's own")
        raise UnsupportedOperator(f"argument {value!r} has no plain form")

    memory = ("layout", "memory_format", "pin_memory", "non_blocking")
    pairs = tuple(
        (f"{name}{_KEYWORD}", plain(value)) for name, value in keywords.items() if name not in memory
    )
    return_arguments = (*(plain(argument) for argument in arguments), *pairs)
    return tuple(tensors), return_arguments


def call(
    target: str, arguments: Sequence[Any], tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]
) -> tuple[torch.Tensor, ...]:
    """Runs an eager node's call; `sizes` are the values of size variables. Gives its tensor results in
    order."""
    device = tensors[0].device if tensors else torch.device("cpu")

    def real(value: Any) -> Any:
        if isinstance(value, Expr):
            return evaluate(value, sizes)
        if isinstance(value, tuple):
            return [real(item) for item in value]
        if isinstance(value, str):
            if value.startswith(_INPUT):
                return tensors[int(value[1:])]
            if value.startswith(_NUMBER):
                return tensors[int(value[1:])].item()
            if value.startswith(_DTYPE):
                return getattr(torch, value.removeprefix(_DTYPE))
            if value.startswith(_COMPLEX):
                return complex(value.removeprefix(_COMPLEX))
            return device if value == _DEVICE else value
        return value

    positional = [real(value) for value in arguments if not _is_keyword(value)]
    keywords = {value[0][:-1]: real(value[1]) for value in arguments if _is_keyword(value)}
    results = find(target)(*positional, **keywords)
    if isinstance(results, torch.Tensor):
        return (results,)
    return tuple(result for result in results if isinstance(result, torch.Tensor))


def name_of(operator: torch._ops.OpOverload) -> str:
    """The name of an operator, or of the one that gives as a result what this writes into its first operand:
    in a graph values never change. Before that of an installed library's own stands the module that brings
    it, which need not be loaded where the graph runs. Raises UnsupportedOperator where there is none."""
    namespace, name, overload = str(operator).split(".")
    if namespace != "aten" and not operator._schema.is_mutable:
        return f"{_library_of(operator)}{_BROUGHT}{operator}"
    if not operator._schema.is_mutable:
        return str(operator)
    otherwise = f"{name.removesuffix('_')}.{overload}"
    functional = f"{namespace}.{_FUNCTIONAL.get(f'{name}.{overload}', otherwise)}"
    if not name.endswith("_") or find(functional)._schema.is_mutable:  # type: ignore[attr-defined]
        raise UnsupportedOperator(f"{operator} writes into its operands, and nothing else does the same")
    return functional


def find(target: str) -> Callable[..., Any]:
    """The operator that "namespace.name.overload" names; an installed module that stands before it brings it.
    Raises UnsupportedOperator where there is none."""
    module, _, called = target.rpartition(_BROUGHT)
    with OTHERS_CODE:
        if module and is_installed(module):
            importlib.import_module(module)
    namespace, name, overload = called.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except (AttributeError, RuntimeError) as error:
        raise UnsupportedOperator(f"PyTorch has no operator {target}") from error


def is_installed(module: str) -> bool:
    """Whether a module lies where packages are installed, and is not a file of the user's own."""
    try:
        with OTHERS_CODE:  # it imports the packages on the way
            spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    places = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    return spec is not None and spec.origin is not None and spec.origin.startswith(places)


def _library_of(operator: torch._ops.OpOverload) -> str:
    """The installed module whose import makes an operator known."""
    defined = custom_ops.OPDEFS.get(operator.name().partition(".")[0])
    module = operator.namespace if defined is None else defined._init_fn.__module__
    if not is_installed(module):
        raise UnsupportedOperator(f"{operator} is no operator of PyTorch's, nor of an installed library's")
    return module


def _is_keyword(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], str)
        and value[0].endswith(_KEYWORD)
    )
