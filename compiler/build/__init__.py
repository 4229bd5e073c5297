"""Building: kernels come in, the keys of their binaries in the kernel store go out."""

from dlcb.compiler.build.build import Builder, build_unit
from dlcb.compiler.build.key import unit_key
from dlcb.compiler.build.toolchain import Toolchain, calls, toolchain

__all__ = ["Builder", "Toolchain", "build_unit", "calls", "toolchain", "unit_key"]
