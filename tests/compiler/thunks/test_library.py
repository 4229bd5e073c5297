"""Each library row gives what PyTorch gives, into memory of ours where it says so, for operands of any
strides."""

import pytest
import torch
from torch.nn import functional

from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.runtime.effort import Effort
from dlcb.compiler.thunks import library


def strided(*shape: int) -> torch.Tensor:
    """Rows with a gap between them: no view has fewer axes."""
    wide = torch.randn(*shape[:-1], shape[-1] + 3)
    return wide[..., : shape[-1]]


@pytest.mark.parametrize("make", [torch.randn, strided])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (0, 3, 4), (2, 1, 3, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_writes_where_it_is_told(make, shape, bias) -> None:
    x, w, b = make(*shape), torch.randn(5, 4), [torch.randn(5)] if bias else []
    out = torch.full((*shape[:-1], 5), torch.nan)
    run = library.bind("linear", {}, [x, w, *b], out)
    run()
    torch.testing.assert_close(out, functional.linear(x, w, *b))
    x.copy_(torch.randn(shape))  # the same memory with other contents
    run()
    torch.testing.assert_close(out, functional.linear(x, w, *b))
    torch.testing.assert_close(library.bind("linear", {}, [x, w, *b], None)(), functional.linear(x, w, *b))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 6, 3, 4), (2, 6, 4, 5)),
        ((2, 1, 3, 4), (6, 4, 5)),
        ((4,), (4, 5)),
        ((2, 3, 4), (4,)),
        ((0, 3, 4), (0, 4, 5)),
        ((2, 3, 0), (0, 5)),
    ],
)
@pytest.mark.parametrize("make", [torch.randn, strided])
def test_matmul_takes_every_rank(make, left, right) -> None:
    a, b = make(*left), make(*right)
    expected = torch.matmul(a, b)
    out = torch.full(expected.shape, torch.nan)
    run = library.bind("matmul", {}, [a, b], out)
    a.mul_(2)
    run()
    torch.testing.assert_close(out, expected * 2)
    torch.testing.assert_close(library.bind("matmul", {}, [a, b], None)(), expected * 2)


def test_heads_seen_through_a_permuted_view_are_multiplied_without_a_copy_of_ours() -> None:
    q = torch.randn(2, 5, 3, 4).permute(0, 2, 1, 3)
    out = torch.empty(2, 3, 5, 5)
    library.bind("matmul", {}, [q, q.transpose(-1, -2)], out)()
    torch.testing.assert_close(out, q @ q.transpose(-1, -2))


@pytest.mark.parametrize("bias", [True, False])
def test_convolution(bias) -> None:
    x, w, b = torch.randn(2, 4, 9, 7), torch.randn(6, 2, 3, 3), [torch.randn(6)] if bias else []
    attributes = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}
    made = library.bind("convolution", attributes, [x, w, *b], None)()
    torch.testing.assert_close(made, functional.conv2d(x, w, *b, **attributes))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mask", [None, torch.bool, torch.float32])
def test_attention(causal, mask) -> None:
    q, k, v = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    allowed = torch.ones(5, 7, dtype=torch.bool).tril() if causal else torch.ones(5, 7, dtype=torch.bool)
    operands = [q, k, v]
    added = torch.zeros(5, 7)
    if mask is torch.bool:
        visible = torch.rand(2, 1, 5, 7) > 0.3
        visible[..., 0] = True
        operands.append(visible)
        allowed = allowed & visible
    elif mask is not None:
        operands.append(added := torch.randn(5, 7))
    scores = (q @ k.transpose(-1, -2) * 0.5 + added).masked_fill(~allowed, -torch.inf)
    made = library.bind("attention", {"scale": 0.5, "causal": causal}, operands, None)()
    torch.testing.assert_close(made, scores.softmax(-1) @ v)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4)], ids=str)
def test_attention_of_nothing_is_nothing(shape) -> None:
    """PyTorch 2.11 divides by the number of heads, which ends the process."""
    q, mask = torch.randn(shape), torch.zeros(shape[2], shape[2])
    assert library.bind("attention", {}, [q, q, q, mask], None)().shape == shape


@pytest.mark.device
@pytest.mark.parametrize("effort", [None, Effort()])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [4, 8, 64])
def test_attention_reads_operands_at_any_address(dtype, width, masked, effort) -> None:
    shapes = [(2, 3, 5, width), (2, 3, 16, width), (2, 3, 16, width), *[(2, 3, 5, 16)] * masked]
    exact = [torch.randn(shape).to(dtype) for shape in shapes]
    operands = []
    for before, x in enumerate(exact, start=1):
        operands.append(torch.zeros(x.numel() + before, dtype=dtype, device="cuda")[before:].view(x.shape))
    attend = library.binder("attention", {"scale": 0.5}, [False] * len(operands), effort)(operands, None)
    for held, x in zip(operands, exact, strict=True):
        held.copy_(x)
    q, k, v, *mask = [x.double() for x in exact]
    wanted = functional.scaled_dot_product_attention(q, k, v, *mask, scale=0.5)
    torch.testing.assert_close(
        attend().cpu(), wanted.to(dtype), atol=2e-2 if dtype.itemsize == 2 else 1e-4, rtol=0
    )


def test_attention_to_nothing_is_zero() -> None:
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 0, 8), torch.randn(2, 3, 0, 5)
    made = library.bind("attention", {"causal": True}, [q, k, v, torch.zeros(4, 0)], None)()
    assert torch.equal(made, torch.zeros(2, 3, 4, 5))


def test_cumulative_sum() -> None:
    x = torch.randint(0, 9, (3, 4), dtype=torch.int32)
    made = library.bind("cumsum", {"axis": 1}, [x], None)()
    assert torch.equal(made, x.cumsum(1))
    assert made.dtype == torch.int64


def test_an_operator_without_a_row_is_named() -> None:
    with pytest.raises(UnsupportedOperator, match="no library call for 'fft'"):
        library.bind("fft", {}, [], None)
