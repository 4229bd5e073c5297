"""Random numbers that a program draws, at each call anew. PyTorch draws them, in the program and beside it;
so that the two can be compared, the numbers of one run are given to another, whatever types they are drawn
in. What a factory draws, its weights mostly, is the same in every process."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy
import torch
from torch.utils._python_dispatch import TorchDispatchMode

_SWITCHES = ("train", "training", "dropout", "dropout_p")  # arguments without which nothing is drawn
_CHOICES = ("native_dropout",)  # which is drawn is the second result, the first follows from it
# whose numbers are no results
_WITHIN = ("_cudnn", "_flash", "_efficient", "_scaled_dot", "_fused", "_fill_mem", "_lstm", "miopen")
_SEED = 0  # of what a factory draws


@contextmanager
def same_numbers() -> Iterator[None]:
    """Within, the generators of Python, NumPy and PyTorch give the same in every process, so that a factory
    that does not seed its weights gives what was compiled; afterwards they go on as if nothing had been
    drawn, or seeded, within, so that no process repeats what another draws."""
    python, arrays, cpu = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    random.seed(_SEED)
    numpy.random.seed(_SEED)
    torch.manual_seed(_SEED)
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)
        torch.set_rng_state(cpu)
        if on_gpu is not None:
            torch.cuda.set_rng_state_all(on_gpu)
        else:  # what was seeded within would hold once the GPU is used
            torch.cuda.manual_seed_all(torch.initial_seed())


def draws(operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether a call of an ATen operator draws random numbers."""
    if not isinstance(operator, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    switches = (*_SWITCHES, "p") if "dropout" in operator._opname else _SWITCHES
    for place, declared in enumerate(operator._schema.arguments):
        if declared.name in switches:
            given = arguments[place] if place < len(arguments) else declared.default_value
            if keywords.get(declared.name, given) in (False, 0):
                return False
    return True


class Drawn:
    """The random numbers of one run of a program, by operator and shape in their order."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, torch.Size], list[torch.Tensor]] = defaultdict(list)
        self.unseen = ""  # an operator that draws numbers and does not show them
        self.seeded = False  # whether anything but draws moved PyTorch's generators


class Recording(TorchDispatchMode):
    """While it is entered, what PyTorch draws enters `drawn`."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = Drawn()

    def __enter__(self) -> Self:
        self._states = _states()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._look_at_states()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not draws(func, args, kwargs or {}):
            return func(*args, **(kwargs or {}))
        self._look_at_states()
        result = func(*args, **(kwargs or {}))
        if func._opname.startswith(_WITHIN):
            self.drawn.unseen = str(func)
        else:
            chosen = result[1] if func._opname in _CHOICES else result
            self.drawn.numbers[_key(func, chosen)].append(chosen.clone())
        self._states = _states()
        return result

    def _look_at_states(self) -> None:
        if not all(map(torch.equal, self._states, _states())):
            self.drawn.seeded = True


class Repeating(TorchDispatchMode):
    """While it is entered, PyTorch draws what it drew in another run, as long as that lasts."""

    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        self._left = {key: deque(each) for key, each in drawn.numbers.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not draws(func, args, kwargs or {}):
            return result
        chosen = result[1] if func._opname in _CHOICES else result
        left = self._left.get(_key(func, chosen)) if isinstance(chosen, torch.Tensor) else None
        if left:
            chosen.copy_(left.popleft())
            if func._opname in _CHOICES:
                result[0].copy_(args[0] * chosen / (1 - args[1]))
        return result


def _states() -> list[torch.Tensor]:
    """Those of PyTorch's generators: of the CPU, and of the GPU once it is used."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]


def _key(func: Any, drawn: torch.Tensor) -> tuple[str, torch.Size]:
    """Writing into a tensor, or making one like it, draws the same."""
    return func._opname.removesuffix("_functional").rstrip("_"), drawn.shape
