"""Convolutions with packed weights give what the public call gives, and packings are shared and let go."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.nn import functional

from dlcb.compiler.thunks import convolution, onednn
from dlcb.compiler.thunks.convolution import ImageConvolution

pytestmark = pytest.mark.skipif(not onednn.works(), reason="this PyTorch has no packed convolutions")

# channels in and out, window, then what differs from stride 1, padding 0, dilation 1, one group
GEOMETRIES = [
    (3, 10, 3, {}),
    (8, 16, 1, {}),
    (8, 16, 3, {"stride": (2, 1), "padding": (1, 2)}),
    (8, 12, 3, {"dilation": (2, 3), "padding": (2, 3)}),
    (8, 12, 5, {"groups": 4, "padding": (2, 2)}),
    (16, 16, 3, {"groups": 16, "padding": (1, 1), "stride": (2, 2)}),
    (1, 1, 3, {"padding": (1, 1)}),
]
SIZES = [(1, 9, 9), (3, 11, 13), (2, 7, 40), (0, 9, 9)]


@pytest.fixture(autouse=True)
def packed_from_the_first_call_on(monkeypatch) -> None:
    monkeypatch.setattr(onednn, "_LEAST_PRODUCTS", 1)
    monkeypatch.setattr(onednn, "_LEAST_PRODUCTS_OF_POINTS", 1)
    monkeypatch.setattr(convolution, "UNPACKED_CALLS", 0)


def images(*shape: int) -> torch.Tensor:
    return torch.randn(shape[0], *shape[2:], shape[1])


def expected(x, weight, bias, residual, attributes) -> torch.Tensor:
    geometry = (attributes[name] for name in ("stride", "padding", "dilation", "groups"))
    first = (0, 3, 1, 2)
    y = functional.conv2d(x.permute(first), weight.permute(first), bias, *geometry).permute(0, 2, 3, 1)
    y = y if residual is None else y + residual
    ceiling = attributes.get("ceiling")
    return y.clamp(0, ceiling) if attributes.get("relu") else y


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("narrow", "wide", "window", "geometry"), GEOMETRIES)
@pytest.mark.parametrize(
    ("bias", "end"),
    [
        (False, {}),
        (True, {"relu": True}),
        (True, {"relu": True, "residual": True}),
        (False, {"relu": True, "residual": True, "ceiling": 0.5}),
    ],
)
def test_every_geometry(narrow, wide, window, geometry, size, bias, end) -> None:
    batch, height, width = size
    attributes = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1, **geometry, **end}
    x, weight = (
        images(batch, narrow, height, width),
        images(wide, narrow // attributes["groups"], window, window),
    )
    biases = [torch.randn(wide)] if bias else []
    step = ImageConvolution(attributes, constant_weights=True)
    for _ in range(3):
        x.copy_(torch.randn(x.shape))
        plain = expected(x, weight, *(biases or [None]), None, {**attributes, "relu": False})
        residuals = [torch.randn(plain.shape)] if attributes.get("residual") else []
        found = step([x, weight, *biases, *residuals])()
        wanted = expected(x, weight, *(biases or [None]), *(residuals or [None]), attributes)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert (step._packed is not None) == (batch > 0)


def test_images_seen_channels_last_are_taken_as_they_are() -> None:
    x, weight = torch.randn(2, 8, 12, 12).permute(0, 2, 3, 1), images(16, 8, 3, 3)
    attributes = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    step = ImageConvolution(attributes, constant_weights=True)
    for _ in range(3):
        torch.testing.assert_close(
            step([x, weight])(), expected(x, weight, None, None, attributes), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("width", [3, 4, 5, 7])  # results of one column, then two
@pytest.mark.parametrize("wide", [1, 8])
@pytest.mark.parametrize("stride", [(1, 2), (1, 3), (2, 2)])
def test_images_of_one_channel(stride, wide, width, residual) -> None:
    x, weight = images(4, 1, 6, width), images(wide, 1, 3, 3)
    attributes = {"stride": stride, "padding": (0, 0), "dilation": (1, 1), "residual": residual}
    step = ImageConvolution(attributes, constant_weights=True)
    exact = [t[..., 0].unsqueeze(1).double() for t in (x, weight)]
    wanted = functional.conv2d(*exact, stride=stride).permute(0, 2, 3, 1).float()
    residuals = [torch.randn(wanted.shape)] * residual
    for _ in range(3):
        found = step([x, weight, *residuals])()
        torch.testing.assert_close(found, sum(residuals, wanted), rtol=1e-5, atol=1e-5)


def test_what_is_not_a_number_stays_so() -> None:
    x, weight = images(1, 8, 12, 12), images(16, 8, 3, 3)
    x[0, 5, 5, 0] = torch.nan
    attributes = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "relu": True, "residual": True}
    step = ImageConvolution(attributes, constant_weights=True)
    for _ in range(3):
        assert int(step([x, weight, torch.randn(1, 12, 12, 16)])().isnan().sum()) == 9 * 16


def test_weights_that_change_are_not_packed() -> None:
    x, weight = images(1, 8, 12, 12), images(16, 8, 3, 3)
    attributes = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    step = ImageConvolution(attributes)
    for _ in range(4):
        weight = torch.randn(weight.shape)
        torch.testing.assert_close(
            step([x, weight])(), expected(x, weight, None, None, attributes), rtol=1e-5, atol=1e-5
        )
    assert step._packed is None


def test_one_packing_serves_many_sizes_and_goes_with_the_last() -> None:
    weight = torch.randn(64, 64, 3, 3).contiguous(memory_format=torch.channels_last)

    def pack(height: int) -> onednn.Packed:
        x = torch.empty(1, 64, height, 20).contiguous(memory_format=torch.channels_last)
        packed = onednn.pack(x, weight, (1, 1), (1, 1), (1, 1), 1)
        assert packed is not None
        return packed

    before = len(onednn._packings)
    held = [pack(height) for height in range(8, 40)]
    assert len({id(packed._weight) for packed in held}) <= 4
    assert len(onednn._packings) - before <= 4
    held.clear()
    gc.collect()
    assert len(onednn._packings) == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_stay_with_the_public_call(dtype) -> None:
    x = torch.zeros(1, 8, 12, 12, dtype=dtype)
    assert onednn.pack(x, torch.zeros(16, 8, 3, 3, dtype=dtype), (1, 1), (1, 1), (1, 1), 1) is None


def test_without_the_operators_nothing_is_packed(monkeypatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    onednn.works.cache_clear()
    try:
        assert onednn.pack(torch.zeros(1, 8, 12, 12), torch.zeros(16, 8, 3, 3), *[(1, 1)] * 3, 1) is None
    finally:
        onednn.works.cache_clear()
