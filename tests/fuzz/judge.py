"""Runs one compiled program at drawn sizes and strides beside eager PyTorch and the oracle, and says where it is wrong.

A float agrees as bridge/agreement.py says: error against the oracle's float64 at most 1.5 times eager's own plus a floor;
rounding the exact result to its type is no error. Integers and bools are eager's, or the oracle's."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from dlcb.compiler.bridge.agreement import relative_error
from dlcb.compiler.bridge.emit import to_torch
from dlcb.compiler.errors import CompilerError, IndexRangeError, ShapeError
from dlcb.compiler.expr.node import evaluate
from dlcb.compiler.ir.graph import Graph, Node
from dlcb.compiler.ir.reference import evaluate as oracle
from dlcb.compiler.thunks.model import CompiledModel

from . import draw, spelling
from .compiled import Ready, accepts
from .program import Program, graph

_SIZES = (0, 1, 1, 2, 2, 3, 5, 7, 8, 13, 17)
_LARGEST = 40_000  # elements of one node's grid: the oracle is slow
_FLOORS = {torch.float16: 1e-4, torch.bfloat16: 1e-4, torch.float32: 1e-6, torch.float64: 1e-12}
_RATIO = 1.5
_HOPELESS = 0.03  # a relative error of eager beyond which the program cancels everything and tells nothing


@dataclass
class Verdict:
    """What came of one program. `failures` are lines for people, empty where all agree; `shapes` is how many were run,
    `refused` how many both sides refused, `narrow` how many only we did, `noisy` how many were judged by the program's
    worst eager error because eager happened to round well at that shape."""

    failures: list[str] = field(default_factory=list)
    shapes: int = 0
    refused: int = 0
    narrow: int = 0
    noisy: int = 0


def judge(program: Program, each: Ready, model: CompiledModel, count: int) -> Verdict:
    """`model` at up to `count` tuples of sizes that its guards accept. `each` may come from the bridge; what is exact is
    asked of the program's own graph."""
    verdict, rows, own = Verdict(), [], graph(program)
    dice = random.Random(program.seed)
    parameters = draw.parameters(program)
    for number, sizes in enumerate(drawn_sizes(program, own, each, dice)):
        if verdict.shapes == count or number > 20 * count:
            break
        generator = torch.Generator().manual_seed(number)
        tensors = {x.name: strided(draw.tensor(x, sizes, generator), dice) for x in program.given}
        if not accepts(model, each.graph, sizes):
            verdict.narrow += _eager(program, {**tensors, **parameters}, sizes) is not None
            verdict.refused += 1
            continue
        verdict.shapes += 1
        rows += _run(program, own, model, tensors, parameters, sizes, verdict)
    _settle(rows, verdict)
    return verdict


def drawn_sizes(program: Program, own: Graph, each: Ready, dice: random.Random) -> Iterator[dict[str, int]]:
    """Sizes of the free dims: all 1, all 2, all odd, one 0, then whatever the dice say; nothing too large for the oracle."""
    names = program.size_names
    firsts = [dict.fromkeys(names, 1), dict.fromkeys(names, 2), {n: 3 + 2 * k for k, n in enumerate(names)}]
    firsts += [{n: 0 if n == empty else 4 for n in names} for empty in names]
    seen: list[dict[str, int]] = []
    for number in range(1000):
        sizes = firsts[number] if number < len(firsts) else {n: dice.choice(_SIZES) for n in names}
        sizes = each.bind(sizes)
        if sizes in seen and (names or number):
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


def strided(tensor: torch.Tensor, dice: random.Random) -> torch.Tensor:
    """The same values in other memory: contiguous, transposed, every second element, an offset view, or expanded (then
    with the values of its first row)."""
    kind = dice.choice(("contiguous", "transposed", "stepped", "offset", "expanded"))
    if tensor.dim() == 0 or kind == "contiguous":
        return tensor
    axis = dice.randrange(tensor.dim())
    if kind == "transposed":
        order = dice.sample(range(tensor.dim()), tensor.dim())
        back = [order.index(k) for k in range(tensor.dim())]
        return tensor.permute(order).contiguous().permute(back)
    if kind == "stepped":
        wide = torch.zeros([2 * n if k == axis else n for k, n in enumerate(tensor.shape)], dtype=tensor.dtype)
        view = wide[(slice(None),) * axis + (slice(1, None, 2),)]
    elif kind == "offset":
        view = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype)[3:].view(tensor.shape)
    else:
        return tensor.narrow(axis, 0, min(1, tensor.shape[axis])).expand(tensor.shape)
    view.copy_(tensor)
    return view


