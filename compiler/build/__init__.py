"""Building: a translation unit's text comes in, the key of its binary in the kernel store goes out."""

from dlcb.compiler.build.build import build_unit
from dlcb.compiler.build.key import unit_key
from dlcb.compiler.build.toolchain import Toolchain, calls, toolchain

__all__ = ["Toolchain", "build_unit", "calls", "toolchain", "unit_key"]
