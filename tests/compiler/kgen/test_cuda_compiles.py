"""NVRTC, which needs no GPU, takes every CUDA kernel: front end and optimiser take all of them, the assembler
enough to meet every instruction that any of them has."""

import re
from dataclasses import dataclass

import pytest
from kernel_agreement import cuda_unit
from kernel_runs import Case, Unit

from dlcb.compiler.build import toolchain
from dlcb.compiler.build.toolchain import CudaToolchain, _nvrtc
from dlcb.compiler.options import CompileOptions, Target

_KERNEL = re.compile(r"^\.visible \.entry (\w+)\((.*?)^\}", re.MULTILINE | re.DOTALL)
_INSTRUCTION = re.compile(r"(?:^|[;{])\s*(?:@!?%?\w+\s+)?([a-z]\w*(?:\.\w+)+)\b", re.MULTILINE)


@dataclass(frozen=True)
class Unoptimised(CudaToolchain):
    """Half the time, and the same complaints."""

    @property
    def options(self) -> tuple[str, ...]:
        return (*super().options, "--device-debug")


def unoptimised() -> Unoptimised:
    target = Target.cuda()
    shipped = toolchain(target, CompileOptions(target=target))
    assert isinstance(shipped, CudaToolchain)
    return Unoptimised(shipped.architecture)


@pytest.fixture(scope="module")
def unit() -> Unit:
    return cuda_unit()


@pytest.fixture(scope="module")
def unassembled(unit: Unit) -> str:
    """What the assembler is given: a fifth of the time that it takes itself."""
    nvrtc = _nvrtc()
    options = Unoptimised(unoptimised().architecture.replace("sm_", "compute_")).options
    program = nvrtc.createProgram(unit.text, "kernels.cu", [], [])
    try:
        nvrtc.compileProgram(program, options)
        return nvrtc.getPTX(program).decode()
    finally:
        nvrtc.destroyProgram(program)


def kernels(case: Case) -> set[str]:
    return {kernel.name for made in case.kernels for kernel in made.kernels}


def test_every_cuda_kernel_compiles_without_a_gpu(unit: Unit, unassembled: str) -> None:
    found = {name for name, _ in _KERNEL.findall(unassembled)}
    assert found >= {name for case in unit.cases.values() for name in kernels(case)}


def test_every_instruction_is_assembled_without_a_gpu(unit: Unit, unassembled: str) -> None:
    """Of each row that has one which no smaller row has."""
    instructions = {name: set(_INSTRUCTION.findall(body)) for name, body in _KERNEL.findall(unassembled)}
    left = set().union(*instructions.values())
    assert {"max.NaN.f32", "ex2.approx.ftz.f32", "ld.global.nc.v4.u32", "ld.global.nc.u16"} <= left
    rows = {}
    for name, case in sorted(unit.cases.items(), key=lambda row: len(Unit(dict([row]), unit.target).text)):
        own = set().union(*(instructions[kernel] for kernel in kernels(case)))
        if own & left:
            rows[name] = case
            left -= own
    assert not left
    assert unoptimised().compile(Unit(rows, unit.target).text)[:4] == b"\x7fELF"


@pytest.mark.slow
def test_every_cuda_kernel_is_assembled_without_a_gpu(unit: Unit) -> None:
    assert unoptimised().compile(unit.text)[:4] == b"\x7fELF"
