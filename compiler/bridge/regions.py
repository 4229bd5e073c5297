"""Parts of an exported program that run within autocast, or with gradients on or off, as calls of the program
itself: torch.export has each as a program of its own. Autocast's casts are those of the device that the
program is compiled for, wherever it was exported."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dlcb.compiler.bridge.aten import ASSERTIONS
from dlcb.compiler.bridge.autocast import Casts, without_autocast
from dlcb.compiler.bridge.record import Trace
from dlcb.compiler.bridge.stand_ins import StandIns, supposed
from dlcb.compiler.errors import CaptureError

# where the arguments of a part begin, behind its program
_OPERANDS = {"wrap_with_autocast": 5, "wrap_with_set_grad_enabled": 2}


def inlined(trace: Trace, device: torch.device) -> Trace:
    """`trace` without such parts; itself where it has none. CaptureError where a cast is made within a call
    whose sizes cannot be followed."""
    if not any(_part(node) for node in trace.nodes):
        return trace
    flat = _Inlining(device)
    with supposed(device), without_autocast(), torch.no_grad():
        flat.graph.output(flat.walk(trace.nodes))
    return replace(trace, nodes=tuple(flat.graph.nodes))


def _part(node: Node) -> str:
    """What kind of part a node calls; "" for other nodes."""
    name = getattr(node.target, "_name", "") if node.op == "call_function" else ""
    return name if name in _OPERANDS else ""


class _Inlining:
    """A graph that is built call by call, beside the values of its nodes on the device."""

    def __init__(self, device: torch.device) -> None:
        self.graph = Graph()
        self._device, self._casts = device, Casts(device.type)
        self._depth = 0  # of parts within autocast, for whichever device
        self._made: dict[Node, Any] = {}  # what stands for a node: one of ours, several, or a program
        self._values: dict[Node, Any] = {}  # of our nodes
        self._of: dict[int, Node] = {}  # ours, by the identity of their tensors

    def walk(self, nodes: Iterable[Node]) -> Any:
        """Adds the calls of a program, and gives what stands for its outputs."""
        for node in nodes:
            if node.op == "output":
                return map_arg(node.args[0], self._made.__getitem__)
            if node not in self._made or node.op != "placeholder":
                self._made[node] = self._stands_for(node)
        return ()

    def _stands_for(self, node: Node) -> Any:
        if node.op == "get_attr":
            return getattr(node.graph.owning_module, str(node.target))
        if name := _part(node):
            first = _OPERANDS[name]
            program = self._made[node.args[first - 1]]  # type: ignore[index]
            inputs = (each for each in program.graph.nodes if each.op == "placeholder")
            for each, operand in zip(inputs, node.args[first:], strict=True):
                self._made[each] = self._made[operand] if isinstance(operand, Node) else operand
            cast = name == "wrap_with_autocast"
            self._depth += cast
            with self._within(*node.args[:3]) if cast else nullcontext():
                outputs = self.walk(program.graph.nodes)
            self._depth -= cast
            return outputs
        if node.target is operator.getitem:
            whole, place = self._made[node.args[0]], node.args[1]  # type: ignore[index]
            if not isinstance(whole, Node):
                return whole[place]
            return self._copied(node, self._values[whole][place])
        calls = isinstance(node.target, torch._ops.OpOverload) and str(node.target) not in ASSERTIONS
        changed = calls and (self._depth > 0 or self._is_changed(node))
        return self._called(node) if changed else self._copied(node, self._here(node.meta.get("val")))

    def _within(self, kind: Any, dtype: Any, enabled: Any) -> AbstractContextManager[object]:
        return torch.autocast(kind, dtype, enabled) if kind == self._device.type else nullcontext()

    def _here(self, value: Any) -> Any:
        """What a node of the file gave, on the device."""
        return pytree.tree_map_only(
            FakeTensor, lambda x: StandIns(x.fake_mode, self._device).labelled(x, self._device), value
        )

    def _copied(self, node: Node, value: Any) -> Node:
        return self._enter(self.graph.node_copy(node, self._made.__getitem__), value)

    def _enter(self, made: Node, value: Any) -> Node:
        made.meta["val"] = self._values[made] = value
        if isinstance(value, torch.Tensor):
            self._of[id(value)] = made
        return made

    def _given(self, node: Node) -> tuple[tuple, dict[str, Any]]:
        """The values that a call is given."""

        def value(each: Node) -> Any:
            made = self._made[each]
            return self._values[made] if isinstance(made, Node) else made

        return map_arg((node.args, node.kwargs), value)  # type: ignore[return-value]

    def _is_changed(self, node: Node) -> bool:
        """Whether a call is given other types than in the file."""
        before = [each.meta.get("val") for each in node.all_input_nodes]
        now = [self._values[self._made[each]] for each in node.all_input_nodes]
        return [getattr(x, "dtype", None) for x in before] != [getattr(x, "dtype", None) for x in now]

    def _called(self, node: Node) -> Node:
        """The calls that PyTorch makes of one."""
        args, kwargs = self._given(node)
        calls = _Noted(self._casts)
        with enable_python_dispatcher(), calls:
            result: Any = node.target(*args, **kwargs)  # type: ignore[operator]
        if len(calls.noted) < 2 and all(_is_same(call, node.target, args, kwargs) for call in calls.noted):
            return self._copied(node, result)
        last = None
        for func, given, named, gave in calls.noted:
            same = func is node.target and len(given) == len(node.args)
            own = map_arg((node.args, node.kwargs), self._made.__getitem__) if same else ((), {})
            values = [self._ours(each, *own[0][k : k + 1]) for k, each in enumerate(given)]
            keys = {key: self._ours(each, *([own[1][key]] if same else [])) for key, each in named.items()}
            last = self.graph.call_function(func, tuple(values), keys)
            last.meta = {key: value for key, value in node.meta.items() if key != "val"}
            self._enter(last, gave)
        if last is None or self._values[last] is not result:
            raise CaptureError(f"{node.target} within autocast is not followed", stage="capture")
        return last

    def _ours(self, value: Any, own: Any = None) -> Any:
        """An argument with nodes for tensors; `own` is what it is in the file, with the numbers that follow
        sizes."""
        leaves = pytree.tree_leaves(value)
        if any(isinstance(each, torch.Tensor) for each in leaves):
            return pytree.tree_map_only(torch.Tensor, lambda x: self._of[id(x)], value)
        if any(isinstance(each, (torch.SymInt, torch.SymFloat)) for each in leaves):
            if own is None:
                raise CaptureError("sizes within a call that autocast takes apart", stage="capture")
            return own
        return value


class _Noted(SchemaCheckMode):
    """Notes each call below autocast, in the order in which they are made."""

    def __init__(self, casts: Casts) -> None:
        TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)
        self._casts = casts
        self.noted: list[tuple[Any, tuple, dict[str, Any], Any]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if self._casts.are_made() and (others := self._casts.of(func, args, named, _hint)) is not None:
            with self:
                return others()
        with self._casts.off():
            result = func(*args, **named)
        self.noted.append((func, args, named, result))
        return result


def _is_same(call: tuple[Any, tuple, dict[str, Any], Any], target: Any, args: tuple, kwargs: Any) -> bool:
    """Whether a call that was noted is the one that was made, on the same arguments."""
    func, given, named, _ = call
    if func is not target:
        return False
    (before, packed), (now, packed_now) = (
        pytree.tree_flatten(each) for each in ((args, kwargs), (given, named))
    )
    return packed == packed_now and all(
        one is other or (not isinstance(one, torch.Tensor) and one == other)
        for one, other in zip(before, now, strict=True)
    )


def _hint(number: Any) -> Any:
    """A size as it was when the file was exported."""
    return number.node.hint if isinstance(number, (torch.SymInt, torch.SymFloat)) else number
