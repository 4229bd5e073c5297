"""Padding by the compiler's proof over compiled models: requests of random sizes, stacked and padded as the
server does it, give what each gives alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from dlcb import compiler
from dlcb.compiler import InputDeclaration, ModelSource, Signature
from dlcb.compiler.signature import BatchAxes, Dim, TensorSpec
from dlcb.kernel_cache import LayeredStore, open_store
from dlcb.server.batch import place, split, stack
from dlcb.server.datatypes import BY_DTYPE
from dlcb.server.model import known_shapes
from dlcb.server.padding import Padding, proven
from dlcb.server.probing import check_padding
from dlcb.server.types import InferRequest, Tensor

IDS = InputDeclaration("x", "int64", ("batch", "length"), (0, 100))
SIGNAL = InputDeclaration("x", "float32", ("batch", 4, "length"))

Load = Callable[[str, InputDeclaration], tuple[ModelSource, Any, Padding | None]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LayeredStore:
    return open_store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def load(store: LayeredStore, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Compile and load a model of `padding_models`, and find how its requests may be padded."""
    monkeypatch.syspath_prepend(Path(__file__).parent)

    def load(name: str, declared: InputDeclaration) -> tuple[ModelSource, Any, Padding | None]:
        source = ModelSource(
            name=name, version="1", factory=f"padding_models:{name}", inputs=(declared,), outputs=("y",)
        )
        made = compiler.compile_model(source, store)
        model = compiler.load_model(source, made.artifact_key, store)
        return source, model, proven(made.signature)

    return load


def run_together(
    model: Any, padding: Padding, arrays: list[numpy.ndarray], longer: int = 0
) -> list[numpy.ndarray]:
    """What each request gets of a batch that is padded so much beyond the longest, by the server's own
    arithmetic."""
    signature: Signature = model.signature
    datatype = BY_DTYPE[signature.inputs[0].dtype]
    requests = [InferRequest({"x": Tensor("x", datatype, x.shape, x.tobytes())}) for x in arrays]
    lengths = {"length": max(x.shape[-1] for x in arrays) + longer}
    (entry,), size = place(requests, signature, padding, lengths)
    slot = memoryview(bytearray(size))
    stack(requests, [entry], signature.batch, slot, padding)
    together = numpy.frombuffer(slot[: entry.size], entry.array).reshape(entry.shape)
    outputs = model.run({"x": together}).outputs
    described = {name: (y.shape, memoryview(y.tobytes())) for name, y in outputs.items()}
    own = [known_shapes(signature, {"x": x.shape}) for x in arrays]
    answers = [answer["y"] for answer in split(described, [len(x) for x in arrays], signature, own)]
    return [numpy.frombuffer(y.data, y.datatype.array).reshape(y.shape) for y in answers]


@pytest.mark.parametrize("name, declared", [("Tagger", IDS), ("Decoder", IDS), ("Stem", SIGNAL)])
def test_padded_is_unpadded(load: Load, name: str, declared: InputDeclaration) -> None:
    source, model, padding = load(name, declared)
    assert padding is not None and padding.symbols == ["length"] and padding.mask == ""
    check_padding(model, source, padding)
    draw = numpy.random.default_rng(0)
    for _ in range(10):
        arrays = []
        for _ in range(draw.integers(2, 6)):
            rows, length = draw.integers(1, 4), draw.integers(3, 40)
            if declared is IDS:
                arrays.append(draw.integers(0, 100, (rows, length)))
            else:
                arrays.append(draw.standard_normal((rows, 4, length), "float32"))
        for x, padded in zip(arrays, run_together(model, padding, arrays, longer=4), strict=True):
            alone = model.run({"x": x}).outputs["y"]
            assert padded.shape == alone.shape
            assert numpy.allclose(padded, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("order", [("batch", "height", "width"), ("width", "height", "batch")])
def test_sizes_are_padded_in_the_order_of_the_inputs(order: tuple[str, ...]) -> None:
    """A signature that was stored has its proofs in another order than one that was just made."""
    sizes = ("batch", "height", "width")
    signature = Signature(
        inputs=(TensorSpec("x", "float32", tuple(Dim(size, 1, None) for size in sizes)),),
        outputs=(TensorSpec("y", "float32", tuple(Dim(size, 1, None) for size in sizes)),),
        output_dims={"y": sizes},
        batch=BatchAxes("batch", {"x": 0}, {"y": 0}),
        padding=dict.fromkeys(order, ""),
    )
    padding = proven(signature)
    assert padding is not None and padding.symbols == ["height", "width"]


def test_a_mean_over_positions_is_not_padded(load: Load) -> None:
    _source, model, padding = load("Pooler", IDS)
    assert padding is None
    assert model.signature.padding["length"].startswith("div uses it (")
    assert model.signature.padding["length"].endswith(".mean(1))")
    assert any(
        line.startswith("padding the end of 'length' is not proven harmless without a mask: div uses it (")
        for line in model.report.batching
    )


def test_rows_that_are_mixed_are_not_stacked_and_where_is_said(load: Load) -> None:
    _source, model, padding = load("Centred", IDS)
    assert padding is None and model.signature.batch is None
    alone, *against = model.report.batching
    assert alone == "no size is proven to count independent rows: each request runs alone"
    assert against[0].startswith("requests are not stacked along 'batch': sum uses it (")
