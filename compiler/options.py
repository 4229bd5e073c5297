"""What a compilation may choose: the target machine and the options. The environment is read here and nowhere
else.

Each field says whether it enters a kernel's key; two compilations with equal keys give interchangeable
kernels."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """A machine that kernels are made for. `kind` is "cpp" or "cuda"; `architecture` is e.g. "sm_90" or
    "native"."""

    kind: str
    architecture: str

    @staticmethod
    def cpp() -> Target:
        return Target("cpp", f"{platform.machine()}-native")

    @staticmethod
    def cuda(architecture: str = "sm_90") -> Target:
        return Target("cuda", architecture)


@dataclass(frozen=True)
class CompileOptions:
    """Options of one compilation."""

    target: Target = field(default_factory=Target.cpp)  # in the key
    optimisation: str = "-O2"  # in the key; the C++ compiler's level
    static: bool = False  # in the key; sizes are literals in the source
    tf32: bool = (
        True  # in the graph's digest; on CUDA convolutions may round float32 to TF32: PyTorch's default
    )
    check_shapes: int = 6  # not in the key; shapes compared with eager when a model is compiled, 0: none
    probes: int = 2  # not in the key; traces at distinct sizes; one more where a literal stays uncertain
    guard_seconds: float = 10.0  # not in the key; processor time of the forward that collects guards
    region_values: int = (
        5000  # not in the key; what a kernel may compute for an element; beyond it is divided
    )
    region_seconds: float = 60.0  # not in the key; processor time for generating the kernels of a region
    generate_seconds: float = 600.0  # not in the key; the same for those of a model
    stop_after: str | None = None  # not in the key; the pipeline ends after the stage of this name
    only_stored: bool = False  # not in the key; what the store lacks is an error instead of a compilation
    compiler: str = field(default_factory=lambda: os.environ.get("CXX", "g++"))  # its version is in the key
    threads: int = field(
        default_factory=lambda: int(os.environ.get("DLCB_COMPILE_THREADS", "0")) or os.cpu_count() or 1
    )


def cache_folder() -> Path:
    """Where kernels are kept: $DLCB_CACHE, or ~/.cache/dlcb."""
    return Path(os.environ.get("DLCB_CACHE") or Path.home() / ".cache" / "dlcb")
