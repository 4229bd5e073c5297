"""A static trace of a module in one fake forward: every ATen call that the user's code makes, before
decomposition, with its arguments, result types and the user's line. The same calls as torch.export's graph,
in a fraction of its time; what only torch.export can follow raises Unrecordable."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import _compiling_state_context
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from dlcb.compiler.bridge.fake_calls import FakeCalls, Unrecordable, share_memory
from dlcb.compiler.bridge.flattened import flattened
from dlcb.compiler.bridge.kinds import as_real
from dlcb.compiler.bridge.stand_ins import HERE, Home, StandIns
from dlcb.compiler.bridge.weights import Parameters

_TORCH = f"{Path(torch.__file__).parent}/"  # of its neighbours, torchvision is another
_HERE = str(Path(__file__).parent)
_COMPARISONS = frozenset((operator.le, operator.lt, operator.ge, operator.gt, operator.eq, operator.ne))
ASK_FOR_SIZES = (torch.ops.aten.size.int, torch.ops.aten.sym_size.int)
_UNFOLLOWED = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)


@dataclass(frozen=True, slots=True)
class TensorType:
    """What a trace knows of a call's result."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def dim(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Trace:
    """A static program: calls in order, inputs by placeholder name, the tensors that it brings along, and how
    its outputs are packed. `unsure` says why it may be another program at other sizes than any trace
    shows."""

    nodes: tuple[Node, ...]
    user_inputs: tuple[str, ...]
    parameters: Parameters
    output_spec: pytree.TreeSpec
    unsure: str = ""

    @staticmethod
    def of(program: ExportedProgram, unsure: str = "") -> Trace:
        """The same program as torch.export has it, but for what it asserts of sizes that data decide: their
        bounds are those of the sizes at hand."""
        signature = program.graph_signature
        return Trace(
            tuple(node for node in program.graph.nodes if not _is_asserted(node)),
            tuple(str(name) for name in signature.user_inputs),
            Parameters.of(program),
            program.call_spec.out_spec,
            unsure,
        )

    @property
    def placeholders(self) -> dict[str, Node]:
        return {input_name(node): node for node in self.nodes if node.op == "placeholder"}

    @cached_property
    def units(self) -> int:
        """How many axes of results have the size 1."""
        shapes = [getattr(node.meta.get("val"), "shape", ()) for node in self.nodes]
        return sum(isinstance(size, int) and size == 1 for shape in shapes for size in shape)

    @property
    def outputs(self) -> Sequence[Any]:
        """What stands at each place of the flattened outputs: nodes, or constants."""
        return cast(Sequence[Any], self.nodes[-1].args[0])


def input_name(node: Node) -> str:
    """What an input is called where a node may not be: `input` and `type` are words of Python's."""
    return node.meta.get("input", node.name)


def _is_asserted(node: Node) -> bool:
    """Whether a node is an assertion about a number, or a comparison for assertions alone."""
    asserts = torch.ops.aten._assert_scalar.default
    if node.target is asserts:
        return True
    return (
        bool(node.users)
        and node.target in _COMPARISONS
        and all(user.target is asserts for user in node.users)
    )


