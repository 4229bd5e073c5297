"""A worker loads its models on threads: factories run one at a time there."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from dlcb.compiler.bridge import partition
from dlcb.compiler.bridge.capture import load_module
from dlcb.compiler.source import ModelSource

COUNT = 8
Named = Callable[[str], list[ModelSource]]
FACTORIES = """
import threading, time
import torch

running, most = 0, 0


def drawn(width):
    layers = []
    for _ in range(20):
        time.sleep(0.0005)  # others have their turn between any two draws
        layers.append(torch.nn.Linear(width, width))
    return torch.nn.Sequential(*layers)


def counted(width):
    global running, most
    running += 1
    most = max(most, running)
    time.sleep(0.01)
    running -= 1
    return torch.nn.Linear(width, width)


def nested(width):
    from dlcb.compiler.bridge.capture import load_module
    from dlcb.compiler.source import ModelSource
    arguments = {"width": width}
    return load_module(ModelSource("inner", "1", factory="threaded_factories:counted", arguments=arguments))
"""

REPLACED = """
import sys, time, types, torch
time.sleep(0.4)

class Lazy(types.ModuleType):
    def __getattr__(self, name):
        if name != "Layer":
            raise AttributeError(name)
        return torch.nn.Linear

lazy = Lazy(__name__)
lazy.__spec__ = __spec__
sys.modules[__name__] = lazy
"""
USING = """
import replaced_library

def made():
    return replaced_library.Layer(2, 2)
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Named:
    (tmp_path / "threaded_factories.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "threaded_factories", raising=False)

    def named(function: str) -> list[ModelSource]:
        factory = f"threaded_factories:{function}"
        return [ModelSource("m", "1", factory=factory, arguments={"width": 4 + k}) for k in range(COUNT)]

    return named


def together(sources: list[ModelSource]) -> list[torch.nn.Module]:
    with ThreadPoolExecutor(len(sources)) as threads:
        return list(threads.map(load_module, sources))


def test_each_draws_what_it_draws_alone(sources: Named) -> None:
    alone = [load_module(source).state_dict() for source in sources("drawn")]
    for module, expected in zip(together(sources("drawn")), alone, strict=True):
        for name, value in module.state_dict().items():
            assert torch.equal(value, expected[name])


def test_one_runs_at_a_time(sources: Named) -> None:
    together(sources("counted"))
    assert sys.modules["threaded_factories"].most == 1


def test_one_may_load_another(sources: Named) -> None:
    done = threading.Thread(target=together, args=(sources("nested")[:2],), daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive()


def test_what_others_draw_goes_on_as_if_no_factory_had_run(sources: Named) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    together(sources("drawn"))
    assert torch.equal(torch.rand(3), expected)


def test_a_package_that_replaces_itself_is_whole_for_a_factory_beside_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread imports it for an operator, another since a factory's module does."""
    (tmp_path / "replaced_library.py").write_text(REPLACED)
    (tmp_path / "replaced_factory.py").write_text(USING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(partition, "is_installed", lambda module: True)
    with ThreadPoolExecutor(2) as threads:
        operator = threads.submit(partition.find, "replaced_library:aten.sin.default")
        time.sleep(0.1)  # it is importing by now
        module = threads.submit(load_module, ModelSource("m", "1", factory="replaced_factory:made"))
        assert operator.result() is torch.ops.aten.sin.default
        assert isinstance(module.result(), torch.nn.Linear)
