"""cuDNN plans attention only at shapes that came often."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from dlcb.compiler.thunks import library
from dlcb.compiler.thunks.attention import UNPLANNED_CALLS, UnplannedAttention


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


@pytest.mark.parametrize("hot", [False, True])
def test_the_answer_is_attention_s(hot: bool) -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 8)
    bind = library.binder("attention", {"scale": 0.5}, [False] * 3, hot)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.5)
    assert torch.equal(bind([q, k, v], None)(), wanted)
