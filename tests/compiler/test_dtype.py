"""What an element of each type holds is what PyTorch stores in it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlcb.compiler.dtype import DTYPES, DType

FLOATS = [kind for kind in DTYPES.values() if kind.is_float]
INTEGERS = [kind for kind in DTYPES.values() if kind.kind in ("int", "uint")]


@pytest.mark.parametrize("kind", FLOATS, ids=repr)
@given(number=st.floats())
def test_a_float_is_rounded_as_pytorch_rounds_it(kind: DType, number: float) -> None:
    stored = torch.tensor(number, dtype=torch.float64).to(torch.float32 if kind.bits < 64 else torch.float64)
    wanted = stored.to(getattr(torch, kind.name)).double().item()
    assert kind.held(number) == wanted or (math.isnan(kind.held(number)) and math.isnan(wanted))


@pytest.mark.parametrize("kind", INTEGERS, ids=repr)
@given(number=st.integers(-(2**63), 2**63 - 1))
def test_an_integer_wraps_as_pytorch_wraps_it(kind: DType, number: int) -> None:
    assert kind.held(number) == torch.tensor(number).to(getattr(torch, kind.name)).item()


def test_a_truth_is_whether_there_is_anything() -> None:
    assert [DTYPES["bool"].held(x) for x in (0, 2, -0.0, 0.5)] == [False, True, False, True]
