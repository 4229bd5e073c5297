"""Far values: what rounding explains is no deviation, what declared ranges exclude is not drawn."""

import pytest
import torch
from torch.nn import functional

from dlcb.compiler import InputDeclaration, ModelSource
from dlcb.compiler.bridge.far_values import far_deviations, far_inputs

SHAPES = {"x": (9, 16)}
WEIGHT = torch.linspace(-1, 1, 256, dtype=torch.float64).view(16, 16)


def source(dtype: str = "float32", values: tuple[int, int] | None = None) -> ModelSource:
    return ModelSource(
        "far", "1", factory="far:far", inputs=(InputDeclaration("x", dtype, (9, 16), values=values),)
    )


def softmax(x: torch.Tensor) -> torch.Tensor:
    return (x - x.max(1, keepdim=True).values).exp() / (
        (x - x.max(1, keepdim=True).values).exp().sum(1, keepdim=True)
    )


def product(x: torch.Tensor) -> torch.Tensor:
    return (x[:, :, None] * WEIGHT.to(x.dtype)).sum(1)


def spread(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(1, keepdim=True)).square().sum(1).div(15).sqrt()


# another order of the same operations -> how PyTorch does it
SAME = {
    "softmax": (softmax, lambda x: torch.softmax(x, 1)),
    "product": (product, lambda x: x @ WEIGHT.to(x.dtype)),
    "spread": (spread, lambda x: x.std(1)),
    "place": (lambda x: x.argmax(1), lambda x: x.max(1).indices),
    "level": (lambda x: (x.sigmoid() * 127).round().int(), lambda x: (127 / (1 + (-x).exp())).round().int()),
    "narrow": (lambda x: (x.bfloat16() * 3).float(), lambda x: x.float() * 3),
}


def deviations(program, model, given: ModelSource) -> list:
    calls = (
        lambda inputs: [program(*inputs)],
        lambda inputs: [model(*inputs)],
        lambda inputs: [model(*(x.double() for x in inputs))],
    )
    return far_deviations(given, SHAPES, ["y"], "cpu", calls)


@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16"))
@pytest.mark.parametrize("name", ("product", "spread", "place"))
def test_rounding_is_no_deviation(name: str, dtype: str) -> None:
    assert deviations(*SAME[name], source(dtype)) == []


@pytest.mark.parametrize("name", sorted(SAME))
def test_another_order_is_no_deviation(name: str) -> None:
    assert deviations(*SAME[name], source()) == []


def test_another_operation_is_one() -> None:
    (found,) = deviations(lambda x: (1 + x.exp()).log(), functional.softplus, source())
    assert found.output == "y" and "far values" in found.reason
    (found,) = deviations(lambda x: x.argmax(1), lambda x: 15 - x.flip(1).argmax(1), source())
    assert "integers differ" in found.reason


def test_declared_ranges_are_kept() -> None:
    for values, dtype in (((-2, 3), "float32"), ((1, 9), "int64")):
        drawn = [x for (x,) in far_inputs(source(dtype, values), SHAPES)]
        assert min(int(x.min()) for x in drawn) == values[0]
        assert all(bool((x <= values[1]).all()) for x in drawn)
    undeclared = [x for (x,) in far_inputs(source(), SHAPES)]
    assert any(bool(x.isnan().any()) for x in undeclared) and any(bool(x.isinf().any()) for x in undeclared)
    assert any(bool((x == 0).all()) for x in undeclared)


def test_each_value_stands_in_some_place() -> None:
    """The infinities come first, if places are few; the same is drawn again for the same shapes."""
    for count in (1, 2, 7, 50):
        shapes = {"x": (count,)}
        drawn = [x for (x,) in far_inputs(source(), shapes)]
        again = [x for (x,) in far_inputs(source(), shapes)]
        assert all(torch.equal(a.nan_to_num(9), b.nan_to_num(9)) for a, b in zip(drawn, again, strict=True))
        _, endless, undefined, *_ = drawn
        assert int(endless.isinf().sum()) >= min(count, 2) and bool(undefined.isnan().any())
        assert count < 8 or not bool(undefined.isnan().all())
