"""Kernel generation: fused groups of operators come in, kernels as text and launch data go out, for C++ and
CUDA."""

from dlcb.compiler.kgen.generate import generate, translation_unit
from dlcb.compiler.kgen.kernel import BufferArgument, IndexCheck, Kernel, KernelSet, Parameter

__all__ = ["BufferArgument", "IndexCheck", "Kernel", "KernelSet", "Parameter", "generate", "translation_unit"]
