"""The compilers that turn generated text into binaries: the system's C++ compiler, and NVRTC, which needs no
GPU.

A toolchain says which version it is and what it will be told, for the key, and compiles text to bytes. Every
run of a compiler is counted in `calls`. What is missing is a ToolchainError of one line that says what to do;
a text that is refused for what it says is RefusedCode."""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

from dlcb.compiler.errors import CompilerError, RefusedCode, ToolchainError
from dlcb.compiler.options import CompileOptions, Target

# -fno-math-errno and -fno-trapping-math let loops use vector code and keep NaN and infinity; -ffast-math
# would not, and would switch the whole process to flush denormals. -fwrapv: integers wrap, as tensors' do.
_CPP_OPTIONS = (
    *("-x", "c++", "-std=c++20", "-march=native", "-fopenmp"),
    *("-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-ffp-contract=fast"),
    # short loops of known length are unrolled, so that what they add up stays in registers
    *("-fpeel-loops", "-fvect-cost-model=dynamic", "-funswitch-loops"),
    # the sine and the cosine of one angle would become one call of sincos, which has no vector form
    *("-fno-builtin-sin", "-fno-builtin-cos", "-fno-builtin-sinf", "-fno-builtin-cosf"),
    *("-fno-semantic-interposition", "-shared", "-fPIC"),
)
# --minimal: no declarations of textures and the runtime's calls, which take as long to read as a small unit
_CUDA_OPTIONS = (
    *("--std=c++17", "--minimal"),
    *("--device-as-default-execution-space", "--extra-device-vectorization"),
)
_TIME_LIMIT = 600.0  # seconds for one translation unit
_ERROR_LINES = 3  # of a compiler's complaints that a message holds
_CUDA_NAME = "unit.cu"
# a complaint of the text, as opposed to one of the compiler's installation, options or headers
_OF_THE_TEXT = re.compile(rf"^(<stdin>:|{re.escape(_CUDA_NAME)}\().*: error: ", re.MULTILINE)


class _Calls:
    """How often each compiler was run in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, compiler: str) -> None:
        with self._lock:
            self._counts[compiler] = self._counts.get(compiler, 0) + 1

    @property
    def total(self) -> int:
        return sum(self._counts.values())

    def __getitem__(self, compiler: str) -> int:
        return self._counts.get(compiler, 0)


calls = _Calls()


class Toolchain(Protocol):
    """A compiler for one target."""

    @property
    def version(self) -> str:
        """The compiler and its version, in words."""
        ...

    @property
    def options(self) -> tuple[str, ...]:
        """Everything it is told besides the text; with the text and the version this decides the binary."""
        ...

    def compile(self, text: str) -> bytes:
        """The binary of a translation unit. Raises RefusedCode where the text is at fault, else
        ToolchainError."""
        ...


@dataclass(frozen=True)
class CppToolchain:
    """The system's C++ compiler; the binary is a shared library."""

    compiler: str
    optimisation: str

    @cached_property
    def version(self) -> str:
        return _first_line(_run([self.compiler, "--version"], self.compiler))

    @cached_property
    def options(self) -> tuple[str, ...]:
        return (self.optimisation, *_CPP_OPTIONS)

    @cached_property
    def machine(self) -> str:
        """What -march=native stands for on this machine, so that a store shared between machines keeps them
        apart."""
        return _native(self.compiler)

    def compile(self, text: str) -> bytes:
        calls.add("c++")
        with tempfile.TemporaryDirectory(prefix="dlcb-") as folder:
            library = Path(folder) / "unit.so"
            command = [self.compiler, *self.options, "-", "-o", str(library)]
            _run(command, self.compiler, text)
            return library.read_bytes()


@dataclass(frozen=True)
class CudaToolchain:
    """NVRTC through CuPy; the binary is a cubin for one architecture. It needs no GPU."""

    architecture: str

    @cached_property
    def version(self) -> str:
        major, minor = _nvrtc().getVersion()
        return f"NVRTC {major}.{minor}"

    @cached_property
    def options(self) -> tuple[str, ...]:
        return (*_CUDA_OPTIONS, f"-arch={self.architecture}")

    @property
    def machine(self) -> str:
        return self.architecture

    def compile(self, text: str) -> bytes:
        calls.add("nvrtc")
        nvrtc = _nvrtc()
        program = nvrtc.createProgram(text, _CUDA_NAME, [], [])
        try:
            nvrtc.compileProgram(program, [*self.options])
            return nvrtc.getCUBIN(program)
        except nvrtc.NVRTCError as error:
            raise _refusal("NVRTC", nvrtc.getProgramLog(program)) from error
        finally:
            nvrtc.destroyProgram(program)


@cache
def toolchain(target: Target, options: CompileOptions) -> CppToolchain | CudaToolchain:
    """The toolchain for a target. Nothing is run yet."""
    if target.kind == "cuda":
        return CudaToolchain(target.architecture)
    return CppToolchain(options.compiler, options.optimisation)


def _run(command: list[str], compiler: str, text: str = "") -> str:
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=_TIME_LIMIT, check=False
        )
    except OSError as error:
        message = (
            f"the C++ compiler {compiler!r} cannot be run ({error.strerror}): install g++ or name one in $CXX"
        )
        raise ToolchainError(message, stage="build") from error
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(f"{compiler} did not finish in {_TIME_LIMIT:g} s", stage="build") from error
    if done.returncode != 0:
        raise _refusal(compiler, done.stderr)
    return done.stdout


@cache
def _native(compiler: str) -> str:
    lines = _run([compiler, "-march=native", "-Q", "--help=target"], compiler).splitlines()
    chosen = [line.split() for line in lines if line.startswith("  -m")]
    return " ".join("=".join(words) for words in chosen if len(words) == 2 and words[1] != "[disabled]")


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else "unknown"


def _refusal(compiler: str, log: str) -> CompilerError:
    if _OF_THE_TEXT.search(log):
        return RefusedCode(f"{compiler} refused generated code: {_complaint(log)}", stage="build")
    return ToolchainError(f"{compiler} failed: {_complaint(log)}", stage="build")


def _complaint(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if "error" in line] or log.splitlines()
    return "; ".join(lines[:_ERROR_LINES])


def _nvrtc() -> Any:
    # imported late: CuPy is an extra that only CUDA targets need, and takes a second to import
    try:
        from cupy.cuda import nvrtc  # noqa: PLC0415
    except ImportError as error:
        raise ToolchainError(f"no NVRTC ({error}): install dlcb[cuda]", stage="build") from error
    return nvrtc
