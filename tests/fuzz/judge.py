"""Runs one compiled program at drawn sizes and strides beside eager PyTorch and the oracle, and says where
it is wrong.

A float agrees as bridge/agreement.py says: error against the oracle's float64 at most 1.5 times eager's own
plus a floor; rounding the exact result to its type is no error. Integers and bools are eager's, or the
oracle's.

Eager's own error is one draw, and may be small by luck where a program cancels or amplifies. What is beyond
it is therefore held against the error that rounding alone would cause: the oracle runs again with every
rounded value a few units off."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from dlcb.compiler.bridge.agreement import relative_error
from dlcb.compiler.bridge.emit import from_torch, to_torch
from dlcb.compiler.dtype import BFLOAT16, FLOAT16
from dlcb.compiler.errors import CompilerError, IndexRangeError, ShapeError
from dlcb.compiler.expr.node import evaluate
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Graph, GraphBuilder, Node, Value
from dlcb.compiler.ir.reference import evaluate as oracle
from dlcb.compiler.passes.decompose import decompose
from dlcb.compiler.thunks.model import CompiledModel

from . import draw, spelling
from .compiled import Ready, accepts
from .declared import array, fixed, misdeclared
from .program import Input, Program, Step, graph, types

_SIZES = (0, 1, 1, 2, 2, 3, 5, 6, 7, 8, 13, 17, 32, 41, 70)
_WIDTHS = (131, 264, 520, 517, 1, 128, 1032, 66, 0, 256, 515)
_CPU = torch.device("cpu")
_DISTINCT = 60  # tries; a program of few sizes then runs at the same ones with other strides and values
_HELD = 3  # shapes at which the oracle itself is held against PyTorch
_LARGEST = 40_000  # elements of one node's grid: the oracle is slow
_FLOORS = {torch.float16: 1e-4, torch.bfloat16: 1e-4, torch.float32: 1e-6, torch.float64: 1e-12}
_RATIO = 1.5
_UNITS, _FEW_UNITS = {FLOAT16: 2**-10, BFLOAT16: 2**-7}, 2**-21
_WITH_RULE = frozenset(name for name, op in ops.OPS.items() if op.at is not None)
_SUMMED = 2**-19  # where numbers are added up: 128 equal ones in float32, before they join a sum in double


@dataclass
class Verdict:
    """What came of one program. `failures` are lines for people, empty where all agree; `shapes` is how
    many were run, `refused` how many both sides refused, `narrow` how many only we did, `noisy` how many
    outputs were beyond eager's own error, but within what rounding does to the program, `unread` how many
    shapes had an index out of range that no output depends on."""

    failures: list[str] = field(default_factory=list)
    shapes: int = 0
    refused: int = 0
    narrow: int = 0
    noisy: int = 0
    unread: int = 0


def judge(program: Program, each: Ready, model: CompiledModel, count: int) -> Verdict:
    """`model` at up to `count` tuples of sizes that its guards accept. `each` may come from the bridge;
    what is exact is asked of the program's own graph."""
    verdict, own = Verdict(), graph(program)
    dice = random.Random(program.seed)
    parameters = draw.parameters(program)
    for number, sizes in enumerate(drawn_sizes(program, own, each, dice)):
        if verdict.shapes == count or number > 20 * count:
            break
        generator = torch.Generator().manual_seed(number)
        aligned = bool(number % 2)
        tensors = {x.name: strided(draw.tensor(x, sizes, generator), dice, aligned) for x in program.given}
        if not accepts(model, each.graph, sizes):
            verdict.narrow += eager(program, {**tensors, **parameters}, sizes, _CPU) is not None
            verdict.refused += 1
            continue
        if verdict.shapes < _HELD:
            complaint = misdeclared(program, {**tensors, **parameters}, sizes)
            verdict.failures += [f"{sizes}: {complaint}"] if complaint else []
        verdict.shapes += 1
        _run(program, own, model, tensors, parameters, sizes, verdict)
    return verdict


