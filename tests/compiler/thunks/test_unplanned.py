"""cuDNN plans attention and convolutions only at shapes that came often; until then products over windows
give what a convolution gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcb.compiler.bridge.agreement import without_tf32
from dlcb.compiler.runtime.effort import Effort
from dlcb.compiler.thunks import library, unplanned
from dlcb.compiler.thunks.unplanned import UNPLANNED_CALLS, UnplannedAttention


def allowed(operands: Sequence[torch.Tensor], out: torch.Tensor | None) -> Callable[[], torch.Tensor]:
    """In place of attention: whether cuDNN may be used."""
    return lambda: torch.tensor(torch.backends.cuda.cudnn_sdp_enabled())


@pytest.mark.device
def test_first_calls_do_without_cudnn_on_a_gpu() -> None:
    step = UnplannedAttention(allowed)
    operands = [torch.zeros(1, 1, 2, 8, device="cuda")] * 3
    found = [bool(step(operands, None)()) for _ in range(UNPLANNED_CALLS + 2)]
    assert found == [False] * UNPLANNED_CALLS + [True] * 2
    call = UnplannedAttention(allowed)(operands, None)  # bound once, called again and again
    assert [bool(call()) for _ in range(UNPLANNED_CALLS + 2)] == found
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_a_cpu_has_no_such_choice() -> None:
    assert bool(UnplannedAttention(allowed)([torch.zeros(1, 1, 2, 8)] * 3, None)())


@pytest.mark.parametrize("effort", [None, Effort()])
def test_the_answer_is_attention_s(effort: Effort | None) -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 8)
    bind = library.binder("attention", {"scale": 0.5}, [False] * 3, effort)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.5)
    assert torch.equal(bind([q, k, v], None)(), wanted)


PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(0, 3),
    extra=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    channels=st.integers(1, 4),
    window=PAIRS,
    stride=PAIRS,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=PAIRS,
    biased=st.booleans(),
    added=st.booleans(),
    relu=st.booleans(),
)
def test_a_product_over_windows_is_a_convolution(
    count: int,
    extra: tuple[int, int],
    channels: int,
    window: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    biased: bool,
    added: bool,
    relu: bool,
) -> None:
    height, width = (d * (k - 1) + 1 + e for d, k, e in zip(dilation, window, extra, strict=True))
    x = torch.randn(count, height, width, channels, dtype=torch.float64)
    weight = torch.randn(5, *window, channels, dtype=torch.float64)
    bias = torch.randn(5, dtype=torch.float64) if biased else None
    first = (0, 3, 1, 2)
    wanted = torch.nn.functional.conv2d(
        x.permute(first), weight.permute(first), bias, stride, padding, dilation
    ).permute(0, 2, 3, 1)
    residual = torch.randn(wanted.shape, dtype=torch.float64) if added else None
    if residual is not None:
        wanted = wanted + residual
    found = unplanned.convolution(x, weight, bias, stride, padding, dilation, residual=residual, relu=relu)
    assert found is not None
    wanted = wanted.relu() if relu else wanted
    torch.testing.assert_close(found, wanted)


def test_windows_that_fill_memory_are_left_to_cudnn() -> None:
    x = torch.empty(1, 4096, 4096, 64, dtype=torch.float16, device="meta")
    weight = torch.empty(64, 3, 3, 64, dtype=torch.float16, device="meta")
    assert unplanned.convolution(x, weight, None, (1, 1), (1, 1), (1, 1)) is None


@pytest.mark.device
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("ceiling", [None, 6.0])
def test_a_step_gives_the_same_before_and_after_it_is_hot(residual: bool, ceiling: float | None) -> None:
    attributes = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    attributes |= {"ceiling": ceiling} if ceiling else {"relu": True}
    operands = [torch.randn(2, 9, 7, 16), torch.randn(16, 3, 3, 16) / 12, torch.randn(16)]
    operands += [torch.randn(2, 9, 7, 16)] if residual else []
    given = [x.half().cuda() for x in operands]
    cold, hot = (
        library.binder("convolution_nhwc", attributes | {"residual": residual}, [False] * len(given), effort)
        for effort in (None, Effort())
    )
    wanted = hot(given, None)()
    for _ in range(UNPLANNED_CALLS + 2):
        torch.testing.assert_close(cold(given, None)(), wanted, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.device)])
@pytest.mark.parametrize("residual", [False, True])
def test_a_channels_first_step_gives_the_same_before_and_after_it_is_hot(residual: bool, device: str) -> None:
    attributes = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    given = [torch.randn(2, 16, 9, 7), torch.randn(16, 16, 3, 3) / 12, torch.randn(16)]
    given += [torch.randn(2, 16, 9, 7)] if residual else []
    given = [x.to(device) for x in given]
    wanted = torch.nn.functional.conv2d(*given[:3], padding=1)
    wanted = torch.relu(wanted + given[3] if residual else wanted)
    with without_tf32():
        step = library.binder("convolution_relu", attributes, [False, True, True, False])
        for _ in range(UNPLANNED_CALLS + 2):
            torch.testing.assert_close(step(given, None)(), wanted, atol=1e-3, rtol=1e-3)
