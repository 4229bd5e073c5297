"""NVRTC, which needs no GPU, takes every CUDA kernel."""

from dataclasses import dataclass

from kernel_agreement import cuda_unit

from dlcb.compiler.build import toolchain
from dlcb.compiler.build.toolchain import CudaToolchain
from dlcb.compiler.options import CompileOptions, Target


@dataclass(frozen=True)
class Unoptimised(CudaToolchain):
    """Half the time, and the same complaints."""

    @property
    def options(self) -> tuple[str, ...]:
        return (*super().options, "--device-debug")


def test_every_cuda_kernel_compiles_without_a_gpu() -> None:
    target = Target.cuda()
    shipped = toolchain(target, CompileOptions(target=target))
    assert isinstance(shipped, CudaToolchain)
    assert Unoptimised(shipped.architecture).compile(cuda_unit().text)[:4] == b"\x7fELF"