def drawn_sizes(program: Program, own: Graph, each: Ready, dice: random.Random) -> Iterator[dict[str, int]]:
    """Sizes of the free dims: all 1, all 2, all odd, one 0, then whatever the dice say, and for a dim called
    width one of a row's; nothing too large for the oracle."""
    names = program.size_names
    firsts = [dict.fromkeys(names, 1), dict.fromkeys(names, 2), {n: 3 + 2 * k for k, n in enumerate(names)}]
    firsts += [{n: 0 if n == empty else 4 for n in names} for empty in names]
    seen: list[dict[str, int]] = []
    for number in range(1000):
        sizes = firsts[number] if number < len(firsts) else {n: dice.choice(_SIZES) for n in names}
        sizes |= {n: _WIDTHS[number % len(_WIDTHS)] for n in names if n == "width"}
        sizes = each.bind(sizes)
        if sizes in seen and number < _DISTINCT:
            continue
        seen.append(sizes)
        if all(_grid(node, sizes) <= _LARGEST for node in own.nodes):
            yield sizes


def _grid(node: Node, sizes: dict[str, int]) -> int:
    extents = node.op.over(*(v.type for v in node.inputs), **node.attributes) if node.op.over else ()
    total = 1
    for extent in (*node.result.shape, *extents):
        try:
            total *= evaluate(extent, sizes)
        except (KeyError, ZeroDivisionError):
            return 0
    return total


def strided(tensor: torch.Tensor, dice: random.Random, aligned: bool = False) -> torch.Tensor:
    """The same values in other memory: contiguous, transposed, every second element, an offset view unless it
    is to be `aligned`, or expanded (then with the values of its first row)."""
    kind = dice.choice(("contiguous", "transposed", "stepped", "offset", "expanded"))
    if tensor.dim() == 0 or kind == "contiguous" or (aligned and kind == "offset"):
        return tensor
    axis = dice.randrange(tensor.dim())
    if kind == "transposed":
        order = dice.sample(range(tensor.dim()), tensor.dim())
        back = [order.index(k) for k in range(tensor.dim())]
        return tensor.permute(order).contiguous().permute(back)
    if kind == "stepped":
        wide = torch.zeros(
            [2 * n if k == axis else n for k, n in enumerate(tensor.shape)], dtype=tensor.dtype
        )
        view = wide[(slice(None),) * axis + (slice(1, None, 2),)]
    elif kind == "offset":
        view = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype)[3:].view(tensor.shape)
    else:
        return tensor.narrow(axis, 0, min(1, tensor.shape[axis])).expand(tensor.shape)
    view.copy_(tensor)
    return view


# ---- one run -------------------------------------------------------------------------------------


def eager(
    program: Program, tensors: dict[str, torch.Tensor], sizes: dict[str, int], device: torch.device
) -> list[torch.Tensor] | None:
    """Eager PyTorch's outputs; None where it refuses."""
    try:
        here = {name: x.to(device) for name, x in tensors.items()}
        with torch.no_grad(), torch.device(device), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # too few elements for a variance
            return [x.cpu() for x in spelling.run(program, here, sizes)]
    except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
        return None


def _exact(
    own: Graph, tensors: dict[str, torch.Tensor], parameters: dict[str, torch.Tensor]
) -> list[torch.Tensor] | CompilerError:
    arrays = {name: array(x) for name, x in tensors.items()}
    try:
        made = oracle(own, arrays, {name: array(x) for name, x in parameters.items()})
    except (IndexRangeError, ShapeError) as error:
        return error
    except AssertionError as error:  # sizes that the program's own guards exclude, those of a bridge do not
        return ShapeError(str(error))
    return [torch.from_numpy(array.copy()) for array in made]


