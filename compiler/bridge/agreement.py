"""Does a compiled model agree with eager PyTorch? Shapes are drawn from a signature, its edges first; the
answer is a list of deviations. Agreement means: error against float64 with the same weights at most 1.5
times eager's own error plus a floor of 1e-6 (fp32) or 1e-4 (half types). Fixed tolerances would be wrong:
eager in bfloat16 is itself 1e-2 from float64."""

from __future__ import annotations

import ast
import copy
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dlcb.compiler.bridge.capture import bound
from dlcb.compiler.bridge.flattened import flattened
from dlcb.compiler.bridge.one_device import Arguments, called
from dlcb.compiler.bridge.survived import surviving
from dlcb.compiler.bridge.unchanged import State
from dlcb.compiler.signature import Dim, Signature, compile_expression, symbols_of
from dlcb.compiler.source import ModelSource

Shapes = Mapping[str, tuple[int, ...]]

_FLOORS = {torch.float16: 1e-4, torch.bfloat16: 1e-4, torch.float32: 1e-6, torch.float64: 1e-12}
RATIO = 1.5
_LARGEST_DRAW = 40  # sizes above cost time and show nothing that an odd size below does not
_MOST_ELEMENTS = 1 << 22  # of an input: of many axes, sizes of 40 are more than memory holds


@dataclass(frozen=True)
class Deviation:
    """One comparison. `error` and `eager_error` are norms relative to the
    float64 result's; `agrees` is the verdict."""

    shapes: Shapes
    output: str
    error: float
    eager_error: float
    agrees: bool
    reason: str = ""
    floor: float = 0.0  # the error that is no error at this element type


def draw_sizes(signature: Signature, count: int, seed: int) -> list[dict[str, int]]:
    """At least `count` bindings of the free dims: all at their least sizes, at their greatest and at 1, then
    each at its edges in turn, the least of each in any case, then odd and random sizes between."""
    dims = {
        dim.symbol: dim
        for tensor in signature.inputs
        if tensor.dims is not None
        for dim in tensor.dims
        if isinstance(dim, Dim)
    }
    if not dims:
        return [{}]
    draw = random.Random(seed)
    edges = {symbol: _edges(dim) for symbol, dim in dims.items()}
    bindings = [{s: edge[0] for s, edge in edges.items()}, {s: edge[-1] for s, edge in edges.items()}]
    bindings.append({s: dim.nearest(1) for s, dim in dims.items()})
    for turn in range(max(map(len, edges.values()))):
        for symbol, edge in edges.items():
            if turn < len(edge):
                bindings.append({**{s: _between(dims[s], draw) for s in dims}, symbol: edge[turn]})
    bindings += ({s: _between(dim, draw) for s, dim in dims.items()} for _ in itertools.repeat(None, count))
    related = [_related(signature, _bounded(signature, dims, binding)) for binding in bindings]
    distinct = list({tuple(sorted(b.items())): b for b in related}.values())
    return distinct[: max(count, 3 + len(dims))]


def _bounded(signature: Signature, dims: Mapping[str, Dim], sizes: dict[str, int]) -> dict[str, int]:
    """These sizes, the largest of them halved for as long as an input has too many elements."""
    while any(math.prod(shape) > _MOST_ELEMENTS for shape in shapes_of(signature, sizes).values()):
        largest = max(sizes, key=lambda symbol: sizes[symbol] - dims[symbol].low)
        smaller = dims[largest].nearest(sizes[largest] // 2)
        if smaller >= sizes[largest]:
            break  # they are the least there are
        sizes = {**sizes, largest: smaller}
    return sizes


def _related(signature: Signature, sizes: dict[str, int]) -> dict[str, int]:
    """These sizes, with each that may equal an expression over others so."""
    for guard in signature.guards:
        for node in ast.walk(ast.parse(guard.expression, mode="eval")):
            if not (isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq)):
                continue
            for side, other in itertools.permutations((node.left, node.comparators[0])):
                value = ast.unparse(other)
                if isinstance(side, ast.Name) and symbols_of(value):
                    sizes = {**sizes, side.id: max(compile_expression(value)(sizes), 0)}
                    break
    return sizes


