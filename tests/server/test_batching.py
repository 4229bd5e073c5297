"""What is put together and what is not: padding by proof, memory that is foretold, answers that never depend
on who else asks, all through the live server."""

from __future__ import annotations

import asyncio

import httpx
import numpy
import pytest

from .conftest import LiveServer
from .test_infer import ask, batches, floats, together, value


def coverage(client: httpx.Client, model: str) -> dict:
    return client.get(f"/v1/models/{model}/coverage").json()


def test_different_lengths_share_a_batch_where_padding_is_proven(
    server: LiveServer, client: httpx.Client
) -> None:
    """Of five lengths four are near enough to the oldest's; each answer has its own length."""
    arrays = [floats(rows, length) for rows, length in ((1, 9), (2, 12), (1, 7), (1, 60), (3, 9))]
    before = batches(client, "placed")
    answers = asyncio.run(together(server, "placed", [ask(x) for x in arrays]))
    for x, answer in zip(arrays, answers, strict=True):
        assert numpy.array_equal(value(answer), x + numpy.arange(x.shape[1], dtype="float32"))
    assert batches(client, "placed") == before + 2
    found = coverage(client, "placed")["padding"]
    expected = {"symbols": ["length"], "mask": None, "obstacles": {}, "unused": None, "most": 0.5}
    assert found == expected


def test_a_request_of_length_0_is_not_padded(server: LiveServer, client: httpx.Client) -> None:
    """A reduction over nothing has a value of its own, which padding need not have."""
    arrays = [floats(1, length) for length in (9, 0, 8)]
    before = batches(client, "placed")
    answers = asyncio.run(together(server, "placed", [ask(x) for x in arrays]))
    assert [value(answer).shape for answer in answers] == [(1, 9), (1, 0), (1, 8)]
    assert batches(client, "placed") == before + 2


def test_several_axes_are_padded_and_outputs_of_other_sizes_cut_back(
    server: LiveServer, client: httpx.Client
) -> None:
    arrays = [floats(rows, *sizes) for rows, sizes in ((1, (5, 4)), (2, (3, 8)), (1, (1, 6)), (1, (6, 6)))]
    before = batches(client, "neighbours")
    answers = asyncio.run(together(server, "neighbours", [ask(x) for x in arrays]))
    for x, answer in zip(arrays, answers, strict=True):
        assert numpy.array_equal(value(answer), x[:, 1:, 1:] - x[:, :-1, :-1])
    assert batches(client, "neighbours") == before + 1


def test_padding_that_shows_after_all_is_off_and_the_model_serves(
    server: LiveServer, client: httpx.Client
) -> None:
    found = coverage(client, "wrongly_proven")["padding"]
    assert found["symbols"] == []
    assert "padding shows: output 'y'" in found["obstacles"]["length"]
    assert "padding shows: output 'y'" in found["unused"]
    arrays = [floats(1, length) for length in (4, 5, 4)]
    answers = asyncio.run(together(server, "wrongly_proven", [ask(x) for x in arrays]))
    for x, answer in zip(arrays, answers, strict=True):
        assert numpy.allclose(value(answer), x - x.mean(1, keepdims=True), atol=1e-6)


def test_a_batch_stays_under_the_memory_that_it_is_foretold_to_take(
    server: LiveServer, client: httpx.Client
) -> None:
    """A row takes 1008 bytes of 8064, so that eight fit: twenty make three batches."""
    before = batches(client, "heavy")
    arrays = [floats(1, 1) for _ in range(20)]
    answers = asyncio.run(together(server, "heavy", [ask(x) for x in arrays]))
    assert all(numpy.array_equal(value(a), x) for x, a in zip(arrays, answers, strict=True))
    assert batches(client, "heavy") == before + 3
    plan = client.post("/v1/models/heavy/plan", json={"shapes": {"x": [9, 1]}}).json()
    assert (plan["memory"], plan["memory_limit"]) == (9072, 8064)
    assert "needs 9072 bytes" in plan["refused"]
    legal = client.post("/v1/models/heavy/plan", json={"shapes": {"x": [8, 1]}}).json()
    assert legal["refused"] is None
    assert coverage(client, "heavy")["memory"] == {"limit": 8064, "bytes": "1000 * batch * width"}


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((9, 1), "; at batch 8 it would fit"),
        ((9, 3), "; at batch 2 it would fit"),
        ((1, 9), ""),
        ((2, 50_000), "; it would not fit at batch 1 either"),  # decoded by the worker
    ],
    ids=["rows", "wide rows", "one row", "large"],
)
def test_a_request_that_cannot_fit_is_refused_with_the_number(
    client: httpx.Client, shape: tuple[int, int], hint: str
) -> None:
    rows, width = shape
    response = client.post("/v2/models/heavy/infer", content=ask(floats(*shape)))
    assert response.status_code == 413
    assert response.json()["error"] == (
        f"model 'heavy' at batch {rows}, width {width} needs {1008 * rows * width} bytes of memory, "
        f"and a run may take 8064{hint}"
    )


def test_a_batch_has_no_more_rows_than_the_model_takes(server: LiveServer, client: httpx.Client) -> None:
    before = batches(client, "few")
    arrays = [floats(1, 4) for _ in range(6)]
    answers = asyncio.run(together(server, "few", [ask(x) for x in arrays]))
    for x, answer in zip(arrays, answers, strict=True):
        assert numpy.allclose(value(answer), x.sum(axis=1), atol=1e-5)
    assert batches(client, "few") == before + 2


def test_batch_invariant_means_equal_bits_whoever_else_asks(server: LiveServer, client: httpx.Client) -> None:
    arrays = [floats(rows, 128) for rows in (1, 3, 2, 1, 4)]
    alone = [value(client.post("/v2/models/alone/infer", content=ask(x))).tobytes() for x in arrays]
    before = batches(client, "alone")
    answers = asyncio.run(together(server, "alone", [ask(x) for x in arrays]))
    assert [value(answer).tobytes() for answer in answers] == alone
    assert batches(client, "alone") == before + len(arrays)
    assert coverage(client, "alone")["batch_invariance"]["promised"] is True
    assert client.get("/v1/models/alone/explain").json()["batch_invariance"]["promised"] is True
    stacked = coverage(client, "mlp")["batch_invariance"]
    assert stacked["promised"] is False and stacked["tolerances"]["float32"] == 1e-4