def _run(
    program: Program,
    own: Graph,
    model: CompiledModel,
    tensors: dict[str, torch.Tensor],
    parameters: dict[str, torch.Tensor],
    sizes: dict[str, int],
    verdict: Verdict,
) -> None:
    device = model.device.torch_device
    exact = _exact(own, tensors, parameters)
    fatal = isinstance(exact, CompilerError) or _has_no_heads(own, sizes)  # on a GPU, to the whole process
    where = _CPU if fatal else device
    theirs = eager(program, {**tensors, **parameters}, sizes, where)
    try:
        ours = [x.cpu() for x in model.call(*(_moved(x, device) for x in tensors.values()))]
    except (
        CompilerError,
        RuntimeError,
    ) as error:  # of ours, or of a library that refuses what eager refuses as well
        if theirs is not None:
            verdict.failures.append(f"{sizes}: {type(error).__name__}: {error}, but eager computes it")
        torch.zeros(1, device=device).item()  # raises on a GPU that is left broken: eager fails there, too
        return
    if isinstance(exact, CompilerError):
        if isinstance(exact, IndexRangeError) and _is_unread(program, {**tensors, **parameters}, ours):
            verdict.unread += 1
        else:
            verdict.failures.append(f"{sizes}: computed, but the oracle says {type(exact).__name__}: {exact}")
        return
    for k, (mine, right) in enumerate(zip(ours, exact, strict=True)):
        other = theirs[k] if theirs is not None else right.to(to_torch(own.outputs[k].dtype))
        complaint = _complaint(mine, other, right)
        if not complaint:
            continue
        if mine.is_floating_point() and _is_noise(program, {**tensors, **parameters}, k, mine, right):
            verdict.noisy += 1
        else:
            verdict.failures.append(f"{sizes} output {program.outputs[k]}: {complaint}")


def _has_no_heads(own: Graph, sizes: dict[str, int]) -> bool:
    """Does attention meet no heads, by whose number PyTorch 2.11 divides?"""
    return any(n.op is ops.attention and not evaluate(n.inputs[0].shape[1], sizes) for n in own.nodes)


