"""Aligned static traces become one graph with free sizes: node by node, literals that differ between the
traces are explained by sizes already in the graph, and every result is compared with the shape and type
that each trace had."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node as FxNode

from dlcb.compiler.bridge import aten, aten_complex, aten_shape, chance, held, number, partition
from dlcb.compiler.bridge.aligned import Disagreement, align
from dlcb.compiler.bridge.aten_complex import Complex
from dlcb.compiler.bridge.aten_split import Pieces
from dlcb.compiler.bridge.capture import node_line
from dlcb.compiler.bridge.emit import Emit, from_torch
from dlcb.compiler.bridge.literals import Sizes, alike
from dlcb.compiler.bridge.lone import Decision, Lone, decide
from dlcb.compiler.bridge.number import Number
from dlcb.compiler.bridge.one_trace import Exploring, OneTrace
from dlcb.compiler.bridge.record import TensorType, Trace, input_name
from dlcb.compiler.bridge.seen import Numbers, Path, Seen, moved, numbers, result_place, same
from dlcb.compiler.bridge.symbolic import size_of
from dlcb.compiler.dtype import FLOAT64
from dlcb.compiler.errors import CaptureError, ShapeError, UnsupportedOperator
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import apply, as_expr, cast, const
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Graph, GraphBuilder, Value
from dlcb.compiler.shapes.system import Provenance, System


@dataclass(frozen=True)
class Lowered:
    """A graph with free sizes, its weights by name, and notes on what was dropped or left to PyTorch."""

    graph: Graph
    parameters: Mapping[str, torch.Tensor]
    sizes: Sizes
    notes: tuple[str, ...] = field(default=())


def lower(
    name: str,
    programs: Sequence[Trace],
    sizes: Sequence[Mapping[str, int]],
    inputs: Mapping[str, Sequence[Expr | int]],
    system: System,
    seen: Seen | None = None,
    label: str = "",
    fixed: frozenset[str] | None = None,
    left: Collection[str] = (),
) -> Lowered:
    """One graph for all `programs`, which were traced at `sizes` (size variable -> value). `inputs`: the
    dims of each input in order; `seen`: what a symbolic forward saw of the calls; `label` goes before the
    names of constants; `fixed`: of files, the sizes that these have as numbers alone; `left`: the user's
    lines whose calls PyTorch runs. Raises Disagreement where the programs are not one program, and Holds
    where numbers of a file hold its sizes."""
    if len(programs) > 1:
        return _Lowering(name, programs, sizes, inputs, system, seen, (), label, fixed, left).run()
    symbols = dict.fromkeys(dim for dims in inputs.values() for dim in dims if isinstance(dim, Expr))
    exploring = Exploring(list(symbols))
    decisions = decide(
        exploring, _Lowering(name, programs, sizes, inputs, exploring, seen, fixed=fixed, left=left).run
    )
    for size, other in ((each.size, other) for each in decisions for other in each.equal):
        assert size is not None
        system.equal(
            size, other, Provenance("the single trace", "", f"a literal may follow {size!r} or {other!r}")
        )
    return _Lowering(name, programs, sizes, inputs, system, seen, decisions, label, fixed, left).run()


def _are_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Views of the same memory, as traces have them of one weight, are equal without a look; NaN equals the
    same NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.data_ptr() == b.data_ptr() and a.stride() == b.stride():
        return True
    return torch.equal(a, b) or torch.equal(*(x.contiguous().flatten().view(torch.uint8) for x in (a, b)))


class _Lowering:
    def __init__(
        self,
        name: str,
        programs: Sequence[Trace],
        sizes: Sequence[Mapping[str, int]],
        inputs: Mapping[str, Sequence[Expr | int]],
        system: System,
        seen: Seen | None = None,
        decisions: Sequence[Decision] = (),
        label: str = "",
        fixed: frozenset[str] | None = None,
        left: Collection[str] = (),
    ) -> None:
        self.programs = programs
        self.left = left
        self.seen = (seen or Seen()).reader()
        self.label = label
        self.inputs = inputs
        self.sizes = Sizes(sizes)
        self.build = GraphBuilder(name, system)
        self.emit = Emit(self.build, self.sizes.observed)
        if isinstance(system, OneTrace):
            system.observed, system.fixed = self.sizes.observed, fixed or frozenset()
        self.emit.single = len(programs) == 1
        self.made: dict[FxNode, Any] = {}
        self.exact: dict[FxNode, Numbers] = {}  # the numbers of calls that were met
        self.symbols: dict[Any, Expr] = {}  # what PyTorch's are, of a file with free sizes
        self.place_of: list[dict[FxNode, int]] = []  # of each program
        self.weights = [program.parameters for program in programs]
        self.notes: dict[str, None] = {}
        self.lone = Lone(programs[0], self.emit, self.sizes, fixed, iter(decisions))
        self.draws = 0  # calls that draw random numbers

    def run(self) -> Lowered:
        rows = align(self.programs)
        self._declare_inputs([row for row in rows if row[0].op == "placeholder"])
        self.place_of = [{row[k]: place for place, row in enumerate(rows)} for k in range(len(self.programs))]
        outputs: list[Value] = []
        for row in rows:
            if row[0].op == "call_function":
                self.made[row[0]] = self._node(row)
            elif row[0].op == "output":
                merged = self._merge([node.args[0] for node in row], (), {}, ())
                outputs = [item for item in merged if item is not None]
                _refuse_complex(outputs)
            elif row[0].op != "placeholder":
                raise CaptureError(
                    f"programs with {row[0].op} nodes are not supported", stage="generalize", node=row[0].name
                )
        graph = self.build.build(*outputs)
        used = {value.name for value in graph.parameters}
        named = {self._stored(name): tensor for name, tensor in self.weights[0].tensors.items()}
        tensors = {name: _as_stored(tensor) for name, tensor in named.items() if name in used}
        return Lowered(graph, tensors, self.sizes, tuple(self.notes))

    # ---- inputs ------------------------------------------------------------------------------------

    def _declare_inputs(self, rows: Sequence[tuple[FxNode, ...]]) -> None:
        user = list(self.programs[0].user_inputs)
        by_name = set(user) == set(self.inputs)
        placeholders = {input_name(row[0]): row for row in rows}
        for place, (name, dims) in enumerate(self.inputs.items()):
            node = placeholders[name if by_name else user[place]][0]
            shape = tuple(as_expr(dim) for dim in dims)
            self.sizes.add(shape)
            self.lone.declare(node.name, shape)
            for dim, size in zip(shape, node.meta["val"].shape, strict=True):
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    self.symbols.setdefault(size.node.expr, dim)
            self.made[node] = self.build.input(name, shape, from_torch(node.meta["val"].dtype))
        for row in rows:
            if row[0] not in self.made and row[0].users:
                self.made[row[0]] = self._parameter(row)

    def _parameter(self, row: tuple[FxNode, ...]) -> Value | Complex | None:
        name = self.weights[0].names.get(row[0].name)
        if name is None:
            return None
        tensor = self.weights[0].tensors[name]
        if tensor.layout is not torch.strided:
            kind = str(tensor.layout).removeprefix("torch.")
            raise CaptureError(f"the constant '{name}' is no dense tensor but {kind}", stage="generalize")
        for node, weights in zip(row[1:], self.weights[1:], strict=True):
            other = weights.tensors[weights.names[node.name]]
            if not _are_equal(other, tensor):
                raise Disagreement(f"the constant '{name}' changes with the sizes", stage="generalize")
        stored = _as_stored(tensor)
        made = self.build.parameter(self._stored(name), tuple(stored.shape), from_torch(stored.dtype))
        self.lone.place(made.shape)
        return aten_complex.in_parts(self.emit, made) if tensor.is_complex() else made

    def _stored(self, name: str) -> str:
        """Weights have one name in all graphs of a module, which is no input's, constants in one."""
        if name in self.inputs:
            return f"self.{name}"
        return f"{self.label}{name}" if name.startswith("constant.") else name

    # ---- nodes -------------------------------------------------------------------------------------

    def _node(self, row: tuple[FxNode, ...]) -> Any:
        node = row[0]
        target = str(node.target)
        self.build.source = node_line(node)
        self.emit.operator = target
        near = [size for source in node.all_input_nodes for size in _sizes_of(self.made[source])]
        sized = self.lone.places(node) if self.emit.single else ()
        exact = self._exact(row)
        self.lone.meet(node)
        arguments = [
            self._merge([other.args[place] for other in row], near, exact, (place,), place in sized)
            for place in range(len(node.args))
        ]
        keywords = {
            key: self._merge([other.kwargs[key] for other in row], near, exact, (key,)) for key in node.kwargs
        }
        if self.emit.single and target in aten_shape.RANGES:
            arguments[:2] = self.lone.ends(arguments[0], arguments[1], near)
        if not isinstance(node.target, torch._ops.OpOverload):
            return self._python(node, arguments, keywords)
        self.lone.hold(node, arguments, keywords)
        arguments = self.lone.cut(node, arguments)
        arguments += self._left_out(node.target, len(arguments), exact, near)
        if target == "aten.sym_size.int":
            return arguments[0].shape[arguments[1]]
        given = [*arguments, *keywords.values()]
        in_complex = aten_complex.is_complex(given) or _gives_complex(node)
        if target in number.TAKEN and not in_complex:
            return number.taken(self.emit, arguments[0])
        if chance.draws(node.target, arguments, keywords):
            self.draws += 1
            return self._eager(row, arguments, keywords, draw=self.draws)
        function, _ = aten.find(target, in_complex)
        if self.build.source in self.left:
            function = None
        if function is not None and not (_holds_number(given) or aten_complex.is_whole(given)):
            try:
                result = function(self.emit, *arguments, **keywords)
                self._check(row, result)
                self._remember(result)
                return result
            except UnsupportedOperator as error:
                self.notes[f"{target} at {self.build.source}: {error.message}"] = None
            except TypeError as error:  # an overload or keyword that the row was not written for
                self.notes[f"{target} at {self.build.source}: {error}"] = None
            except ShapeError as error:
                raise Disagreement(
                    error.message, stage="generalize", node=target, source_line=self.build.source
                ) from error
        return self._eager(row, arguments, keywords)

    def _left_out(
        self, target: torch._ops.OpOverload, count: int, exact: Numbers, near: Sequence[Expr]
    ) -> list[Any]:
        """Arguments behind the first `count`, up to the last that follows sizes: PyTorch leaves out what an
        operator takes by default, which a size is at some sizes."""
        following = {
            path[0]: value
            for path, value in exact.items()
            if isinstance(path[0], int)
            and path[0] >= count
            and isinstance(value, Expr)
            and not value.is_const
        }
        schema = target._schema.arguments
        return [
            self.sizes.spell(following[place], near) if place in following else schema[place].default_value
            for place in range(count, max(following, default=-1) + 1)
        ]

    def _exact(self, row: tuple[FxNode, ...]) -> Numbers:
        """The call's numbers as the symbolic forward saw them. Where that met every call, one that it did
        not meet is another program's."""
        node = row[0]
        if node.target is operator.getitem:
            return {}  # Python's own, which that forward does not meet
        if (
            cut := node.meta.get("cut")
        ) is not None:  # a view again, or what puts it back, with an operand more
            return moved(self.exact[cut], 0 if node.target is cut.target else 1)
        given = [numbers(other.args, other.kwargs) for other in row]
        if node.op == "call_function" and "place" not in node.meta and not self.emit.single:
            return self._unplaced(given)
        place, target = node.meta.get("place"), node.meta.get("called", str(node.target))
        found = self.seen.next(target, place, given, self.sizes.observed)
        if found is None and place and self.seen.complete and any(each != given[0] for each in given):
            raise self._disagreement("numbers that change otherwise than the program's code says")
        self.exact[node] = found or {}
        return self.exact[node]

    def _unplaced(self, given: Sequence[Numbers]) -> Numbers:
        """The same for a call of torch.export's, not saying whose line it is: a number may be any with
        its values, and two different ones are one too many."""
        found: Numbers = {}
        for path, expressions in self.seen.unplaced(given, self.sizes.observed).items():
            changes = any(each[path] != given[0][path] for each in given)
            if not expressions:
                continue
            if not changes or not all(alike(each, expressions[0]) for each in expressions[1:]):
                raise self._disagreement(f"numbers that may be {expressions[0]!r}, or something else")
            found[path] = expressions[0]
        return found

    def _python(self, node: FxNode, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Arithmetic on sizes and numbers, and the parts of a tuple."""
        function: Any = node.target
        if function is operator.getitem and isinstance(arguments[0], Pieces):
            piece = arguments[0].take(self.emit, arguments[1])
            self._remember(piece)
            return piece
        if function is operator.getitem and isinstance(arguments[1], Expr):
            raise self._disagreement("places in a list")
        if _holds_number(arguments):
            return number.calculated(self.emit, function, arguments)
        if function is operator.getitem or getattr(function, "__module__", "") in ("_operator", "operator"):
            return function(*arguments, **keywords)
        raise CaptureError(
            f"{_name_of(function)} has no counterpart", stage="generalize", source_line=self.build.source
        )

    def _check(self, row: tuple[FxNode, ...], result: Any) -> None:
        """Raises UnsupportedOperator unless the result has the shape and type that PyTorch's had in every
        trace."""
        results = _parts_of(result if isinstance(result, (tuple, list)) else [result])
        for trace, node in enumerate(row):
            expected = node.meta.get("val")
            expected = _parts_of(expected if isinstance(expected, (tuple, list)) else [expected])
            for value, tensor in zip(results, expected, strict=False):
                if isinstance(value, Value) and isinstance(tensor, (torch.Tensor, TensorType)):
                    self._check_one(value, tensor, trace)

    def _check_one(self, value: Value, tensor: torch.Tensor | TensorType, trace: int) -> None:
        if value.dtype is not from_torch(tensor.dtype) or value.rank != tensor.dim():
            raise UnsupportedOperator(
                f"the shape rule gives {value.type!r}, PyTorch {tensor.dtype} of rank {tensor.dim()}"
            )
        for size, real in zip(value.shape, tensor.shape, strict=True):
            observed = self.sizes.observed(size)
            if observed is not None and isinstance(real, int) and observed[trace] != real:
                said = f"{size!r}" if size.is_const else f"{size!r} = {observed[trace]}"
                raise UnsupportedOperator(f"the shape rule gives the size {said}, PyTorch {real}")

    def _remember(self, result: Any) -> None:
        for value in result if isinstance(result, (tuple, list)) else [result]:
            self.sizes.add(_sizes_of(value))
            self.lone.add(_sizes_of(value))

    # ---- literals ----------------------------------------------------------------------------------

    def _merge(
        self,
        trees: Sequence[Any],
        near: Sequence[Expr],
        exact: Numbers,
        path: Path,
        sized: bool = False,
    ) -> Any:
        """One argument from the same argument of every trace: nodes become values, varying integers
        expressions. `exact`: what is known of the call's numbers, this one being at `path`."""
        first = trees[0]
        if isinstance(first, FxNode):
            places = {of.get(tree) for of, tree in zip(self.place_of, trees, strict=True)}
            if len(places) > 1:
                raise self._disagreement("operands that are other results of the program")
            return self.made[first]
        if isinstance(first, (list, tuple)):
            lengths = {len(tree) if isinstance(tree, (list, tuple)) else 0 for tree in trees}
            if len(lengths) > 1:
                raise self._disagreement(f"a list of {' or '.join(map(str, sorted(lengths)))} entries")
            return [
                self._merge([tree[k] for tree in trees], near, exact, (*path, k), sized)
                for k in range(len(first))
            ]
        if isinstance(known := exact.get(path), Expr) and not known.is_const:
            return self.sizes.spell(known, near)
        if all(type(tree) is type(first) and same(tree, first) for tree in trees[1:]):
            if type(first) is int and self.emit.single:
                return self.lone.follow(first, near, path, sized)
            return first
        if all(isinstance(tree, int) and not isinstance(tree, bool) for tree in trees):
            found = self.lone.explain(tuple(trees), near)
        elif all(isinstance(tree, (int, float)) and not isinstance(tree, bool) for tree in trees):
            found = self._explain_float(trees, near)
        else:
            found = None
        if found is None:
            raise self._disagreement(f"the values {', '.join(map(str, trees))}")
        return found

    def _explain_float(self, values: Sequence[float], near: Sequence[Expr]) -> Expr | None:
        """A size n used as a number: n, 1 / n, the root of n or its inverse."""
        for size in dict.fromkeys([*near, *(size for _, size in self.sizes.known())]):
            observed = self.sizes.observed(size)
            if observed is None or size.is_const:
                continue
            for form, meaning in _FLOAT_FORMS:
                if all(
                    abs(meaning(n) - value) <= 1e-12 * abs(value)
                    for n, value in zip(observed, values, strict=True)
                    if n
                ):
                    return form(cast(size, FLOAT64))
        return None

    def _disagreement(self, what: str) -> Disagreement:
        return Disagreement(
            f"{what}, which follow the sizes, are explained by no size in the graph",
            stage="generalize",
            node=self.emit.operator,
            source_line=self.build.source,
        )

    # ---- eager nodes -------------------------------------------------------------------------------

    def _eager(
        self, row: tuple[FxNode, ...], arguments: list[Any], keywords: dict[str, Any], **draw: int
    ) -> Any:
        """The call as PyTorch's: result sizes are explained like literals, or become fresh size variables."""
        node = row[0]
        assert isinstance(node.target, torch._ops.OpOverload)
        target = partition.name_of(node.target)
        arguments = aten_complex.whole(self.emit, arguments)
        keywords = {key: aten_complex.whole(self.emit, value) for key, value in keywords.items()}
        recurrent = self._recurrent(arguments) if target in _RECURRENCES else {}
        tensors, plain = partition.encode(arguments, keywords)
        expected = node.meta["val"]
        alone = isinstance(expected, (torch.Tensor, TensorType))
        shapes, dtypes = [], []
        if not alone and not isinstance(expected, (tuple, list)):
            raise CaptureError(
                f"{node.target} gives a {type(expected).__name__}, which has no counterpart",
                stage="generalize",
                source_line=self.build.source,
            )
        results = [[other.meta["val"]] if alone else list(other.meta["val"]) for other in row]
        if len({len(each) for each in results}) > 1:
            raise self._disagreement(f"{' or '.join(str(len(each)) for each in results)} results")
        for place, tensor in enumerate(results[0]):
            near = [size for value in tensors for size in value.shape] + _sizes_among(arguments)
            traced = [trace[place].shape for trace in results]
            if len({len(shape) for shape in traced}) > 1:
                raise self._disagreement(f"results of {' and '.join(str(list(s)) for s in traced)}")
            exact = {**self.exact.get(node, {}), **_resized(target, arguments), **recurrent}
            if self.emit.single and tensors and tensors[0].rank == len(traced[0]):  # axes mostly stay
                numbers_given = held.sizes_made(node.target, arguments, keywords)
                kept = {
                    result_place(place, axis): size
                    for axis, size in enumerate(tensors[0].shape)
                    if not numbers_given.intersection(self.sizes.observed(size) or ())
                }
                exact = {**kept, **exact}
            elif self.emit.single and not tensors:
                given = {self.sizes.observed(size): size for size in near}
                exact |= {
                    result_place(place, axis): given[value,]
                    for axis, value in enumerate(traced[0])
                    if (value,) in given
                }
            shapes.append(
                tuple(
                    self._result_size(values, near, axis, exact.get(result_place(place, axis)))
                    for axis, values in enumerate(zip(*traced, strict=True))
                )
            )
            dtypes.append(from_torch(tensor.dtype))
        made = self.build.apply_all(
            ops.eager,
            *tensors,
            target=target,
            arguments=plain,
            shapes=tuple(shapes),
            dtypes=tuple(dtypes),
            **draw,
        )
        how = "draws random numbers, at each call anew" if draw else "is run by PyTorch"
        self.notes[f"{node.target} at {self.build.source}: {how}"] = None
        self._remember(made)
        return made[0] if alone else list(made)

    def _recurrent(self, arguments: Sequence[Any]) -> Numbers:
        """The sizes of a recurrence's results. Those of its first states are stated: PyTorch's operator reads
        beyond others."""
        x, first, weights, _, layers, *_, both_ways, batch_first = arguments
        states = first if isinstance(first, (list, tuple)) else [first]
        ways, (gates, width) = 2 if both_ways else 1, weights[1].shape
        count, batch = as_expr(layers * ways), x.shape[0 if batch_first else 1]
        shapes = [(count, batch, width), (count, batch, gates // 4)]  # the second is an LSTM's, of four gates
        for state, shape in zip(states, shapes, strict=False):
            for axis, size in enumerate(shape):
                self.emit.equal(state.shape[axis], size, f"axis {axis} of a recurrence's first state")
        results = [(*x.shape[:2], width * ways), *shapes[: len(states)]]
        return {
            result_place(place, axis): size
            for place, shape in enumerate(results)
            for axis, size in enumerate(shape)
        }

    def _result_size(
        self, values: Sequence[Any], near: Sequence[Expr], axis: int, exact: Expr | None
    ) -> Expr:
        if not all(isinstance(value, int) for value in values):
            exact = size_of(values[0], self.symbols) if self.emit.single else None
            seen = None if exact is None else self.sizes.observed(exact)
            if seen is None:  # known at run time only
                return self.build.system.runtime_size(f"r{axis}")
            values = seen
        if exact is not None and self.sizes.observed(exact) == tuple(values):
            self.emit.require(as_expr(0) <= exact, f"axis {axis} of the result")
            return self.sizes.spell(exact, near)
        if self.emit.single and self.lone.fixed is None:
            return as_expr(self.lone.size(values[0], near))
        if self.emit.single and self.lone.fixed and any(not size.is_const for size in near):
            return self._measured(values, axis)  # a constant, or any size: nothing tells
        if len(set(values)) == 1:
            return as_expr(values[0])
        if (found := self.sizes.explain(tuple(values), near)) is not None:
            self.emit.require(as_expr(0) <= found, f"axis {axis} of the result")
            return found
        return self._measured(values, axis)

    def _measured(self, values: Sequence[Any], axis: int) -> Expr:
        """A size that run time finds, and that had these values in the traces."""
        fresh = self.build.system.runtime_size(f"r{axis}")
        self.sizes.define(fresh, tuple(values))
        return fresh


def _sizes_of(made: Any) -> Sequence[Expr]:
    """The sizes that a later literal may follow."""
    if isinstance(made, Pieces):
        return (made.count,)
    return made.shape if isinstance(made, (Value, Complex)) else ()


def _sizes_among(arguments: Sequence[Any]) -> list[Expr]:
    """The sizes that a call is given."""
    lists = (each if isinstance(each, (list, tuple)) else (each,) for each in arguments)
    return [size for entries in lists for size in entries if isinstance(size, Expr)]


def _gives_complex(node: FxNode) -> bool:
    found = node.meta.get("val")
    return any(_is_complex(each) for each in (found if isinstance(found, (tuple, list)) else [found]))


def _is_complex(tensor: Any) -> bool:
    return isinstance(tensor, (torch.Tensor, TensorType)) and tensor.dtype.is_complex


def _parts_of(results: Sequence[Any]) -> list[Any]:
    """Results with two real ones in place of each complex one."""
    found: list[Any] = []
    for each in results:
        if isinstance(each, Complex):
            found += [each.real, each.imag]
        elif _is_complex(each):
            found += [TensorType(tuple(each.shape), each.dtype.to_real())] * 2
        else:
            found.append(each)
    return found


def _as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """A parameter as it is kept: of a complex one both parts, side by side on a further axis."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _refuse_complex(outputs: Sequence[Value | Complex]) -> None:
    for place, output in enumerate(outputs):
        if aten_complex.is_complex(output):
            raise UnsupportedOperator(f"output {place} is complex, which fits in no answer")


def _resized(target: str, arguments: Sequence[Any]) -> Numbers:
    """The sizes of a result that the call itself gives: each is one number of the program, not two."""
    sizes = (arguments[1] or ()) if target in aten_shape.RESIZINGS else ()
    return {
        result_place(0, arguments[0].rank - len(sizes) + k): as_expr(size) for k, size in enumerate(sizes)
    }


def _holds_number(arguments: Sequence[Any]) -> bool:
    return any(
        isinstance(each, Number) or (isinstance(each, (list, tuple)) and _holds_number(each))
        for each in arguments
    )


_RECURRENCES = frozenset(f"aten.{name}.input" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))

_FLOAT_FORMS = (
    (lambda n: n, float),
    (lambda n: apply("div", const(1.0, FLOAT64), n), lambda n: 1.0 / n),
    (lambda n: apply("sqrt", n), lambda n: n**0.5),
    (lambda n: apply("rsqrt", n), lambda n: n**-0.5),
)


def _name_of(function: Any) -> str:
    """What a call of Python's is named to people."""
    module, name = getattr(function, "__module__", "") or "", getattr(function, "__name__", "")
    if module.startswith("torch._functorch"):  # names of its own
        return "a function that torch.func transforms, as vmap does,"
    return ".".join(filter(None, (module, name))) or str(function)
