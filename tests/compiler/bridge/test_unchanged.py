"""What a forward on fake tensors leaves in a module's attributes and in the memory of functions is gone."""

from __future__ import annotations

import functools
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dlcb.compiler.bridge import unchanged as bridge_unchanged
from dlcb.compiler.bridge.capture import trace
from dlcb.compiler.bridge.unchanged import State, unchanged


@functools.lru_cache
def remembered(n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float32)


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by_length: dict[int, torch.Tensor] = {3: torch.zeros(3)}
        self.met: list[int] = [3]
        self.longest: torch.Tensor | None = None
        self.part = nn.Identity()
        self.register_buffer("places", torch.zeros(1))

    @functools.lru_cache  # noqa: B019
    def own(self, n: int) -> torch.Tensor:
        return torch.ones(n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        self.met.append(n)
        if n not in self.by_length:
            self.by_length[n] = torch.arange(n, dtype=torch.float32)
        if self.longest is None or len(self.longest) < n:
            self.longest = torch.arange(n, dtype=torch.float32)
        self.register_buffer("places", torch.arange(n))
        self.part.used = x
        return x + self.by_length[n] + self.longest[:n] + remembered(n) + self.own(n) + self.places


def test_a_trace_changes_nothing() -> None:
    module = Tables()
    tables, met, places = module.by_length, module.met, module.places
    for n in (5, 7, 5):
        trace(module, {"x": torch.zeros(n)})
    assert module.by_length is tables and list(tables) == [3]
    assert module.met is met == [3]
    assert module.longest is None and module.places is places and not hasattr(module.part, "used")
    assert remembered.cache_info().currsize == 0 == Tables.own.cache_info().currsize
    assert type(module(torch.zeros(5))) is torch.Tensor


CROWD: list[SimpleNamespace] = []


def test_a_file_that_holds_more_than_is_looked_at_hides_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_unchanged, "_MOST", 60)
    monkeypatch.setitem(globals(), "CROWD", [SimpleNamespace(number=number) for number in range(100)])
    module = Tables()
    with unchanged(module):
        module(torch.zeros(5))
    assert list(module.by_length) == [3] and module.met == [3] and module.longest is None


def test_who_loaded_a_file_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = SimpleNamespace(loaded=["a file"])
    monkeypatch.setitem(globals(), "__loader__", loader)
    with unchanged(Tables()):
        loader.loaded.append("another")
    assert loader.loaded == ["a file", "another"]


ELSEWHERE: dict[int, torch.Tensor] = {}


class Everywhere(nn.Module):
    """Keeps what it made wherever Python lets it."""

    made: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, memory: dict[str, torch.Tensor] = {}) -> torch.Tensor:  # noqa: B006
        global kept
        if type(self).made is None:
            type(self).made = kept = torch.ones(x.shape[1])
        ELSEWHERE.setdefault(x.shape[1], torch.ones(x.shape[1]))
        memory.setdefault("ones", torch.ones(x.shape[1]))
        return x + type(self).made + kept + ELSEWHERE[x.shape[1]] + memory["ones"]


def test_a_trace_changes_nothing_in_classes_and_files() -> None:
    module = Everywhere()
    trace(module, {"x": torch.zeros(5, 4)})
    assert Everywhere.made is None and not ELSEWHERE and "kept" not in globals()
    assert Everywhere.forward.__defaults__ == ({},)


def test_only_what_changed_is_put_back() -> None:
    module = Tables()
    module.settings = SimpleNamespace(window=7, sizes=deque([1]), names={"a"}, itself=None)
    module.settings.itself = module.settings
    state = State(module)
    assert not state.restore()
    module.settings.window, module.settings.fresh = 3, True
    module.settings.sizes.append(2)
    module.settings.names.clear()
    module.by_length[3] = torch.zeros(3)
    module.by_length[4] = torch.zeros(4)
    assert state.restore() and not state.restore()
    settings = module.settings
    assert (settings.window, settings.sizes, settings.names) == (7, deque([1]), {"a"})
    assert not hasattr(settings, "fresh") and list(module.by_length) == [3]


def test_what_is_raised_goes_through() -> None:
    module = nn.Linear(2, 2)
    try:
        with unchanged(module):
            module.extra = 1
            raise KeyError("extra")
    except KeyError:
        pass
    assert not hasattr(module, "extra") and module(torch.zeros(1, 2)).shape == (1, 2)


def test_blocks_within_another_look_for_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module, states = Tables(), list[State]()
    made = State.__init__

    def counted(self: State, *arguments: Any, **keywords: Any) -> None:
        states.append(self)
        made(self, *arguments, **keywords)

    monkeypatch.setattr(State, "__init__", counted)
    with unchanged(module):
        for n in (5, 7):
            with unchanged(module):
                module(torch.zeros(n))
            assert list(module.by_length) == [3] and module.longest is None
            assert remembered.cache_info().currsize == 0
        module.met.append(0)
    assert len(states) == 1 and module.met == [3]
    module.met.append(0)  # what changes outside is what a later block leaves
    with unchanged(module):
        module(torch.zeros(5))
    assert len(states) == 2 and module.met == [3, 0]