def record(
    module: nn.Module,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    names: Sequence[str],
    home: Home = HERE,
) -> Trace:
    """The calls of `module(*arguments, **keywords)` at `home`, tensors called `names` in that order. Raises
    Unrecordable, and what the user's code raises."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    stand_ins = StandIns(mode, home.device)
    given = [stand_ins.input(mode.from_tensor(tensor)) for tensor in (*arguments, *keywords.values())]
    calls = _Recorder(module, stand_ins)
    for name, fake in zip(names, given, strict=True):
        calls.bring(name, fake).meta["input"] = name
    call_keywords = dict(zip(keywords, given[len(arguments) :], strict=True))
    placed = stand_ins.placed(module)
    with placed, as_real(), _compiling_state_context(), mode, enable_python_dispatcher(), calls:
        try:
            with calls.told():
                result = module(*given[: len(arguments)], **call_keywords)
        except _UNFOLLOWED as error:
            raise Unrecordable(str(error)) from error
    flat, spec = flattened(result)
    calls.graph.output([calls.node_of(item) if isinstance(item, torch.Tensor) else item for item in flat])
    _drop_unused(calls.graph)
    tensors = {name: tensor.detach() for name, tensor in calls.tensors.items()}
    names_of = {node.name: node.meta["parameter"] for node in calls.graph.nodes if "parameter" in node.meta}
    return Trace(tuple(calls.graph.nodes), tuple(names), Parameters(names_of, tensors), spec)


class _Recorder(FakeCalls):
    """Notes each call as a node."""

    def __init__(self, module: nn.Module, stand_ins: StandIns) -> None:
        super().__init__(stand_ins, symbolic=False)
        self.graph = Graph()
        self.tensors: dict[str, torch.Tensor] = {}  # of the module, as far as they are used
        # weak: PyTorch's factories give a copy of a result that somebody else holds
        self._nodes: MutableMapping[torch.Tensor, Node] = WeakTensorKeyDictionary()
        self._module_names: dict[int, str] = {}
        for name, tensor in _tensors_of(module):
            self._module_names.setdefault(id(tensor), name)

    def call(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if not isinstance(func, torch._ops.OpOverload):
            raise Unrecordable(f"{func} is no plain operator")
        if func in ASK_FOR_SIZES:  # as TorchScript does, and goes by the number
            return super().call(func, args, kwargs)
        node_arguments, node_keywords = self._plain(args), {key: self._plain(v) for key, v in kwargs.items()}
        written = args[0] if func._schema.is_mutable and args else None
        shape = written.shape if isinstance(written, torch.Tensor) else None
        result = super().call(func, args, kwargs)
        if isinstance(written, torch.Tensor) and written.shape != shape:
            raise Unrecordable(f"{func} changes a shape in place")
        node = self.graph.call_function(func, node_arguments, node_keywords)
        node.meta["place"] = user_place(sys._getframe(1))
        if isinstance(result, torch.Tensor):
            node.meta["shares"] = written is None and share_memory(result, args)
            self._enter(result, node)
        elif isinstance(result, (tuple, list)) and all(isinstance(part, torch.Tensor) for part in result):
            self._enter_parts(result, node)
        elif result is not None:
            raise Unrecordable(f"{func} gives a {type(result).__name__}")
        return result

    def bring(self, name: str, tensor: torch.Tensor) -> Node:
        """A tensor that comes from outside."""
        node = self.graph.placeholder(name)
        self._enter(tensor, node)
        return node

    def node_of(self, tensor: torch.Tensor) -> Node:
        """The node that made `tensor`; one of the module's own, or a constant, is brought in at its first
        use."""
        known = self._nodes.get(tensor)
        if known is not None:
            return known
        real = self.stand_ins.real.get(id(tensor), tensor)
        if isinstance(real, FakeTensor):
            raise Unrecordable("a tensor that no recorded call made")
        name = self._module_names.get(id(real))
        if name is None:
            name = f"constant.{sum(1 for known in self.tensors if known.startswith('constant.'))}"
        node = self.bring(name.replace(".", "_"), tensor)
        node.meta["parameter"] = name
        self.tensors[name] = real
        return node

    def _enter(self, tensor: torch.Tensor, node: Node) -> None:
        node.meta["val"] = TensorType(tuple(tensor.shape), tensor.dtype)
        self._nodes[tensor] = node

    def _enter_parts(self, results: Sequence[Any], node: Node) -> None:
        node.meta["val"] = [TensorType(tuple(part.shape), part.dtype) for part in results]
        for place, part in enumerate(results):
            item = self.graph.call_function(operator.getitem, (node, place))
            item.meta["place"] = node.meta["place"]
            self._enter(part, item)

    def _plain(self, value: Any) -> Any:
        """An argument with nodes in place of tensors."""
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._plain(item) for item in value)
        return value


def _tensors_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _drop_unused(graph: Graph) -> None:
    for node in reversed(graph.nodes):
        if not node.users and node.op != "output" and not node.is_impure():
            graph.erase_node(node)


def user_place(frame: FrameType | None) -> tuple[str, int] | None:
    """File and line of the innermost frame outside torch and this package."""
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, _HERE, "<")):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else None
