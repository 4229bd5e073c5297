"""A recorded trace whose calls write into tensors in place, as one in which every call makes a new one: a
write into a slice makes a new whole, and a view that is read later is cut from that again. A write that
might be seen through something that is not followed here raises Unrecordable."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch.fx import Graph, Node
from torch.fx.node import Target, map_arg

from dlcb.compiler.bridge.fake_calls import GIVE_BACK, Unrecordable
from dlcb.compiler.bridge.partition import find, name_of
from dlcb.compiler.bridge.record import Trace, input_name
from dlcb.compiler.errors import UnsupportedOperator

_aten = torch.ops.aten
_Call = tuple[Any, tuple]  # an operator and its arguments
# a view, and what puts a changed one back into its whole, by its arguments after that; None where it is the
# whole
_PUT_BACK: dict[Target, Callable[[Node, Node, tuple], _Call] | None] = {
    _aten.slice.Tensor: lambda whole, part, rest: (_aten.slice_scatter.default, (whole, part, *rest)),
    _aten.select.int: lambda whole, part, rest: (_aten.select_scatter.default, (whole, part, *rest)),
    _aten.diagonal.default: lambda whole, part, rest: (_aten.diagonal_scatter.default, (whole, part, *rest)),
    _aten.transpose.int: lambda whole, part, rest: (_aten.transpose.int, (part, *rest)),
    _aten.t.default: lambda whole, part, rest: (_aten.t.default, (part,)),
    _aten.permute.default: lambda whole, part, rest: (_aten.permute.default, (part, _inverse(*rest))),
    _aten.unsqueeze.default: lambda whole, part, rest: (_aten.squeeze.dim, (part, *rest)),
    _aten.view.default: lambda whole, part, rest: (_aten.view_as.default, (part, whole)),
    _aten.view_as_complex.default: lambda whole, part, rest: (_aten.view_as_real.default, (part,)),
    _aten.view_as_real.default: lambda whole, part, rest: (_aten.view_as_complex.default, (part,)),
    _aten.alias.default: None,
    _aten.detach.default: None,
}
_SCATTERS = (_aten.slice_scatter.default, _aten.select_scatter.default, _aten.diagonal_scatter.default)
# calls that write to their first argument alone, whatever the types of the others
_KEEP_TYPE = frozenset(
    (
        *("copy_", "fill_", "zero_", "masked_fill_", "index_put_", "index_add_", "index_copy_"),
        *("index_fill_", "scatter_", "scatter_add_", "scatter_reduce_"),
        *(
            "uniform_",
            "normal_",
            "bernoulli_",
            "exponential_",
            "random_",
            "log_normal_",
            "cauchy_",
            "geometric_",
        ),
    )
)
# those that do so where the others' types are equal to its own
_EQUAL_TYPES = frozenset(
    (
        *("add_", "sub_", "mul_", "div_", "neg_", "exp_", "clamp_", "relu_", "gelu_", "silu_", "mish_"),
        *("hardswish_", "hardsigmoid_", "hardtanh_", "leaky_relu_", "elu_", "sigmoid_", "tanh_"),
    )
)


# put together from others, but never their operand itself
_FRESH = frozenset(
    (
        *("linear", "matmul", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"),
        *("batch_norm", "instance_norm", "layer_norm", "group_norm"),
    )
)


def functional(trace: Trace) -> Trace:
    """`trace`, which is used up, without writes, those to its inputs among them: who calls a compiled program
    keeps what was given. What a node's numbers are those of is kept in its `meta`:
    "called" is the name of the call that was made, "cut" the view that a node repeats or puts back."""
    graph = trace.nodes[0].graph
    _Writes(graph, trace.user_inputs).run()
    repeated = {node.meta.get("cut") for node in graph.nodes}  # which are asked for their numbers
    for node in reversed(graph.nodes):  # the writes themselves, and views that nobody reads any more
        if node.op == "call_function" and not node.users and node not in repeated:
            graph.erase_node(node)
    return replace(trace, nodes=tuple(graph.nodes))


@dataclass
class _View:
    """What a node stands for: `whole` cut by its own call, or memory of its own. `now` is its value after so
    many `writes` to that memory."""

    node: Node
    whole: Node | None
    memory: Node
    now: Node
    writes: int


class _Writes:
    def __init__(self, graph: Graph, inputs: Collection[str]) -> None:
        self.graph = graph
        self.views: dict[Node, _View] = {}
        self.writes: dict[Node, int] = {}  # to each memory, named by the node that made it
        for node in graph.nodes:
            if node.op == "placeholder" and input_name(node) in inputs:
                self.views[node] = _View(node, None, node, node, 0)
                self.writes[node] = 0
        self.shared: dict[Node, set[Node]] = {}  # a node -> the memories, or their names, that it may show
        self.outside: set[Node] = set()  # nodes that may show a weight
        self.place = {node: k for k, node in enumerate(graph.nodes)}
        # reading goes by the nodes as they were recorded
        self.last_read = {
            node: max((self.place[user] for user in node.users), default=-1) for node in graph.nodes
        }

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node.op not in ("call_function", "output"):
                continue
            if _is_mutable(node):
                self._write(node)
                continue
            read = list(node.all_input_nodes)
            with self.graph.inserting_before(node):
                now = {each: self._now(each) for each in read}
            node.args = map_arg(node.args, now.__getitem__)
            node.kwargs = map_arg(node.kwargs, now.__getitem__)
            self._enter(node, read)

    def _enter(self, node: Node, read: list[Node]) -> None:
        """What a call's result shares with its operands."""
        if (node.target in _PUT_BACK or _gives_back(node)) and read[0] in self.views:
            memory = self.views[read[0]].memory
            self.views[node] = _View(node, read[0], memory, node, self.writes[memory])
        elif _makes_memory(node):
            self.views[node] = _View(node, None, node, node, 0)
            self.writes[node] = 0
        else:
            known = {self.views[each].memory for each in read if each in self.views}
            self.shared[node] = known.union({node}, *(self.shared.get(each, ()) for each in read))
            unseen = [each for each in read if each not in self.views]
            if any(each.op == "placeholder" or each in self.outside for each in unseen):
                self.outside.add(node)

    def _now(self, node: Node) -> Node:
        """The node that has the value which `node` shows after the writes so far."""
        chain: list[_View] = []
        view = self.views.get(node)
        while view is not None and view.writes < self.writes[view.memory]:
            chain.append(view)
            view = self.views[view.whole] if view.whole is not None else None
        for view in reversed(chain):
            assert view.whole is not None  # the memory itself is up to date after each write
            whole = self.views[view.whole].now
            view.now = self._call(view.node.target, (whole, *view.node.args[1:]), view.node, view.node)
            view.now.meta["cut"] = view.node
            view.writes = self.writes[view.memory]
        return self.views[node].now if node in self.views else node

    def _write(self, node: Node) -> None:
        written = node.args[0]
        if not isinstance(written, Node) or not (written in self.views or self._is_alone(written, node)):
            raise Unrecordable(f"{node.target} writes to memory that more than its operand may show")
        if node.target is _aten.copy_.default and self._are_one(written, node.args[1]):
            self.views[node] = self.views[written]  # `x[1:] += y` writes what is there already, once more
            return
        made = _counterpart(node)
        memory = self.views[written].memory
        self._refuse_if_seen(node, memory)
        with self.graph.inserting_before(node):
            operands = {each: self._now(each) for each in node.all_input_nodes}
            arguments = map_arg(node.args, operands.__getitem__)
            changed = self._call(made, arguments, node, written)
            changed.kwargs = map_arg(node.kwargs, operands.__getitem__)
            changed.meta["called"] = str(node.target)
            view = self.views[written]
            renewed = [(view, changed)]
            while view.whole is not None:
                whole = self._now(view.whole)
                if (put_back := _PUT_BACK.get(view.node.target)) is not None:
                    target, arguments = put_back(whole, changed, view.node.args[1:])
                    changed = self._call(target, arguments, node, view.whole)
                    if target in _SCATTERS:  # whose numbers are the view's
                        changed.meta["cut"] = view.node
                view = self.views[view.whole]
                renewed.append((view, changed))
        self.writes[memory] += 1
        for view, value in renewed:
            view.now, view.writes = value, self.writes[memory]
        self.views[node] = self.views[written]  # it gives back what it wrote to

    def _is_alone(self, written: Node, node: Node) -> bool:
        """Whether what may share memory with `written`, but is no view of it, is not read after this write:
        then that is memory of its own, whether a call made a copy of it (`contiguous`) or not."""
        base = written
        while base.target in _PUT_BACK and _cut(base) in self.shared:
            base = _cut(base)
        if base not in self.shared or base in self.outside:
            return False
        memories = self.shared[base]
        showing = [other for other, view in self.views.items() if view.memory in memories]
        showing += [
            k for k, shown in self.shared.items() if base not in shown and not memories.isdisjoint(shown)
        ]
        if any(self.last_read[other] > self.place[node] for other in showing):
            return False
        self.writes[base] = 0
        self.views[base] = _View(base, None, base, base, 0)
        for view in [each for each, shown in self.shared.items() if base in shown]:  # in their order
            if view is base or (view.target in _PUT_BACK and _cut(view) in self.views):
                self.views.setdefault(view, _View(view, _cut(view), base, view, 0))
                del self.shared[view]
        return written in self.views

    def _are_one(self, one: Any, other: Any) -> bool:
        """Whether two nodes show one part of one memory."""
        views = [self._shown(each) for each in (one, other)]
        if None in views or one is other:
            return one is other
        first, second = (view for view in views if view)
        if first.node is second.node:
            return True
        alike = [(each.node.target, each.node.args[1:], each.node.kwargs) for each in (first, second)]
        inner = first.whole is not None and second.whole is not None
        return inner and alike[0] == alike[1] and self._are_one(first.whole, second.whole)

    def _shown(self, node: Any) -> _View | None:
        """The cut that a node shows, all of it."""
        view = self.views.get(node) if isinstance(node, Node) else None
        while view is not None and view.whole is not None and _PUT_BACK.get(view.node.target) is None:
            view = self.views[view.whole]
        return view

    def _refuse_if_seen(self, node: Node, memory: Node) -> None:
        """A write is followed where nothing that may show the same memory in another way is read later."""
        for other, memories in self.shared.items():
            if memory in memories and self.last_read[other] > self.place[node]:
                raise Unrecordable(f"{node.target} may change what {other.target} gave")

    def _call(self, target: Any, arguments: Any, of: Node, like: Node) -> Node:
        """A new call at the user's line of `of`, whose result has the type of `like`'s."""
        made = self.graph.call_function(target, arguments)
        made.meta["place"], made.meta["val"] = of.meta["place"], like.meta["val"]
        return made


