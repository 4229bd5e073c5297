"""The dynamic-shape compiler: models in, kernels that serve any legal shape out. Importing this package loads
neither torch nor a toolchain; `compile_model` and what stands behind it are loaded when first named.
"""

from __future__ import annotations

from typing import Any

from dlcb.compiler.errors import (
    ArtifactError,
    CaptureError,
    ChangedCode,
    CompilerError,
    ContractError,
    DeclarationError,
    GuardError,
    IndexRangeError,
    RequestError,
    ShapeError,
    ToolchainError,
    UnknownName,
    UnsupportedOperator,
)
from dlcb.compiler.garbage import load
from dlcb.compiler.signature import BatchAxes, Dim, Signature, TensorSpec

_LAZY = {  # public name -> the module that holds it; all but the first eight load torch
    "InputDeclaration": "dlcb.compiler.source",
    "ModelSource": "dlcb.compiler.source",
    "CompileOptions": "dlcb.compiler.options",
    "find": "dlcb.compiler.artifact",
    "stored_keys": "dlcb.compiler.artifact",
    "compile_model": "dlcb.compiler.compilation",
    "find_model": "dlcb.compiler.compilation",
    "Compilation": "dlcb.compiler.compilation",
    "pin_model": "dlcb.compiler.compilation",
    "load_model": "dlcb.compiler.loading",
    "options_for": "dlcb.compiler.loading",
    "CompiledModel": "dlcb.compiler.thunks.model",
    "specialise": "dlcb.compiler.bridge.ranks",
    "stage_text": "dlcb.compiler.stages",
    "bench_registered": "dlcb.compiler.bench.cli",
    "bench_suite": "dlcb.compiler.bench.cli",
}

__all__ = [
    "ArtifactError",
    "BatchAxes",
    "CaptureError",
    "ChangedCode",
    "Compilation",
    "CompileOptions",
    "CompiledModel",
    "CompilerError",
    "ContractError",
    "DeclarationError",
    "Dim",
    "GuardError",
    "IndexRangeError",
    "InputDeclaration",
    "ModelSource",
    "RequestError",
    "ShapeError",
    "Signature",
    "TensorSpec",
    "ToolchainError",
    "UnknownName",
    "UnsupportedOperator",
    "bench_registered",
    "bench_suite",
    "compile_model",
    "find",
    "find_model",
    "load_model",
    "options_for",
    "pin_model",
    "specialise",
    "stage_text",
    "stored_keys",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(load(_LAZY[name]), name)
