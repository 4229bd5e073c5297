"""NaN, infinities, signed zeros and denormals come out of kernels as they come out of PyTorch."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from kernel_programs import Program
from kernel_runs import Case, CppRun, CudaRun, Run, Unit

from dlcb.compiler.dtype import BFLOAT16, FLOAT16, FLOAT32
from dlcb.compiler.ir.graph import Graph
from dlcb.compiler.options import Target

VALUES = [
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -0.0,
    1e-40,
    -1e-40,
    1.0,
    -1.0,
    0.5,
    -2.5,
    3e38,
    -3e38,
    88.8,
    -104.0,
    1e-30,
]
POINTWISE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sin": torch.sin,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "abs": torch.abs,
    "neg": torch.neg,
    "sign": torch.sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "atan": torch.atan,
}
PAIRS = {
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "floordiv": torch.floor_divide,
    "mod": torch.remainder,
    "div": torch.div,
    "pow": torch.pow,
    "fmod": torch.fmod,
    "atan2": torch.atan2,
}

HALVES = {"float16": FLOAT16, "bfloat16": BFLOAT16}
REMAINDERS = ("floordiv", "mod", "fmod")


def graph(name: str) -> Graph:
    p = Program(name)
    if name in PAIRS:
        return p.builder.build(getattr(p, name)(p.tensor("x", "n"), p.tensor("y", "n")))
    if name in ("max", "min"):
        return p.builder.build(getattr(p, name)(p.tensor("x", "n m"), axes=(1,), keepdim=False))
    if name in HALVES:
        return p.builder.build(p.cast(p.tensor("x", "n"), dtype=HALVES[name]))
    if name == "widened":
        return p.builder.build(p.cast(p.tensor("x", "n", FLOAT16), dtype=FLOAT32))
    return p.builder.build(getattr(p, name)(p.tensor("x", "n")))


NAMES = [*POINTWISE, *PAIRS, "max", "min", *HALVES, "widened"]


@pytest.fixture(scope="module", params=["cpp", pytest.param("cuda", marks=pytest.mark.device)])
def compiled(request: pytest.FixtureRequest) -> tuple[Unit, type[Run]]:
    target = Target.cpp() if request.param == "cpp" else Target.cuda()
    cases = {name: Case(graph(name), target) for name in NAMES}
    return Unit(cases, target), CppRun if request.param == "cpp" else CudaRun


def same(got: np.ndarray, want: torch.Tensor, signs: bool = True) -> None:
    expected = want.numpy()
    np.testing.assert_allclose(got, expected, rtol=3e-6, atol=1e-37)
    if signs and expected.dtype.kind == "f":
        known = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(expected)[known])


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(compiled: tuple[Unit, type[Run]], name: str) -> None:
    x = np.array(VALUES * 3, np.float32)  # long enough for a vector and a tail
    unit, run = compiled
    (got,) = run(unit, name)({"x": x})
    same(got, POINTWISE[name](torch.from_numpy(x)), signs=name != "relu")  # relu of -0.0 is 0.0 here


def test_exponentials_are_exact_to_the_last_place(compiled: tuple[Unit, type[Run]]) -> None:
    """From where the result is zero to where it is infinite, numbers below the normal ones included."""
    x = np.linspace(-110, 90, 200_001).astype(np.float32)
    unit, run = compiled
    (got,) = run(unit, "exp")({"x": x})
    exact = np.exp(x.astype(np.float64))
    finite = exact <= np.finfo(np.float32).max
    apart = np.abs(got - exact)[finite] / np.spacing(exact[finite].astype(np.float32))
    assert apart.max() < (1.1 if run is CppRun else 2.1)
    assert np.isinf(got[~finite]).all()


def test_error_functions_are_exact_to_the_last_places(compiled: tuple[Unit, type[Run]]) -> None:
    """And at most 1, from which something may be subtracted."""
    x = np.concatenate([np.linspace(-6, 6, 200_001), np.geomspace(1e-30, 1, 1000)]).astype(np.float32)
    unit, run = compiled
    (got,) = run(unit, "erf")({"x": x})
    exact = torch.erf(torch.from_numpy(x.astype(np.float64))).numpy()
    assert (np.abs(got - exact) / np.spacing(np.abs(exact).astype(np.float32))).max() < 6
    assert np.abs(got).max() == 1


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(compiled: tuple[Unit, type[Run]], name: str) -> None:
    # PyTorch's own vector code gives NaN for remainders whose quotient overflows
    values = np.array([v for v in VALUES if name not in REMAINDERS or not 0 < abs(v) < 1], np.float32)
    x, y = (np.ascontiguousarray(a.ravel()) for a in np.meshgrid(values, values))
    unit, run = compiled
    (got,) = run(unit, name)({"x": x, "y": y})
    # which zero is the larger one PyTorch does not say: its own kernels differ by the device
    signed = name not in ("maximum", "minimum") or run is CppRun
    signed = signed and name not in ("mod", "fmod")  # see below: PyTorch's vectors lose signs of zeros
    same(got, PAIRS[name](torch.from_numpy(x), torch.from_numpy(y)), signs=signed)


def remainder_operands() -> tuple[np.ndarray, np.ndarray]:
    """Any two numbers, numbers of like size, special ones, and multiples with their neighbours."""
    draw, count = np.random.default_rng(0), 40_000
    x, y = (draw.integers(0, 2**32, count, dtype=np.uint32).view(np.float32) for _ in range(2))
    alike = draw.standard_normal(count) * 50, draw.standard_normal(count)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.2e-38, 1.0, -3.0, 2.0**24, 3.4e38]
    pairs = np.meshgrid(np.array(special), np.array(special))
    divisors = draw.integers(1, 1000, count).astype(np.float32) / 8
    multiples = divisors * draw.integers(-100_000, 100_000, count).astype(np.float32)
    beside = np.nextafter(multiples, np.float32(np.inf))
    first = [x, alike[0], pairs[0].ravel(), multiples, beside]
    second = [y, alike[1], pairs[1].ravel(), divisors, -divisors]
    return np.concatenate(first, dtype=np.float32), np.concatenate(second, dtype=np.float32)


@pytest.mark.parametrize("name", ["fmod", "mod"])
def test_remainders_are_exact(compiled: tuple[Unit, type[Run]], name: str) -> None:
    x, y = remainder_operands()
    with np.errstate(invalid="ignore", over="ignore"):
        want = np.fmod(x, y)
        if name == "mod":
            want = np.where((want != 0) & ((y < 0) != (want < 0)), want + y, want)
    unit, run = compiled
    (got,) = run(unit, name)({"x": x, "y": y})
    np.testing.assert_array_equal(got, want)
    known = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(want)[known])


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("place", [0, 5, 36, 39])
def test_a_nan_anywhere_in_a_row_is_the_extremum(
    compiled: tuple[Unit, type[Run]], name: str, place: int
) -> None:
    x = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    x[1, place] = np.nan
    x[2, place] = np.inf if name == "min" else -np.inf
    unit, run = compiled
    (got,) = run(unit, name)({"x": x})
    same(got, getattr(torch, f"a{name}")(torch.from_numpy(x), dim=1))


@pytest.mark.parametrize("name", HALVES)
def test_rounding_to_a_half_type_is_pytorch_s(compiled: tuple[Unit, type[Run]], name: str) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    x = np.concatenate(
        [bits.view(np.float32), np.array(VALUES, np.float32), np.ldexp(np.float32(1), np.arange(-26, 17))]
    )
    unit, run = compiled
    (got,) = run(unit, name)({"x": x})
    np.testing.assert_array_equal(
        got.astype(np.float32), torch.from_numpy(x).to(getattr(torch, name)).float().numpy()
    )


def test_every_half_number_widens_exactly(compiled: tuple[Unit, type[Run]]) -> None:
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    unit, run = compiled
    (got,) = run(unit, "widened")({"x": x})
    np.testing.assert_array_equal(got, x.astype(np.float32))
