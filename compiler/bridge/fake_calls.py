"""ATen calls of a fake forward, met before PyTorch takes them apart. A call whose operands have been seen
before, as in every further layer of a model, gives a result of the type it gave then, at a fraction of the
time."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dlcb.compiler.bridge.autocast import RECURRENCES, Casts
from dlcb.compiler.bridge.stand_ins import StandIns
from dlcb.compiler.bridge.symbolic_calls import are_alike, new_tensor, result_like, type_like, view_like
from dlcb.compiler.bridge.taken_apart import apart
from dlcb.compiler.bridge.ways import unheard

INTERPRETED = "failed in the TorchScript interpreter"


class Unrecordable(Exception):
    """Something that a plain list of calls cannot hold, or that needs torch.export to follow."""


class DataDecide(Exception):
    """A call whose results have sizes that values decide, and that PyTorch's own code goes by."""


class FakeCalls(SchemaCheckMode):
    """Runs each call under the mode of `stand_ins`, within the Python dispatcher. Sizes are numbers, or
    `symbolic`.

    (PyTorch admits three kinds of modes at this place; the one that checks schemas has a slot of its own in
    which nothing else looks for it.)"""

    def __init__(self, stand_ins: StandIns, symbolic: bool) -> None:
        TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)
        self._mode, self._symbolic, self.stand_ins = stand_ins.mode, symbolic, stand_ins
        self.casts = Casts(stand_ins.device.type)
        self.raised: Exception | None = None  # the last, which TorchScript's interpreter does not tell
        self._known: dict[Hashable, torch.Tensor | tuple] = {}
        self._in_rows: dict[Hashable, torch.Tensor] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether PyTorch is to keep its compiler, which is off here, out of each call: that takes time."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with unheard():
            try:
                return self._met(func, args, kwargs or {})
            except Exception as error:
                self.raised = error
                raise

    def _met(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if self.stand_ins.is_needed and func not in _CARRY_VALUES:
            args = self.stand_ins.among(args)
            kwargs = {name: self.stand_ins.among(value) for name, value in kwargs.items()}
        if self.casts.are_made():
            if (others := self.casts.of(func, args, kwargs, self._size)) is not None:
                with self:
                    return others()
            with self.casts.off():
                return self._plainly(func, args, kwargs)
        return self._plainly(func, args, kwargs)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Within, what a call raised is raised, where TorchScript's interpreter says only that one did; and
        DataDecide for operators that are given functions, which PyTorch hands only to modes it knows."""
        try:
            yield
        except AssertionError as error:
            if not (name := _given_functions(error)):
                raise
            values = f"what it does next depends on values of tensors (torch.{name})"
            said = values if name in _DECIDE else f"it gives functions to PyTorch's operator '{name}'"
            raise DataDecide(said).with_traceback(error.__traceback__) from error
        except RuntimeError as error:
            if self.raised is None or INTERPRETED not in str(error):
                raise
            raise self.raised from error

    def _plainly(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if (others := apart(func, args, kwargs)) is not None:
            with self:
                return others()
        return self.call(func, args, kwargs)

    def _size(self, number: Any) -> Any:
        """A number of a call, at the sample's sizes."""
        sizes: Any = self._mode.shape_env  # those of `guards`
        return sizes.value(number) if self._symbolic else number

    def call(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of one call; one seen before gives what that gave (symbolic), or a tensor like it."""
        if func is torch.ops.aten._pack_padded_sequence.default:
            raise DataDecide(
                "sequences are packed by lengths that are values, which decide how much there is"
            )
        if self._symbolic and func in _CHANGE_A_SHAPE:
            raise Unrecordable(f"{func} changes a shape in place")  # that of all who share the result
        if self._symbolic and _draws_in_place(func):  # PyTorch may look for the device's own generator
            return args[0]
        like_the_first = func in _IN_PLACE or (self._symbolic and func in _LIKE_THE_FIRST)
        like_the_first |= func in _JOINED_IN_PLACE and not kwargs and are_alike(*args)
        if like_the_first and _is_dense_float(args[0]):
            return args[0]
        if func in GIVE_BACK and args[2:] == (False,):
            return args[0]
        if not (self._symbolic or kwargs) and (view := view_like(func, args, self._mode)) is not None:
            return view
        key = _key(func, args, kwargs, self._symbolic)
        if key is not None and (known := self._known.get(key)) is not None:
            if isinstance(known, torch.Tensor):
                return known
            return self._new(known)
        if key is not None and func in _LIKE_THE_FIRST and args[0].is_contiguous() and _is_taken(func, args):
            self._known[key] = like = _type_of(args[0])  # PyTorch takes the batch norm apart for this
            return self._new(like)
        result = None
        if self._symbolic:
            result = result_like(func, args, kwargs, self._like_known, self._size)
        elif key is not None and (found := type_like(func, args, kwargs)) is not None:
            self._known[key] = like = (*_type_of(found)[:3], args[0].device)
            return self._new(like)
        if result is None:
            result = self._run(func, args, kwargs)
        if key is not None and self._symbolic:  # of memory that nobody reads, views may be of any
            self._known[key] = result
        elif key is not None and not share_memory(result, args):
            self._known[key] = _type_of(result)
        return result

    def _run(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """What PyTorch gives. Where a device has several ways to one result, and asks which of them the sizes
        allow, that of the CPU is taken: no branch is the program's."""
        chosen = self.stand_ins.is_needed and func in _SEVERAL_WAYS
        if chosen:
            args, kwargs = pytree.tree_map_only(torch.Tensor, self.stand_ins.on_cpu, (args, kwargs))
        with self._below():
            result = func(*args, **kwargs)
        return pytree.tree_map_only(torch.Tensor, self.stand_ins.input, result) if chosen else result

    def _like_known(
        self, shape: Sequence[int | torch.SymInt], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """One in row-major order; of symbolic sizes the one that there is, as its strides take long."""
        key = _describe_symbolic(shape), dtype, device
        known = self._in_rows.get(key)
        if known is None:
            known = self._in_rows[key] = new_tensor(
                self._mode, lambda: torch.empty(shape, dtype=dtype, device="meta"), device
            )
        return known

    def _below(self) -> AbstractContextManager:
        """Only symbolic sizes need PyTorch's operators taken apart in Python."""
        return nullcontext() if self._symbolic else no_python_dispatcher()

    def _new(self, like: Type) -> torch.Tensor:
        """One of a type that is known, of sizes that are numbers."""
        shape, stride, dtype, device = like
        return new_tensor(
            self._mode, lambda: torch.empty_strided(shape, stride, dtype=dtype, device="meta"), device
        )


def _given_functions(error: AssertionError) -> str:
    """The name of the operator on functions that refused a mode; "" where none did."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    met = last.tb_frame.f_locals.get("self") if last is not None else None
    return met.name() if isinstance(met, torch._ops.HigherOrderOperator) else ""


def share_memory(result: torch.Tensor, operands: tuple) -> bool:
    """Whether a result lies in the memory of an operand, whatever the operator's schema says."""
    own = result.untyped_storage()._cdata
    return any(
        isinstance(each, torch.Tensor) and each.untyped_storage()._cdata == own
        for operand in operands
        for each in (operand if isinstance(operand, (list, tuple)) else (operand,))
    )


Type = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]


def _type_of(tensor: torch.Tensor) -> Type:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _key(func: Any, args: tuple, kwargs: dict[str, Any], symbolic: bool) -> Hashable | None:
    """What decides a result's type; None for calls that do more than make one new tensor, or whose operands
    are more than their types."""
    if not isinstance(func, torch._ops.OpOverload) or not _makes_one_tensor(func):
        return None
    describe = _describe_symbolic if symbolic else _describe
    try:
        key = (func, describe(args), tuple((name, describe(value)) for name, value in kwargs.items()))
        hash(key)
    except TypeError:
        return None
    return key


# Elementwise: shape, strides and a floating type are the operand's.
_ACTIVATIONS = (
    *("relu", "gelu", "silu", "mish", "hardswish", "hardsigmoid", "hardtanh"),
    *("leaky_relu", "elu", "sigmoid", "tanh"),
)
_LIKE_THE_FIRST = frozenset(
    getattr(torch.ops.aten, name).default for name in (*_ACTIVATIONS, "relu6", "dropout", "batch_norm")
)
# but in training, they give their operand back
GIVE_BACK = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
)
_IN_PLACE = frozenset(getattr(torch.ops.aten, f"{name}_").default for name in _ACTIVATIONS)  # the same result
_JOINED_IN_PLACE = frozenset((torch.ops.aten.add_.Tensor, torch.ops.aten.mul_.Tensor))


def _is_dense_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and not any(isinstance(s, int) and s == 0 for s in tensor.stride())


def _is_taken(func: Any, args: tuple) -> bool:
    """Whether PyTorch surely takes these operands, of sizes that are numbers."""
    if func is not torch.ops.aten.batch_norm.default:
        return args[0].is_floating_point()
    first, *weights, training = args[:6]
    fits = all(weight is None or weight.shape == first.shape[1:2] for weight in weights)
    return first.is_floating_point() and first.dim() > 1 and fits and not training


_CHANGE_A_SHAPE = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name in (
        *("resize_", "resize_as_", "squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_"),
        *("as_strided_", "set_"),
    )
    for overload in getattr(torch.ops.aten, name).overloads()
)
_DECIDE = ("cond", "while_loop")
_SEVERAL_WAYS = RECURRENCES | {torch.ops.aten.scaled_dot_product_attention.default}
_CARRY_VALUES = frozenset({torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default})


@cache
def _draws_in_place(func: torch._ops.OpOverload) -> bool:
    named = func._schema.is_mutable and func._opname.endswith("_")
    return named and torch.Tag.nondeterministic_seeded in func.tags


@cache
def _makes_one_tensor(func: torch._ops.OpOverload) -> bool:
    schema = func._schema
    return (
        not schema.is_mutable
        and len(schema.returns) == 1
        and str(schema.returns[0].type) == "Tensor"
        and func not in _CARRY_VALUES
        and torch.Tag.dynamic_output_shape not in func.tags
        and torch.Tag.data_dependent_output not in func.tags
    )


def _describe(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return _type_of(value)
    if isinstance(value, (list, tuple)):
        return tuple([_describe(item) for item in value])
    return (type(value), value)


def _describe_symbolic(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        sizes = _describe_symbolic(value.shape), _describe_symbolic(value.stride())
        return (*sizes, _describe_symbolic(value.storage_offset()), value.dtype, value.device)
    if isinstance(value, (list, tuple)):
        return tuple(_describe_symbolic(item) for item in value)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.expr
    return (type(value), value)