def _edges(dim: Dim) -> list[int]:
    """The least sizes, those around 1 and 2, and the greatest one that is worth running."""
    high = (
        dim.high
        if dim.high is not None and dim.high <= 4 * _LARGEST_DRAW
        else max(_LARGEST_DRAW // 2 + 1, dim.low + 2)
    )
    return sorted({dim.nearest(size) for size in (dim.low, dim.low + 1, 1, 2, high)})


def _between(dim: Dim, draw: random.Random) -> int:
    high = min(dim.high if dim.high is not None else dim.low + _LARGEST_DRAW, dim.low + _LARGEST_DRAW)
    return dim.nearest(draw.randint(max(dim.low, 1), max(high, dim.low, 1)))


def shapes_of(signature: Signature, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shape of every input of known rank for one binding of the free dims."""
    return {
        tensor.name: tuple(sizes[dim.symbol] if isinstance(dim, Dim) else dim for dim in tensor.dims)
        for tensor in signature.inputs
        if tensor.dims is not None
    }


def random_inputs(
    source: ModelSource, shapes: Shapes, seed: int, place: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """Random tensors of these shapes, with values in each input's declared range (floats: normal where none
    is declared), drawn at `place`: the same for the same seed there. In two of three draws what may be a mask
    has its zeros, or its ones, at the end of each row, as padding has."""
    generator = torch.Generator(place).manual_seed(seed)
    tensors = {}
    for declared in source.inputs:
        shape, dtype = shapes[declared.name], getattr(torch, declared.dtype)
        low, high = declared.values or (0, 2)
        if dtype.is_floating_point:
            tensor = torch.randn(shape, generator=generator, dtype=torch.float32, device=place)
            if declared.values:
                tensor = torch.rand(shape, generator=generator, device=place) * (high - low) + low
            tensors[declared.name] = tensor.to(dtype)
        else:
            drawn = torch.randint(int(low), int(high), shape, generator=generator, device=place)
            if seed % 3 and (low, high) == (0, 2) and drawn.dim() > 1:
                drawn = drawn.sort(descending=seed % 3 == 1).values
            tensors[declared.name] = drawn.to(dtype)
    return tensors


@contextmanager
def _without(allowed: Callable[[], bool], allow: Callable[[bool], None]) -> Iterator[None]:
    """What `allow` switches is off inside, and afterwards as it was."""
    before = allowed()
    allow(False)
    try:
        yield
    finally:
        allow(before)


@contextmanager
def without_cudnn() -> Iterator[None]:
    """cuDNN plans every convolution at every new shape, for seconds where it is depthwise, and attention for
    60 ms; PyTorch's own kernels give the same answers, unless cuDNN rounds float32 to TF32."""
    cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
    convolutions = _without(lambda: cudnn.enabled, partial(setattr, cudnn, "enabled"))
    with convolutions, _without(cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp):
        yield


def without_tf32() -> AbstractContextManager[None]:
    """cuDNN rounds the operands of float32 convolutions to TF32 where PyTorch allows it (it does by default),
    but only in those of its kernels that can: an error of 1e-4 then depends on which kernel a shape and a
    memory format get, and says nothing about a program."""
    cudnn = torch.backends.cudnn
    return _without(lambda: cudnn.allow_tf32, partial(setattr, cudnn, "allow_tf32"))


def without_fast_path() -> AbstractContextManager[None]:
    """In place of its own forward, PyTorch runs nn.TransformerEncoder and nn.MultiheadAttention in one fused
    call where it can, which gives zeros at padded positions and raises where everything is padded. What
    torch.export sees, and all of our tiers give, is the forward as it is written."""
    mha = torch.backends.mha
    return _without(mha.get_fastpath_enabled, mha.set_fastpath_enabled)


class _AllWide(TorchDispatchMode):
    """float64 in place of every floating type that a call names."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        named = kwargs.get("dtype")
        if isinstance(named, torch.dtype) and named.is_floating_point:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


class Reference:
    """The eager module, and the same in float64. `names` are those of the inputs, where they go by name."""

    def __init__(self, module: torch.nn.Module, names: Sequence[str] = ()) -> None:
        self.module, self._names = module, names
        self._exact = copy.deepcopy(module).double()
        self._names_types = False  # as far as it was seen
        self._states = {id(each): State(each) for each in (module, self._exact)}
        self._surviving = surviving(module)

    def eager(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return self._called(self.module, inputs)

    def exact(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """In float64 throughout, whatever narrower types the module names."""
        wide = [x.double() if x.is_floating_point() else x for x in inputs]
        with torch.no_grad(), without_cudnn():
            if not self._names_types:
                try:
                    made = self._called(self._exact, wide)
                except RuntimeError:  # a narrower type, which float64 operands do not fit
                    made = None
                if made is not None and all(map(_is_wide, made)):
                    return made
            with _AllWide():
                made = self._called(self._exact, wide)
            self._names_types = True
            return made

    def _called(self, module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """An answer that depends on no other call: what the module keeps for itself is put back, and what it
        writes to its inputs is seen by nobody."""

        def arguments() -> Arguments:
            given = tuple(x.clone() for x in inputs)
            return bound(module, dict(zip(self._names, given, strict=True))) if self._names else (given, {})

        try:
            with without_fast_path(), self._surviving:
                return as_tuple(called(module, inputs[0].device if inputs else "cpu", arguments))
        finally:
            self._states[id(module)].restore()


def _is_wide(x: torch.Tensor) -> bool:
    return x.dtype is torch.float64 or not x.is_floating_point()


def as_tuple(outputs: object) -> tuple[torch.Tensor, ...]:
    """A module's outputs as a flat tuple: tensors in tuples, lists, dictionaries and what else PyTorch
    flattens, in their order. None is left out."""
    leaves = [leaf for leaf in flattened(outputs)[0] if leaf is not None]
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(f"expected tensors as outputs, found {type(leaf).__name__}")
    return tuple(leaves)


def compare(
    call: Callable[..., Sequence[torch.Tensor]],
    reference: Reference,
    inputs: Mapping[str, torch.Tensor],
    names: Sequence[str],
) -> list[Deviation]:
    """One deviation for each output of `call(*inputs)`."""
    tensors = list(inputs.values())
    shapes = {name: tuple(x.shape) for name, x in inputs.items()}
    return deviations(shapes, names, call(*tensors), reference.eager(tensors), reference.exact(tensors))


def deviations(
    shapes: Shapes,
    names: Sequence[str],
    ours: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
) -> list[Deviation]:
    """One deviation for each of our outputs at these input shapes."""
    if len(ours) != len(eager):
        return [Deviation(shapes, "*", 0, 0, False, f"{len(ours)} outputs, eager gives {len(eager)}")]
    return [_deviation(shapes, name, *row) for name, *row in zip(names, ours, eager, exact, strict=False)]


def _deviation(
    shapes: Shapes, name: str, ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor
) -> Deviation:
    if ours.shape != eager.shape or ours.dtype != eager.dtype:
        found, wanted = f"{ours.dtype}{list(ours.shape)}", f"{eager.dtype}{list(eager.shape)}"
        return Deviation(shapes, name, 0, 0, False, f"expected {wanted} as eager gives, found {found}")
    if not eager.dtype.is_floating_point:
        same = bool((ours == eager.to(ours.device)).all())
        return Deviation(shapes, name, 0, 0, same, "" if same else "integers differ from eager's")
    error, eager_error = relative_error(ours, exact), relative_error(eager, exact)
    floor = _FLOORS[eager.dtype]
    return Deviation(shapes, name, error, eager_error, error <= RATIO * eager_error + floor, floor=floor)


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """||found - exact|| / ||exact|| over the finite elements, where `found` lies; infinite where the others
    are not the same."""
    found = found.detach().double()
    exact = exact.detach().to(found.device, torch.float64)
    finite = torch.isfinite(exact)
    if not torch.equal(torch.nan_to_num(found[~finite], nan=1.5), torch.nan_to_num(exact[~finite], nan=1.5)):
        return float("inf")
    found, exact = found[finite], exact[finite]
    scale = float(exact.norm()) or 1.0
    return float((found - exact).norm()) / scale if bool(torch.isfinite(found).all()) else float("inf")
