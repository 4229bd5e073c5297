"""A hot product runs by the fastest algorithm, if that is worth it and gives PyTorch's answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dlcb.compiler.runtime.effort import Effort
from dlcb.compiler.thunks import library, measured, products

FORM = products.Form(0, torch.float32, False, 4, 4, True, (4, 4, 4, 4), False, False, False, 16)
WRONG, IMPOSSIBLE, REFUSED = 90, 91, 92


class Offer:
    """Algorithms are numbers, and also the milliseconds that they take."""

    def __init__(self, *algorithms: int) -> None:
        self._algorithms = algorithms

    def offered(self, most: int) -> list[int]:
        return list(self._algorithms)[:most]

    def workspace(self, algorithm: int) -> int | None:
        return None if algorithm == IMPOSSIBLE else algorithm


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Which of the offered algorithms is taken beside a call of PyTorch's that takes so many milliseconds."""
    out = torch.zeros(4)

    class Product:
        def __init__(self, form: object, matrices: object, algorithm: int, nbytes: int) -> None:
            self.algorithm = algorithm

        def run(self) -> bool:
            out.fill_(2.0 if self.algorithm == WRONG else 1.0)
            return self.algorithm != REFUSED

    def choose(planned: float, *offered: int) -> object:
        def call() -> torch.Tensor:
            return out.fill_(1.0)

        def seconds(run: object, repeats: int) -> float:
            return (planned if run is call else run.__self__.algorithm) / 1e3  # type: ignore[attr-defined]

        monkeypatch.setattr(measured, "_seconds", seconds)
        return measured._fastest(call, Offer(*offered), FORM, out)  # type: ignore[arg-type]

    monkeypatch.setattr(products, "Product", Product)
    return choose


def test_the_fastest_is_taken(choose: Callable[..., object]) -> None:
    assert choose(50, 70, 40, 30, 45) == (30, 30)


def test_pytorch_s_call_stays_where_nothing_is_worth_leaving_it(choose: Callable[..., object]) -> None:
    assert choose(50, 70, 49, 60) is None
    assert choose(50) is None
    assert choose(0.001, 0) is None  # too short to tell


def test_what_cannot_run_or_answers_otherwise_is_not_taken(
    choose: Callable[..., object], caplog: pytest.LogCaptureFixture
) -> None:
    assert choose(100, WRONG, IMPOSSIBLE, REFUSED, 94) == (94, 94)
    assert "not PyTorch's product" in caplog.text


# ---- on a GPU


@pytest.mark.device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_hot_step_multiplies(
    dtype: torch.dtype, relu: bool, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is the fastest: here all but PyTorch's call take no time. Recorded, nothing is measured."""
    monkeypatch.setattr(measured, "_measured", {})
    taken = iter([1.0, *[1.0] * measured._ROUNDS])
    monkeypatch.setattr(measured, "_seconds", lambda run, repeats: next(taken, 0.0))
    x, weight = (
        torch.randn(300, 512, device="cuda").to(dtype),
        torch.randn(384, 512, device="cuda").to(dtype) / 23,
    )
    bias = [torch.randn(384, device="cuda").to(dtype)] if biased else []
    out = torch.empty(300, 384, device="cuda", dtype=dtype)
    bind = library.binder("linear", {"relu": relu}, [False, True, True], Effort(1.0))
    wanted = torch.nn.functional.linear(x.double(), weight.double(), *(b.double() for b in bias))
    wanted = wanted.relu() if relu else wanted
    bind([x, weight, *bias], out)()
    assert [algorithm is not None for algorithm in measured._measured.values()] == [True]
    monkeypatch.setattr(measured, "_fastest", lambda *given: pytest.fail("measured again"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bind([x, weight, *bias], out)()
    out.fill_(torch.nan)
    graph.replay()
    tolerance = measured._ERROR[dtype]
    torch.testing.assert_close(out.double(), wanted, atol=2 * tolerance, rtol=tolerance)


@pytest.mark.device
def test_what_there_is_no_time_to_measure_is_pytorch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "_measured", {})
    effort = Effort()
    x, weight = torch.randn(2048, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    out, wanted = torch.empty(2048, 512, device="cuda"), x @ weight.t()
    bind = library.binder("linear", {}, [False, True], effort)
    bind([x, weight], out)()
    torch.testing.assert_close(out, wanted)
    assert effort.postponed
    assert not measured._measured
    effort.seconds = 1.0
    bind([x, weight], out)()
    assert len(measured._measured) == 1
    assert effort.seconds < 1.0
