"""An algorithm that was found for one number of rows serves others within reach, and gives what the product
is, to the rounding of its type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlcb.compiler.runtime.effort import Effort
from dlcb.compiler.thunks import cublaslt, library, products
from dlcb.compiler.thunks.products import REACH, Algorithms, prepare
from dlcb.compiler.thunks.unplanned import UNPLANNED_CALLS


@dataclass
class Finder:
    """A library whose algorithms are the numbers of rows they were found for; each fits where `fits` says."""

    fits: Callable[[int, int], bool] = lambda algorithm, rows: True
    asked: list[int] = field(default_factory=list)

    def serve(self, table: Algorithms[str, int], rows: int, kind: str = "a") -> int | None:
        def find() -> int | None:
            self.asked.append(rows)
            return rows if rows != 13 else None

        served = table.serve(kind, rows, find, lambda algorithm: 64 if self.fits(algorithm, rows) else None)
        assert served is None or served[1] == 64
        return None if served is None else served[0]


def test_a_number_of_rows_within_reach_is_served_by_what_is_known() -> None:
    table, finder = Algorithms[str, int](reach=8), Finder()
    assert [finder.serve(table, rows) for rows in (100, 800, 13, 801, 1000, 90)] == [
        100,
        100,
        100,
        801,
        801,
        100,
    ]
    assert finder.asked == [100, 801]
    assert finder.serve(table, 100, kind="b") == 100  # another kind of product knows nothing of it
    assert finder.asked == [100, 801, 100]


@given(st.lists(st.integers(14, 1 << 20), min_size=1, max_size=60))
def test_what_serves_was_found_within_reach_and_few_are_looked_for(sizes: list[int]) -> None:
    table, finder = Algorithms[str, int](), Finder()
    for rows in sizes:
        served = finder.serve(table, rows)
        assert served is not None
        assert max(served, rows) <= REACH * min(served, rows)
    assert len(finder.asked) <= 1 + 20 // 3  # any two are a factor of eight apart


def test_what_does_not_fit_there_is_looked_for_again() -> None:
    table, finder = Algorithms[str, int](), Finder(fits=lambda algorithm, rows: rows <= 2 * algorithm)
    assert [finder.serve(table, rows) for rows in (100, 150, 300, 301)] == [100, 100, 300, 300]
    assert finder.asked == [100, 300]


def test_a_kind_for_which_there_is_nothing_is_asked_once() -> None:
    table, finder = Algorithms[str, int](), Finder()
    assert finder.serve(table, 13) is None
    assert finder.serve(table, 50) is None
    assert finder.asked == [13]


def test_the_table_is_bounded() -> None:
    table, finder = Algorithms[str, int](most=4), Finder()
    assert [finder.serve(table, rows) for rows in (10, 11, 12, 14, 15, 10)] == [10, 10, 10, 10, 15, 15]
    assert finder.asked == [10, 15]


def test_products_on_a_cpu_are_pytorch_s() -> None:
    first, second = torch.randn(3, 4), torch.randn(4, 5)
    assert prepare(first, second, torch.empty(3, 5)) is None


@pytest.mark.parametrize("operator", ["linear", "matmul"])
@pytest.mark.parametrize("effort", [None, Effort()])
def test_a_step_on_a_cpu_multiplies(operator: str, effort: Effort | None) -> None:
    x, weight, out = torch.randn(2, 3, 4), torch.randn(5, 4), torch.empty(2, 3, 5)
    second = weight if operator == "linear" else weight.t()
    library.binder(operator, {}, [False, True], effort)([x, second], out)()
    torch.testing.assert_close(out, x @ weight.t())


# ---- on a GPU

TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5}


def drawn(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def agrees(
    first: torch.Tensor,
    second: torch.Tensor,
    bias: torch.Tensor | None = None,
    added: torch.Tensor | None = None,
    relu: bool = False,
) -> None:
    """The prepared product runs and gives what float64 gives."""
    dtype = first.dtype
    result = torch.full((len(first), second.shape[1]), torch.nan, device="cuda", dtype=dtype)
    product = prepare(first, second, result, bias=bias, added=added, relu=relu)
    assert product is not None
    assert product.run()
    exact = first.double() @ second.double()
    for more in (bias, added):
        exact = exact if more is None else exact + more.double()
    exact = exact.relu() if relu else exact
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(result.double(), exact, atol=2 * tolerance, rtol=tolerance)


@pytest.mark.device
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("bias", "added", "relu"),
    [
        (False, False, False),
        (True, False, False),
        (True, False, True),
        (True, True, True),
        (False, False, True),
    ],
)
def test_a_product_is_what_float64_makes_it(dtype: torch.dtype, bias: bool, added: bool, relu: bool) -> None:
    for rows in (1, 2, 17, 1000, 5000):
        for inner, columns in ((64, 32), (147, 64), (1, 3)):
            second = (drawn(columns, inner, dtype=dtype) / inner**0.5).t()
            agrees(
                drawn(rows, inner, dtype=dtype),
                second,
                drawn(columns, dtype=dtype) if bias else None,
                drawn(rows, columns, dtype=dtype) if added else None,
                relu,
            )


@pytest.mark.device
def test_matrices_may_lie_anywhere() -> None:
    weight = drawn(64, 48) / 7
    agrees(drawn(100, 48), weight.t())
    agrees(drawn(100, 48), weight.t().contiguous())
    agrees(drawn(100, 60)[:, :48], weight.t())  # a gap between rows
    agrees(drawn(101 * 48 + 1)[1 : 100 * 48 + 1].view(100, 48), weight.t())  # off every alignment


@pytest.mark.device
def test_what_cannot_be_described_is_left_to_pytorch() -> None:
    first, second, result = drawn(6, 8), drawn(8, 4), drawn(6, 4)
    assert prepare(first[:0], second, result[:0]) is None
    assert prepare(drawn(8, 6).t(), second, result) is None
    assert prepare(first.double(), second.double(), result.double()) is None
    assert prepare(first, second.float(), result) is None


@pytest.mark.device
def test_other_rows_are_served_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_algorithms", Algorithms())
    second, bias = (drawn(64, 576) / 24).t(), drawn(64)
    agrees(drawn(1000, 576), second, bias)
    monkeypatch.setattr(cublaslt.Matrices, "find", lambda matrices: pytest.fail("searched"))
    for rows in (125, 999, 8000):
        agrees(drawn(rows, 576), second, bias)


@pytest.mark.device
def test_float32_is_rounded_as_pytorch_s_switch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = drawn(64, 512, dtype=torch.float32), drawn(512, 64, dtype=torch.float32)
    result, exact = torch.empty(64, 64, device="cuda"), first.double() @ second.double()
    product = prepare(first, second, result)
    assert product is not None
    assert product.run()
    assert (result - exact).abs().max() < 1e-4
    monkeypatch.setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32")
    assert not product.run()
    product = prepare(first, second, result)
    assert product is not None
    assert product.run()
    assert 1e-4 < (result - exact).abs().max() < 1e-1


@pytest.mark.device
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_a_step_gives_the_same_before_and_after_it_is_hot(
    there: bool, relu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not there:
        monkeypatch.setattr(cublaslt, "library", lambda: None)
    x, weight, bias, out = drawn(5, 9, 64), drawn(48, 64) / 8, drawn(48), drawn(5, 9, 48)
    bind = library.binder("linear", {"relu": relu}, [False, True, True])
    wanted = torch.nn.functional.linear(x, weight, bias)
    call = bind([x, weight, bias], out)
    for _ in range(UNPLANNED_CALLS + 2):
        out.fill_(torch.nan)
        call()
        torch.testing.assert_close(out, wanted.relu() if relu else wanted, atol=4e-3, rtol=4e-3)


@pytest.mark.device
def test_nan_stays_nan() -> None:
    x, weight, bias, out = drawn(16, 16), torch.eye(16, device="cuda").half(), drawn(16), drawn(16, 16)
    x[0, 0] = torch.nan
    product = prepare(x, weight.t(), out, bias=bias, relu=True)
    assert product is not None
    assert product.run()
    assert out[0].isnan().all()
