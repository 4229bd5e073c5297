"""The compiler's errors: one tree, which every stage raises from and nothing else. Each error carries the
stage that raised it, the node it was working on and the line of the user's source that made the node, where
these are known.

    CompilerError
    ├── ShapeError            shapes that contradict each other; the message names both operands
    ├── UnsupportedOperator   no rule for an operator: the partition makes an eager node of it
    ├── CaptureError          the program could not be traced, or its factory failed
    │   └── DeclarationError  what is declared of a model is not what its code has
    ├── ToolchainError        g++ or NVRTC is missing, or does not run
    ├── RefusedCode           the compiler refused a text that we generated: PyTorch serves the model
    ├── TooLong               kernels are too large: smaller ones are made, or PyTorch serves the model
    │   └── OperatorTooLong   a kernel of one operator is: PyTorch runs the calls of its line
    ├── Incomparable          its answers cannot be compared with PyTorch's, which serves the model
    ├── ChangedCode           the user's code is another than the one that was compiled
    ├── UnknownName           a stage, suite, case or peer that does not exist
    ├── ArtifactError         an artifact or a kernel in the store cannot be used
    └── RequestError          the caller's fault; over HTTP a 400
        ├── ContractError     inputs break the declared or proven signature
        ├── GuardError        inputs break a guard, and eager rejects them as well
        └── IndexRangeError   an index value lies outside the axis it reads
"""

from __future__ import annotations


class CompilerError(Exception):
    """The root. `message` is the bare sentence; `str()` adds stage, node and source line where they are
    known."""

    def __init__(self, message: str, *, stage: str = "", node: str = "", source_line: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.stage = stage
        self.node = node
        self.source_line = source_line

    def __str__(self) -> str:
        place = [f"in {self.stage}"] if self.stage else []
        place += [f"at {self.node}"] if self.node else []
        place += [f"from {self.source_line}"] if self.source_line else []
        return f"{self.message} ({', '.join(place)})" if place else self.message


class ShapeError(CompilerError):
    """Two shapes that cannot both hold; found while the graph is built."""


class UnsupportedOperator(CompilerError):
    """An operator, dtype or argument that no declaration covers."""


class CaptureError(CompilerError):
    """The user's program could not be run or traced."""


class DeclarationError(CaptureError):
    """A declaration that the user's code or file does not bear out; `key` is the one that says so, "factory",
    "inputs", "outputs" or, of the first input, "inputs.0.datatype"."""

    def __init__(self, message: str, *, key: str, stage: str = "") -> None:
        super().__init__(message, stage=stage)
        self.key = key


class ToolchainError(CompilerError):
    """The C++ or CUDA compiler is missing, or cannot be run."""


class RefusedCode(CompilerError):
    """The C++ or CUDA compiler found an error in generated text: a fault of ours, which PyTorch makes up
    for."""


class TooLong(CompilerError):
    """Kernels were not generated within their limits: smaller ones are, or PyTorch makes up for it."""


class OperatorTooLong(TooLong):
    """The kernel of one operator, which nothing divides: PyTorch runs what the user's line asks for."""


class Incomparable(CompilerError):
    """A program of which nobody could tell whether it is the model."""


class ChangedCode(CompilerError):
    """A module of the user's is another than the one that the model was compiled from: PyTorch must not run
    it beside what was compiled."""


class UnknownName(CompilerError):
    """A word that names no stage, benchmark suite, case or peer; the message lists those that exist."""


class ArtifactError(CompilerError):
    """A stored artifact is missing, of another version, or names kernels that are gone."""


class RequestError(CompilerError):
    """Inputs that the caller can correct."""


class ContractError(RequestError):
    """Inputs that break the signature: a name, a dtype, a rank, a range or an equality of dims."""


class GuardError(RequestError):
    """Inputs that break a derived guard and that eager execution rejects too."""


class IndexRangeError(RequestError):
    """An index value outside `low <= value < high`, found before anything was read through it.

    `position` is the place of the value in the input, one integer an axis: with a stacked batch its entry
    along the batch axis tells whose row is wrong.
    """

    def __init__(
        self, input: str, position: tuple[int, ...], value: int, low: int, high: int, **place: str
    ) -> None:
        super().__init__(
            f"input '{input}' holds {value} at position {list(position)}, "
            f"where {low} to {high - 1} is allowed",
            **place,
        )
        self.input = input
        self.position = tuple(position)
        self.value = value
        self.low = low
        self.high = high