def _moved(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`x` on the device, as far off alignment as it was."""
    before = x.storage_offset()
    if x.device == device or not (before and x.is_contiguous()):
        return x.to(device)
    return torch.zeros(before + x.numel(), dtype=x.dtype, device=device)[before:].view(x.shape).copy_(x)


def _complaint(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> str:
    """What is wrong with one output; empty where it agrees."""
    if ours.shape != eager.shape or ours.dtype != eager.dtype:
        return f"{ours.dtype}{list(ours.shape)}, eager {eager.dtype}{list(eager.shape)}"
    ideal = exact.to(eager.dtype)
    if not eager.dtype.is_floating_point:
        return first_difference(ours, eager, exact, (ours != eager) & (ours != ideal))
    # NaN and infinities: eager's or the exact ones; where eager overflows on the way, a finite result is
    # judged by the exact one, and at a pole, which rounding has moved for eager too, by none
    same = (ours == eager) | (ours == ideal) | (ours.isnan() & (eager.isnan() | ideal.isnan()))
    odd = ~same & ~(ours.isfinite() & (ideal.isfinite() | (eager.isfinite() & ideal.isinf())))
    if bool(odd.any()):
        return first_difference(ours, eager, exact, odd)
    kind = torch.finfo(eager.dtype)
    grain = 8 * kind.smallest_normal * kind.eps  # at the bottom of the type, what rounds up stays there
    counted = ours.isfinite() & ideal.isfinite() & eager.isfinite() & ((ours.double() - exact).abs() > grain)
    error, eager_error, least = (relative_error(x[counted], exact[counted]) for x in (ours, eager, ideal))
    if error <= _RATIO * max(eager_error, least) + _FLOORS[eager.dtype]:
        return ""
    return f"error {error:.2e}, eager's own {eager_error:.2e}"


def first_difference(
    ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, wrong: torch.Tensor
) -> str:
    """The first element that is wrong, in words; empty where none is."""
    if not bool(wrong.any()):
        return ""
    place = tuple(wrong.nonzero()[0].tolist())
    what = f"{int(wrong.sum())} of {wrong.numel()} elements, at {list(place)}"
    return f"{what} {ours[place]}, eager {eager[place]}, exact {exact[place]}"


def _is_noise(
    program: Program, tensors: dict[str, torch.Tensor], k: int, ours: torch.Tensor, exact: torch.Tensor
) -> bool:
    """Does rounding alone move the output as far as ours is from the exact one?"""
    finite = ours.isfinite() & exact.to(ours.dtype).isfinite()
    worst = 0.0
    for attempt in range(4):
        moved = shaken(program, tensors, torch.Generator().manual_seed(attempt))[k]
        worst = max(worst, relative_error(moved[finite], exact[finite]))
    return relative_error(ours[finite], exact[finite]) <= 4 * worst


def shaken(
    program: Program, tensors: dict[str, torch.Tensor], generator: torch.Generator
) -> list[torch.Tensor]:
    """The outputs in float64 with every rounded value, inside composites too, moved by up to four units in
    the last place of a float32, more where it is a sum or interpolated, or one of the half type that it may
    have been kept in."""
    kinds = types(program)

    def moved(step: Step, node: Node, operands: Sequence[torch.Tensor], result: torch.Tensor) -> torch.Tensor:
        places = node.op is ops.upsample_bilinear  # whose shares have the error of places, which are larger
        if step.name not in program.rounded or (node.op.kind in ("move", "index", "create") and not places):
            return result
        unit = _SUMMED if node.op.fold == "sum" or places else _FEW_UNITS
        unit = max(unit, _UNITS.get(kinds[step.name], 0.0))
        dice = 2 * torch.rand(result.shape, generator=generator, dtype=torch.float64) - 1
        if node.op is ops.gelu:  # 1 + erf(x) cancels where x is far below 0
            result = result + operands[0] * (unit * dice)
        return result * (1 + unit * dice) if result.is_floating_point() else result

    return _stepwise(program, tensors, moved)


def _is_unread(program: Program, tensors: dict[str, torch.Tensor], ours: list[torch.Tensor]) -> bool:
    """Are the outputs ours whatever an operator with a bad index gives?"""
    for attempt in range(4):
        generator = torch.Generator().manual_seed(attempt)

        def anything(value: Value, dice: torch.Generator = generator) -> torch.Tensor:
            made = draw.tensor(Input(value.name, value.shape, value.dtype), {}, dice)
            return made.double() if made.is_floating_point() else made

        made = _stepwise(program, tensors, lambda step, node, operands, result: result, anything)
        if any(_complaint(mine, right.to(mine.dtype), right) for mine, right in zip(ours, made, strict=True)):
            return False
    return True


def _stepwise(
    program: Program,
    tensors: dict[str, torch.Tensor],
    after: Callable[[Step, Node, Sequence[torch.Tensor], torch.Tensor], torch.Tensor],
    instead: Callable[[Value], torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """The outputs by the oracle, one operator at a time: `after` may change a result, `instead` gives one
    where an index is out of range."""
    values = {name: (x.double() if x.is_floating_point() else x) for name, x in tensors.items()}
    sizes = {
        s.value: n
        for x in program.inputs
        for s, n in zip(x.shape, tensors[x.name].shape, strict=True)
        if s.op == "size"
    }
    for step in program.steps:
        build = GraphBuilder(step.name)
        operands = [
            build.input(name, values[name].shape, from_torch(values[name].dtype)) for name in step.operands
        ]
        attributes = {name: fixed(value, sizes) for name, value in step.attributes.items()}
        value = build.apply(ops.OPS[step.op], *operands, **attributes)
        one = decompose(build.build(value), keep=_WITH_RULE)
        known = {v: values[v.name] for v in one.inputs}
        try:
            for node in one.nodes:
                operands = [known[v] for v in node.inputs]
                known[node.result] = after(step, node, operands, _alone(node, operands))
            values[step.name] = known[one.outputs[0]]
        except IndexRangeError:
            if instead is None:
                raise
            values[step.name] = instead(value)
    return [values[name] for name in program.outputs]


def _alone(node: Node, tensors: list[torch.Tensor]) -> torch.Tensor:
    """What one operator makes of these."""
    build = GraphBuilder(node.op.name)
    operands = [build.input(f"x{k}", v.shape, v.dtype) for k, v in enumerate(node.inputs)]
    graph = build.build(build.apply(node.op, *operands, **node.attributes))
    made = oracle(graph, {v.name: x.numpy() for v, x in zip(operands, tensors, strict=True)})[0]
    return torch.from_numpy(made.copy())
