"""A compiled model's artifact comes in, a model that runs goes out. A worker loads this module and not the
compiler, which only a new rank of a model of unknown rank needs."""

from __future__ import annotations

import torch

from dlcb.compiler.compilation import compile_model
from dlcb.compiler.options import CompileOptions, Target
from dlcb.compiler.runtime.cuda import architecture
from dlcb.compiler.source import ModelSource
from dlcb.compiler.thunks import assemble
from dlcb.compiler.thunks.jit import RequestCompile, in_thread
from dlcb.compiler.thunks.model import CompiledModel
from dlcb.kernel_cache import Store


def load_model(
    source: ModelSource,
    artifact_key: str,
    store: Store,
    *,
    device: str = "cpu",
    request_compile: RequestCompile | None = None,
) -> CompiledModel:
    """Load what `compile_model` left, on "cpu" or "cuda". Nothing is captured;
    nothing is compiled but new ranks of a model of unknown rank, by
    `request_compile`, or on a thread of this process where it is None."""
    options = options_for(device)
    compile_rank = request_compile or in_thread(
        lambda ranked: compile_model(ranked, store, options).artifact_key
    )
    return assemble.load_model(
        source, artifact_key, store, device=device, request_compile=compile_rank, options=options
    )


def options_for(device: str) -> CompileOptions:
    """The options that kernels for `device` ("cpu", or "cuda" for this machine's GPU) are compiled with,
    under PyTorch's present settings."""
    if device == "cpu":
        return CompileOptions()
    return CompileOptions(
        target=Target.cuda(architecture(device)), tf32=bool(torch.backends.cudnn.allow_tf32)
    )
