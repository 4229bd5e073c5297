"""Every row of the ATen tables against eager PyTorch: small programs, captured at one size, evaluated by
the oracle. Values, shapes and result types agree; nothing is left to an eager node."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from captured_programs import Program, assert_agrees
from torch import Tensor
from torch.nn import functional as F

from dlcb.compiler.bridge import aten, capture, lower
from dlcb.compiler.bridge.generalize import Captured
from dlcb.compiler.shapes.system import System

X = torch.linspace(-2.5, 2.5, 24).reshape(2, 3, 4)
POSITIVE = X.abs() + 0.5
UNIT = X / 3
WHOLE = torch.arange(-6, 18).reshape(2, 3, 4)
MASK = WHOLE % 3 == 0
IMAGE = torch.linspace(-1, 1, 2 * 4 * 6 * 8).sin().reshape(2, 4, 6, 8)
ROWS = torch.tensor([[2, 0, 1], [1, 1, 0]])

UNARY = (
    *("exp", "exp2", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "erf", "sigmoid", "relu"),
    *("neg", "abs", "sign", "floor", "ceil", "trunc", "round", "isnan", "isinf", "isfinite", "square"),
)
OF_POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal")

PROGRAMS: list[tuple[Callable[..., object], tuple[Tensor, ...]]] = [
    *((getattr(torch, name), (X,)) for name in UNARY),
    *((getattr(torch, name), (POSITIVE,)) for name in OF_POSITIVE),
    *((getattr(torch, name), (UNIT,)) for name in ("asin", "acos")),
    *(
        (getattr(torch, name), (WHOLE,))
        for name in ("exp", "sqrt", "bitwise_not", "logical_not", "neg", "reciprocal")
    ),
    # other names of the same operators
    *(
        (getattr(torch, name), (X, UNIT))
        for name in ("multiply", "subtract", "greater", "less_equal", "not_equal")
    ),
    (lambda x, y: torch.concatenate([torch.negative(x), torch.absolute(y)]).divide_(3), (X, UNIT)),
    (lambda x: torch.swapaxes(torch.moveaxis(x, 0, 2), 0, 1), (X,)),
    # arithmetic, with every kind of promotion
    (lambda x: x + 1, (WHOLE,)),
    (lambda x: x + 1.5, (WHOLE,)),
    (lambda x: x + 1, (MASK,)),
    (lambda x: 2 - x, (X,)),
    (lambda x: x * 3, (MASK,)),
    (lambda x: x / 2, (WHOLE,)),
    (lambda x: x // 2, (WHOLE,)),
    (lambda x: x % 3, (WHOLE,)),
    (lambda x: x // 0.7, (X,)),
    (lambda x: x % 0.7, (X,)),
    (lambda x: torch.fmod(x, 0.7), (X,)),
    (lambda x, y: x + y, (X, WHOLE)),
    (lambda x, y: x * y, (X.double(), X)),
    (lambda x, y: x + y, (X, torch.tensor(2.0).double())),
    (lambda x, y: x - y, (WHOLE.int(), WHOLE)),
    (lambda x, y: x / y, (WHOLE, WHOLE * 2 + 1)),
    (lambda x, y: torch.add(x, y, alpha=3), (X, UNIT)),
    (lambda x, y: torch.sub(x, y, alpha=2), (X, UNIT)),
    (lambda x: torch.div(x, 2, rounding_mode="trunc"), (WHOLE,)),
    (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (WHOLE.int(), WHOLE.int() * 2 + 1)),
    (lambda x: torch.div(x, 0.7, rounding_mode="floor"), (X,)),
    *((lambda x, p=p: x**p, (POSITIVE,)) for p in (1, 2, 3, 0.5, -0.5, -1, -2, 1.7)),
    (lambda x: 2.0**x, (X,)),
    (lambda x, y: x**y, (POSITIVE, X)),
    (lambda x: x**2, (WHOLE,)),
    (torch.atan2, (X, POSITIVE)),
    (torch.maximum, (X, UNIT)),
    (torch.minimum, (X, WHOLE)),
    (torch.lerp, (X, UNIT, UNIT)),
    (lambda x: torch.clamp(x, -1, 1), (X,)),
    (lambda x: torch.clamp(x, max=0.5), (WHOLE,)),
    (lambda x: x.clamp(min=0), (X,)),
    (lambda x: x.clamp_min(0.25), (X,)),
    (lambda x: x.clamp_max(0.25), (X,)),
    (torch.addcmul, (X, UNIT, UNIT)),
    (lambda x, y: torch.addcdiv(x, y, y, value=0.5), (X, POSITIVE)),
    *(
        (lambda x, y, f=f: f(x, y), (X, UNIT))
        for f in (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)
    ),
    (lambda x: x > 1, (WHOLE,)),
    (lambda x: x == 0.5, (X,)),
    (torch.logical_and, (MASK, WHOLE)),
    (torch.logical_or, (MASK, X)),
    (torch.logical_xor, (MASK, MASK)),
    (lambda x, y: x & y, (MASK, MASK)),
    (lambda x, y: x | y, (WHOLE, WHOLE + 1)),
    (lambda x: x ^ 5, (WHOLE,)),
    (torch.where, (MASK, X, UNIT)),
    (lambda m, x: torch.where(m, x, 0.0), (MASK, X)),
    (lambda m, x: torch.where(m, 1.0, x), (MASK, X)),
    (lambda x, m: x.masked_fill(m, -1e9), (X, MASK)),
    (lambda x: x.nan_to_num(0.0), (X / 0,)),
    (lambda x: x.to(torch.float64), (X,)),
    (lambda x: x.long(), (X,)),
    (lambda x: x.bool(), (WHOLE,)),
    (lambda x, y: x.to(y), (WHOLE, X)),
    (lambda x: F.dropout(x.clone().contiguous().detach(), 0.5, False), (X,)),
    (lambda x: x.type_as(x), (X,)),
    # activations
    *(
        (f, (X,))
        for f in (
            F.gelu,
            F.silu,
            F.relu6,
            F.hardtanh,
            F.hardsigmoid,
            F.hardswish,
            F.leaky_relu,
            F.elu,
            F.celu,
            F.selu,
            F.softplus,
            F.mish,
            F.logsigmoid,
        )
    ),
    (lambda x: F.gelu(x, approximate="tanh"), (X,)),
    (F.prelu, (IMAGE, torch.tensor([0.1, 0.2, 0.3, 0.4]))),
    (F.prelu, (X, torch.tensor([0.25]))),
    (lambda x: F.glu(x, -1), (X,)),
    # shapes
    (lambda x: x.view(2, -1), (X,)),
    (lambda x: x.reshape(-1), (X,)),
    (lambda x: x.flatten(1), (X,)),
    (lambda x: x.unflatten(2, (2, -1)), (X,)),
    (lambda x: x.unsqueeze(-1).squeeze(-1), (X,)),
    (lambda x: x[:, :1].squeeze(), (X,)),
    (lambda x: F.pixel_shuffle(x, 2), (IMAGE,)),
    (lambda x: F.pixel_unshuffle(x, 2), (IMAGE,)),
    (lambda x: x.permute(2, 0, -2), (X,)),
    (lambda x: x.transpose(0, -1), (X,)),
    (lambda x: x[0].t(), (X,)),
    (lambda x: x.mT, (X,)),
    (lambda x: x.movedim(0, -1), (X,)),
    (lambda x: x[:1].expand(5, -1, 4), (X,)),
    (lambda x, y: x[:1].expand_as(y), (X, X)),
    (lambda x: x.repeat(2, 1, 1, 3), (X,)),
    (lambda x: torch.tile(x, (2,)), (X,)),
    (lambda x: x.repeat_interleave(2, 1), (X,)),
    (lambda x: x[:, 1:-1, ::2], (X,)),
    (lambda x: x.narrow(2, 1, 2), (X,)),
    (lambda x: x[:, -1], (X,)),
    (lambda x: sum(x.unbind(1)), (X,)),
    (lambda x: x.split(3, -1), (X,)),
    (lambda x: x.split([1, 3], -1), (X,)),
    (lambda x: x.chunk(2, 2), (X,)),
    (lambda x, y: torch.cat([x, y], 1), (X, WHOLE)),
    (lambda x, y: torch.stack([x, y], -1), (X, UNIT)),
    (lambda x: x.flip(0, 2), (X,)),
    (lambda x: x.roll((1, -2), (0, 2)), (X,)),
    (lambda x: x.roll(5), (X,)),
    (lambda x: F.pad(x, (1, 2, 0, 1), value=7.0), (X,)),
    (lambda x: F.pad(x, (-1, 2)), (X,)),
    (lambda x: F.pad(x, (2, 1), mode="reflect"), (X,)),
    (lambda x: F.pad(x, (2, 1), mode="replicate"), (X,)),
    (lambda x: F.pad(x, (2, 1), mode="circular"), (X,)),
    (lambda x: x.tril(1), (X,)),
    (lambda x: x.triu(-1), (X,)),
    (lambda x: (x.unfold(1, 2, 1), x.unfold(-1, 3, 2)), (X,)),
    (lambda x: (x.rot90(), x.rot90(-1, (1, 2)), x.rot90(2), x.rot90(4)), (X,)),
    (lambda x: F.unfold(x, (3, 2), dilation=(1, 2), padding=(1, 0), stride=(2, 1)), (IMAGE,)),
    (lambda x: F.unfold(x[0], 2), (IMAGE,)),
    (lambda x: F.channel_shuffle(x, 2), (X[:, :2],)),
    (lambda x, y: F.cosine_similarity(x, y, -1), (X, X.flip(0))),
    (lambda x: F.cosine_similarity(x * 0, x[0], 2), (X,)),
    (lambda x: (F.pairwise_distance(x, x.flip(1)), F.pairwise_distance(x, x[0], 1, keepdim=True)), (X,)),
    (lambda x: (torch.linalg.norm(x, dim=-1), torch.linalg.norm(x), torch.linalg.norm(x, 1, 1)), (X,)),
    (lambda x: (*x.aminmax(), *x.aminmax(dim=1, keepdim=True)), (X,)),
    (lambda x: (F.threshold(x, 0.1, 7.0), F.rrelu(x), x.sigmoid().logit(), x.logit(0.2)), (X,)),
    (lambda x: (x.diagonal(1), x.diagonal(-1, 1, 2), x.diagonal(dim1=-1, dim2=0)), (X,)),
    (lambda x: (torch.diag(x[0], 1), torch.diag(x[0, 0], -2)), (X,)),
    (lambda x: (torch.diag_embed(x), torch.diag_embed(x, -1, 0, 2)), (X,)),
    (lambda x: torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"), (X,)),
    (lambda i: F.embedding(i, torch.eye(4)), (ROWS,)),
    (lambda x, i: x.gather(1, i), (X[:, :, 0], ROWS)),
    (lambda x, i: x.index_select(1, i[0]), (X, ROWS)),
    (lambda x, i: x[i[:, :1], i[:, None]], (X.permute(1, 2, 0), ROWS)),
    (lambda x, i: x[:, i - 3], (X, ROWS)),
    (lambda i: F.one_hot(i, 4), (ROWS,)),
    # creation
    (lambda x: torch.full((2, 3), 7) + x[:, :, 0], (X,)),
    (lambda x: torch.full_like(x, 2.5), (X,)),
    (lambda x: x.new_full((2,), 3), (X,)),
    (lambda x: torch.zeros(3) + torch.ones(3) + x[0, :, 0], (X,)),
    (lambda x: torch.zeros_like(x) + torch.ones_like(x), (X,)),
    (lambda x: x.new_zeros(2, 2), (WHOLE,)),
    (lambda x: x.new_ones(2, 2), (X,)),
    (lambda x: x * torch.arange(4), (X,)),
    (lambda x: torch.arange(1, 9, 2) + x[0, 0], (X,)),
    (lambda x: torch.arange(4.0) * x, (X,)),
    (lambda x: torch.eye(4) * x[:, :1], (X,)),
    # reductions
    *(
        (lambda x, f=f: f(x), (X,))
        for f in (
            torch.sum,
            torch.mean,
            torch.prod,
            torch.var,
            torch.std,
            torch.max,
            torch.min,
            torch.amax,
            torch.amin,
            torch.argmax,
            torch.argmin,
            torch.count_nonzero,
        )
    ),
    *(
        (lambda x, f=f: f(x, dim=1, keepdim=True), (X,))
        for f in (
            torch.sum,
            torch.mean,
            torch.var,
            torch.std,
            torch.amax,
            torch.amin,
            torch.argmax,
            torch.argmin,
        )
    ),
    (lambda x: x.sum((0, -1)), (WHOLE,)),
    (lambda x: x.sum(), (MASK,)),
    (lambda x: x.mean(-1, dtype=torch.float64), (X,)),
    (lambda x: x.prod(1), (X,)),
    (lambda x: x.max(1), (X,)),
    (lambda x: x.min(-1, keepdim=True), (X,)),
    (lambda x: x.any(1), (MASK,)),
    (lambda x: x.all(), (MASK,)),
    (lambda x: torch.var_mean(x, 1), (X,)),
    (lambda x: torch.var(x, 1, correction=0), (X,)),
    (lambda x: x.std(1, unbiased=False), (X,)),
    (lambda x: torch.linalg.vector_norm(x, 2, 1), (X,)),
    (lambda x: torch.linalg.vector_norm(x, 1, -1), (X,)),
    (lambda x: x.norm(dim=-1), (X,)),
    (lambda x: torch.linalg.vector_norm(x, float("inf"), -1), (X,)),
    (lambda x: x.logsumexp(-1), (X,)),
    (lambda x: x.softmax(1), (X,)),
    (lambda x: x.log_softmax(-1), (X,)),
    (lambda x: x.cumsum(1), (X,)),
    (lambda x: x.cumsum(-1), (MASK,)),
    (lambda x: x.diff(), (X,)),
    (lambda x: x.diff(2, 1), (WHOLE,)),
    (lambda x: x.diff(9, 1), (X,)),
    (lambda x: x.diff(), (MASK,)),
    (lambda x, y: torch.diff(x, dim=1, prepend=y[:, :2], append=x[:, :1]), (WHOLE, X)),
    # writes and einsum
    (lambda x: torch.diagonal_scatter(x, x[:, 0, :2] * 2, 1, 2, 1), (X[:, :3],)),
    (lambda x: torch.index_put(x, [x > 0], torch.tensor(7)), (X,)),
    (lambda x: torch.ops.aten.index_put(x, [None, x[0] > 0], torch.ones(1)), (X,)),
    (lambda x: torch.select_scatter(x, x[:, 0] * 2, 1, -1), (X,)),
    (lambda x: torch.slice_scatter(x, x[:, 1:3] * 2, 1, 1, 3), (X,)),
    (lambda x: torch.slice_scatter(x, x[:, :9] + 1, 1, 0, 9), (X,)),
    (lambda x, y: torch.einsum("bij,bkj->bik", x, y), (X, X + 1)),
    (lambda x, y: torch.einsum("bij,jk->kbi", x, y), (X, X[0].T)),
    (lambda x, y: torch.einsum("i,j->ij", x, y), (X[0, 0], X[0, 1])),
    (lambda x, y: torch.einsum("bij,bij->b", x, y), (X, X + 1)),
    # networks
    (F.linear, (X, torch.ones(5, 4) / 3, torch.ones(5))),
    (F.linear, (X, torch.ones(5, 4))),
    (torch.matmul, (X, X.mT)),
    (torch.bmm, (X, X.mT)),
    (torch.mm, (X[0], X[0].T)),
    (torch.mv, (X[0], X[0, 0])),
    (torch.dot, (X[0, 0], X[0, 1])),
    (torch.outer, (X[0, 0], X[0, 1])),
    (lambda b, x, y: torch.addmm(b, x, y, beta=2, alpha=0.5), (torch.ones(3), X[0], X[1].T)),
    (torch.baddbmm, (torch.ones(2, 3, 3), X, X.mT)),
    (lambda x, w: F.conv2d(x, w, stride=2, padding=1), (IMAGE, torch.ones(3, 4, 3, 3) / 9)),
    (
        lambda x, w: F.conv2d(x, w, padding="same", groups=2, dilation=(1, 2)),
        (IMAGE, torch.ones(4, 2, 2, 3) / 9),
    ),
    (lambda x, w: F.conv1d(x, w, torch.ones(2)), (X, torch.ones(2, 3, 2))),
    (lambda x, w: F.conv2d(x[0], w), (IMAGE, torch.ones(3, 4, 2, 2))),
    (lambda x: F.layer_norm(x, (3, 4)), (X,)),
    (lambda x: F.layer_norm(x, (4,), torch.arange(4.0), torch.ones(4)), (X,)),
    (lambda x: F.rms_norm(x, (4,), torch.arange(4.0), 1e-6), (X,)),
    (lambda x: F.rms_norm(x * 1e-4, (4,), torch.arange(4.0)), (X,)),
    (lambda x: F.group_norm(x, 2, torch.arange(4.0), torch.ones(4)), (IMAGE,)),
    (
        lambda x: F.batch_norm(x, torch.ones(4), torch.arange(4.0) + 1, torch.arange(4.0), torch.ones(4)),
        (IMAGE,),
    ),
    *(
        (lambda x, given=given: F.batch_norm(x, None, None, *given, training=True), (IMAGE,))
        for given in ((), (torch.arange(4.0),), (torch.arange(4.0), torch.ones(4)))
    ),
    (lambda w: F.batch_norm(w.reshape(1, 4, -1), None, None, training=True, momentum=0.0), (IMAGE,)),
    (lambda x: F.batch_norm(x[0], None, None, training=True), (IMAGE[..., 0],)),
    (F.instance_norm, (IMAGE,)),
    (lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)),
    (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (IMAGE,)),
    (lambda x: F.max_pool1d(x, 2), (X,)),
    (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (IMAGE,)),
    (lambda x: F.avg_pool2d(x, 2), (IMAGE,)),
    (lambda x: F.avg_pool1d(x, 2), (X,)),
    (lambda x: F.adaptive_avg_pool2d(x, 1), (IMAGE,)),
    (lambda x: F.adaptive_avg_pool2d(x, (4, 3)), (IMAGE,)),
    (lambda x: F.adaptive_avg_pool1d(x, 2), (X,)),
    (lambda x: F.interpolate(x, scale_factor=2), (IMAGE,)),
    (lambda x: F.interpolate(x, size=(9, 5)), (IMAGE,)),
    (lambda x: F.interpolate(x, size=(9, 5), mode="bilinear"), (IMAGE,)),
    (lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", align_corners=True), (IMAGE,)),
    (F.scaled_dot_product_attention, (IMAGE, IMAGE, IMAGE)),
    (
        lambda q, m: F.scaled_dot_product_attention(q, q, q, m, scale=0.3),
        (IMAGE, torch.ones(6, 6).tril().bool()),
    ),
    (
        lambda q: F.scaled_dot_product_attention(q, q[:, :2], q[:, :2], is_causal=True, enable_gqa=True),
        (IMAGE,),
    ),
    (lambda x: x.bfloat16().float() + 0.1, (X,)),
    (lambda x: (x.half() * 0.5).sum(-1), (X,)),
    # in place
    (lambda x: (x + 1).mul_(2).relu_().add_(1), (X,)),
    (lambda x: x.clone().masked_fill_(x > 0, 0.0), (X,)),
]


def in_own_operators(module: torch.nn.Module, inputs: dict[str, Tensor]) -> Captured:
    program = capture.trace(module, inputs)
    lowered = lower.lower(
        "row", [program], [{}], {name: tuple(x.shape) for name, x in inputs.items()}, System()
    )
    return Captured(lowered.graph, lowered.parameters, (), (), (), (), lowered.notes, 0.0)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_rows_mean_what_pytorch_means(program: tuple[Callable[..., object], tuple[Tensor, ...]]) -> None:
    function, operands = program
    module = Program(function).eval()
    inputs = {f"x{k}": operand for k, operand in enumerate(operands)}
    captured = in_own_operators(module, inputs)
    assert not captured.notes, captured.notes
    # the oracle keeps floats in float64: results are as far from it as eager's own type is
    tolerance = 2e-2 if any(node.result.dtype.bits == 16 for node in captured.graph.nodes) else 2e-5
    assert_agrees(captured, module, inputs, tolerance)


def test_in_place_forms_share_the_functional_row() -> None:
    assert aten.find("aten.add_.Tensor") == (aten.ROWS["aten.add.Tensor"], True)
    assert aten.find("aten.__and__.Tensor") == (aten.ROWS["aten.__and__.Tensor"], False)
    assert aten.find("aten.nonzero.default") == (None, False)


ENDS = torch.tensor([torch.inf, -torch.inf, torch.nan, 1.0, 2.0, 0.0, -3.0])


@pytest.mark.parametrize("weight", [0.3, 0.5, 0.7, -0.5, None])
def test_between_two_numbers_pytorch_counts_from_the_nearer(weight: float | None) -> None:
    weights = torch.tensor([0.0, 0.3, 0.5, 0.7, 1.0, -1.0, torch.inf, torch.nan])
    a, b, w = (x.flatten() for x in torch.meshgrid(ENDS, ENDS, weights, indexing="ij"))
    module = Program(lambda a, b, w: torch.lerp(a, b, w if weight is None else weight))
    inputs = {"a": a, "b": b, "w": w}
    assert_agrees(in_own_operators(module, inputs), module, inputs)