# ---- one run ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One float output at one shape. `ideal` is the error of the exact result rounded to its type."""

    what: str
    error: float
    eager_error: float
    ideal: float
    floor: float


def _eager(program: Program, tensors: dict[str, torch.Tensor], sizes: dict[str, int]) -> list[torch.Tensor] | None:
    """Eager PyTorch's outputs; None where it refuses."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # too few elements for a variance
            return spelling.run(program, tensors, sizes)
    except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
        return None


def _exact(
    own: Graph, tensors: dict[str, torch.Tensor], parameters: dict[str, torch.Tensor]
) -> list[torch.Tensor] | CompilerError:
    arrays = {name: _array(x) for name, x in tensors.items()}
    try:
        made = oracle(own, arrays, {name: _array(x) for name, x in parameters.items()})
    except (IndexRangeError, ShapeError) as error:
        return error
    return [torch.from_numpy(array.copy()) for array in made]


def _array(x: torch.Tensor) -> object:
    return (x.double() if x.is_floating_point() else x).contiguous().numpy()


def _run(
    program: Program, own: Graph, model: CompiledModel, tensors: dict[str, torch.Tensor],
    parameters: dict[str, torch.Tensor], sizes: dict[str, int], verdict: Verdict,
) -> list[Row]:  # fmt: skip
    eager = _eager(program, {**tensors, **parameters}, sizes)
    exact = _exact(own, tensors, parameters)
    try:
        ours = model.call(*tensors.values())
    except CompilerError as error:
        if eager is not None:
            verdict.failures.append(f"{sizes}: {type(error).__name__}: {error}, but eager computes it")
        return []
    except RuntimeError as error:  # a library operator that refuses what eager refuses as well
        if eager is not None:
            verdict.failures.append(f"{sizes}: {error}, but eager computes it")
        return []
    if isinstance(exact, CompilerError):
        verdict.failures.append(f"{sizes}: computed, but the oracle says {type(exact).__name__}: {exact}")
        return []
    rows = []
    for k, (mine, right) in enumerate(zip(ours, exact, strict=True)):
        theirs = eager[k] if eager is not None else right.to(to_torch(own.outputs[k].dtype))
        rows += _compare(f"{sizes} output {program.outputs[k]}", mine, theirs, right, verdict)
    return rows


def _compare(what: str, ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, verdict: Verdict) -> list[Row]:
    if ours.shape != eager.shape or ours.dtype != eager.dtype:
        verdict.failures.append(f"{what}: {ours.dtype}{list(ours.shape)}, eager {eager.dtype}{list(eager.shape)}")
        return []
    if not eager.dtype.is_floating_point:
        wrong = (ours != eager) & (ours != exact.to(ours.dtype))
        if bool(wrong.any()):
            place = wrong.nonzero()[0].tolist()
            verdict.failures.append(f"{what}: {int(wrong.sum())} of {wrong.numel()} elements differ; at {place} "
                                    f"{ours[tuple(place)]}, eager {eager[tuple(place)]}")  # fmt: skip
        return []
    ideal = exact.to(eager.dtype)
    same = (ours == eager) | (ours == ideal) | (ours.isnan() & (eager.isnan() | ideal.isnan()))
    counted = ideal.isfinite() & eager.isfinite() | ~same & ideal.isfinite() & ~ours.isfinite() & eager.isfinite()
    odd = ~same & ~counted & ~(ideal.isfinite() & ~eager.isfinite()) & ~(eager.isfinite() & ours.isfinite())
    if bool(odd.any()):
        place = tuple(odd.nonzero()[0].tolist())
        verdict.failures.append(f"{what}: at {list(place)} {ours[place]}, eager {eager[place]}, exact {exact[place]}")
        return []
    found = [relative_error(x[counted], exact[counted]) for x in (ours, eager, ideal)]
    return [Row(what, *found, _FLOORS[eager.dtype])]


def _settle(rows: Sequence[Row], verdict: Verdict) -> None:
    """Eager rounds well by luck where few elements are: the program's worst eager error then stands for it."""
    worst = max((row.eager_error for row in rows if row.eager_error < _HOPELESS), default=0.0)
    for row in rows:
        if row.error <= _RATIO * max(row.eager_error, row.ideal) + row.floor:
            continue
        if row.error <= 2 * _RATIO * worst + row.floor or row.eager_error > _HOPELESS:
            verdict.noisy += 1
            continue
        verdict.failures.append(f"{row.what}: error {row.error:.2e}, eager's own {row.eager_error:.2e}")
