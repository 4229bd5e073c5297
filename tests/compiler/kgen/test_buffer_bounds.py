"""The instrument: kernels that leave their buffers are found, whatever they compute."""

import ctypes
from contextlib import nullcontext

import numpy as np
import pytest
from buffer_bounds import held_to_alignment
from cuda_on_cpu import EmulatedRun, library
from kernel_programs import Program
from kernel_runs import Case, CppRun, Unit

from dlcb.compiler.options import Target

LENGTH = 37


def doubled(run: type[CppRun], change: tuple[str, str], choice: int = -1) -> np.ndarray:
    """The sum of `LENGTH` numbers with themselves, by a kernel whose text is changed."""
    target = Target.cuda() if run is EmulatedRun else Target.cpp()
    p = Program("doubled")
    x = p.tensor("x", "n")
    unit = Unit({"doubled": Case(p.builder.build(p.add(x, x)), target)}, target, held=True)
    unit.text = unit.text.replace(*change)
    return run(unit, "doubled", choice=choice)({"x": np.arange(LENGTH)})[0]


@pytest.mark.parametrize("run", [CppRun, EmulatedRun])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("in0[", "in0[1 + "), f"reads 4 bytes at byte {4 * LENGTH} of x, which has {4 * LENGTH}"),
        (("in0[", "in0[-2 + "), "reads 4 bytes at byte -8 of x"),
        (("out0[", "out0[1 + "), f"writes 4 bytes at byte {4 * LENGTH} of add"),
    ],
)
def test_what_leaves_a_buffer_is_found(run: type[CppRun], change: tuple[str, str], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        doubled(run, change)


def test_an_access_off_its_alignment_is_found() -> None:
    with pytest.raises(AssertionError, match="reads 16 bytes at byte 4 of x"):
        doubled(EmulatedRun, ("(in0 + ", "(in0 + 1 + "), choice=0)


def test_so_it_is_where_nothing_is_known_of_the_buffers() -> None:
    kernel = 'extern "C" __global__ void doubled(double* x) { x[0] *= 2; }'
    entry = 'extern "C" void enter_doubled(void* const* arguments) { doubled(*(double**)arguments[0]); }'
    made, numbers = library(kernel + entry, []), (ctypes.c_double * 2)(3.0, 0.0)
    address = ctypes.addressof(numbers)
    for first in address, address + 4:
        function = ctypes.cast(made.enter_doubled, ctypes.c_void_p)
        cell = ctypes.c_void_p(first)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(cell))
        expected = pytest.raises(AssertionError, match="reads 8 bytes") if first > address else nullcontext()
        with expected, held_to_alignment(made, "doubled"):
            made.run_kernel(function, arguments, 1, 1)
    assert numbers[0] == 6.0


@pytest.mark.parametrize("run", [CppRun, EmulatedRun])
def test_what_stays_in_its_buffers_runs(run: type[CppRun]) -> None:
    np.testing.assert_array_equal(doubled(run, ("", "")), 2 * np.arange(LENGTH))