def _cut(view: Node) -> Node:
    """What a view is cut from."""
    return cast(Node, view.args[0])


def _inverse(order: Sequence[int]) -> list[int]:
    """The order of axes that undoes `order`."""
    axes = [axis % len(order) for axis in order]
    return [axes.index(axis) for axis in range(len(axes))]


def _gives_back(node: Node) -> bool:
    return node.target in GIVE_BACK and node.args[2:] == (False,)


def _is_mutable(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def _makes_memory(node: Node) -> bool:
    """Whether PyTorch promises that the result is memory of its own. An operator that is put together from
    others promises nothing: dropout gives its operand back."""
    target, place = node.target, 0
    if target is operator.getitem and isinstance(_cut(node), Node) and isinstance(node.args[1], int):
        target, place = _cut(node).target, node.args[1]  # one of several results
    elif isinstance(target, torch._ops.OpOverload) and len(target._schema.returns) > 1:
        return False
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target._opname in _FRESH or (target is _aten.einsum.default and len(cast(list, node.args[1])) > 1):
        return True
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    returned = target._schema.returns
    if composite or not 0 <= place < len(returned):
        return False
    return str(returned[place].type) == "Tensor" and returned[place].alias_info is None


def _counterpart(node: Node) -> Callable:
    """The call that makes a new tensor of what `node` writes."""
    target: Any = node.target
    name = target._opname
    given = [each.meta["val"] for each in node.all_input_nodes]
    same = len({getattr(each, "dtype", None) for each in given}) == 1
    if name in _KEEP_TYPE or (name in _EQUAL_TYPES and same):
        try:
            return find(name_of(target))
        except UnsupportedOperator:
            pass
    raise Unrecordable(f"{target} writes in place")
