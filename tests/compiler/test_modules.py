"""What a factory imports of the user's own modules: a change in one of them is a miss, found without running
them, and a bundle is found where the modules lie elsewhere."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import itertools
import json
import os
import py_compile
import subprocess
import sys
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from dlcb.compiler import modules
from dlcb.compiler.errors import ChangedCode

FACTORY = """
import torch
{helper}

class Scaled(torch.nn.Module):
    def forward(self, x):
        return x * SCALE + 1

def scaled():
    return Scaled()
"""
PROCESS = """
import json, sys
from pathlib import Path
from dlcb.compiler import CompileOptions, InputDeclaration, ModelSource
from dlcb.compiler import artifact
from dlcb.kernel_cache import bundle, open_store

what, factory, folder, packed = sys.argv[1:]
source = ModelSource("m", "1", factory, inputs=(InputDeclaration("x", "float32", ("n",)),), outputs=("y",))
options = CompileOptions(optimisation="-O0", check_shapes=1)
store = open_store(Path(folder), bundle=Path(packed) if packed and what == "find" else None)
if what == "find":
    found = artifact.find(source, options, store) is not None
    print(json.dumps([found, sorted({"torch", "helper", "pack"} & set(sys.modules))]))
elif what == "paths":
    from dlcb.compiler import modules
    file, folder = modules.factory_file(factory), modules.folder_of(factory)
    print(json.dumps(file in [str(folder / path) for path in modules.factory_paths(factory)]))
else:
    import numpy
    from dlcb.compiler import compile_model, load_model
    compilation = compile_model(source, store, options)
    if packed:
        bundle.write(store, artifact.stored_keys(source, options, store), Path(packed))
    answer = load_model(source, compilation.artifact_key, store).run({"x": numpy.ones(2, numpy.float32)})
    print(json.dumps([compilation.report.from_cache, answer.outputs["y"].tolist()[0]]))
"""


@dataclass
class Project:
    """A folder of a user's modules, and a store beside it."""

    folder: Path
    factory: str
    store: Path
    bundle: str = ""

    def __call__(self, what: str) -> list:
        """In a new process: "find" gives whether there is a hit and what was loaded for it, "compile" whether
        there was a hit and what the model answers to 1."""
        arguments = [sys.executable, "-c", PROCESS, what, self.factory, str(self.store), self.bundle]
        paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(self.folder))))
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        result = subprocess.run(arguments, check=False, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])


def neighbours(folder: Path) -> tuple[str, Path]:
    folder.mkdir()
    (folder / "model.py").write_text(FACTORY.format(helper="from helper import SCALE"))
    (folder / "helper.py").write_text("SCALE = 2\n")
    (folder / "unused.py").write_text("SCALE = 2\n")
    return "model:scaled", folder / "helper.py"


def package(folder: Path) -> tuple[str, Path]:
    (folder / "pack" / "parts").mkdir(parents=True)
    (folder / "pack" / "__init__.py").write_text("import torch\n")
    (folder / "pack" / "parts" / "__init__.py").write_text("")
    (folder / "pack" / "sizes.py").write_text("SCALE = 2\n")
    (folder / "pack" / "parts" / "model.py").write_text(FACTORY.format(helper="from pack.sizes import SCALE"))
    return "pack.parts.model:scaled", folder / "pack" / "sizes.py"


def test_a_change_in_what_the_factory_imports_is_a_miss(tmp_path: Path) -> None:
    factory, helper = neighbours(tmp_path / "project")
    project = Project(tmp_path / "project", factory, tmp_path / "store")
    assert project("compile") == [False, 3.0]
    (tmp_path / "project" / "unused.py").write_text("SCALE = 300\n")
    assert project("find") == [True, []]  # and nothing of the user's was run, nor was PyTorch loaded
    helper.write_text("SCALE = 10\n")
    assert project("find") == [False, []]
    assert project("compile") == [False, 11.0]
    assert project("find") == [True, []]
    helper.unlink()
    assert project("find") == [False, []]


def test_a_bundle_is_found_where_the_package_lies_elsewhere(tmp_path: Path) -> None:
    factory, helper = package(tmp_path / "project")
    packed = str(tmp_path / "m.bundle")
    assert Project(tmp_path / "project", factory, tmp_path / "store", packed)("compile") == [False, 3.0]
    (tmp_path / "project").rename(tmp_path / "moved")
    moved = Project(tmp_path / "moved", factory, tmp_path / "elsewhere", packed)
    assert moved("find") == [True, []]
    (tmp_path / "moved" / helper.relative_to(tmp_path / "project")).write_text("SCALE = 10\n")
    assert moved("find") == [False, []]


def test_which_modules_are_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "not_the_users.py").write_text("")
    (installed / "someones").mkdir()
    (installed / "someones" / "__init__.py").write_text("from someones import part\n")
    (installed / "someones" / "part.py").write_text("")
    (tmp_path / "the_users.py").write_text("import json, not_the_users, someones\n")
    monkeypatch.syspath_prepend(installed)
    monkeypatch.syspath_prepend(tmp_path)
    assert modules.loaded("the_users:f") == {}  # not loaded yet
    __import__("the_users")
    assert set(modules.loaded("the_users:f")) == {"the_users.py"}
    assert set(modules.loaded("someones:f")) == {"__init__.py", "part.py"}
    assert modules.loaded("not_the_users:f") == modules.loaded("json:dumps") == modules.loaded(None) == {}


def test_a_loaded_module_stays_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "loaded_before_the_change.py"
    file.write_text("SCALE = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("loaded_before_the_change")
    digests = modules.loaded("loaded_before_the_change:f")
    assert modules.unchanged("loaded_before_the_change:f", digests)
    file.write_text("SCALE = 10\n")
    assert modules.loaded("loaded_before_the_change:f") == digests
    assert modules.changed("loaded_before_the_change:f") == ["loaded_before_the_change.py"]
    assert not modules.unchanged("loaded_before_the_change:f", digests)


def test_a_module_that_waits_to_be_loaded_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waits_to_be_loaded.py").write_text("SCALE = 2\n")
    (tmp_path / "does_not_wait.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("does_not_wait")
    spec = importlib.util.find_spec("waits_to_be_loaded")
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "waits_to_be_loaded", module)
    spec.loader.exec_module(module)
    assert set(modules.loaded("does_not_wait:f")) == {"waits_to_be_loaded.py", "does_not_wait.py"}
    assert "SCALE" not in modules.names_in(module)
    assert module.SCALE == 2


def test_a_helper_whose_file_has_gone_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asks_for_help.py").write_text("import gives_help\n")
    helper = tmp_path / "gives_help.py"
    helper.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("asks_for_help")
    assert not modules.changed("asks_for_help:f")
    helper.unlink()
    assert modules.changed("asks_for_help:f") == ["gives_help.py"]
    helper.write_text("")
    assert not modules.changed("asks_for_help:f")


def test_modules_are_told_while_others_are_being_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loads_beside.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("loads_beside")
    numbers = itertools.count()

    def load_another(phase: str, info: dict[str, int]) -> None:
        monkeypatch.setitem(sys.modules, f"loaded_by_another_thread_{next(numbers)}", ModuleType("another"))

    before = gc.get_threshold()
    gc.callbacks.append(load_another)  # where the interpreter may give its thread's turn to another's
    gc.set_threshold(1)
    try:
        assert set(modules.loaded("loads_beside:f")) == {"loads_beside.py"}
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(load_another)


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What importing is made of, as it was when the test ends."""
    monkeypatch.setattr(sys, "path_hooks", list(sys.path_hooks))
    monkeypatch.setattr(modules, "_folders", set())


@pytest.mark.parametrize("package", [False, True])
@pytest.mark.usefixtures("hooks")
def test_bytecode_of_other_text_is_not_taken_for_a_modules(
    package: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"changed_within_a_second_{package}"
    file = tmp_path / name / "__init__.py" if package else tmp_path / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text("SCALE = 2\n")
    py_compile.compile(str(file))
    modified = file.stat().st_mtime_ns
    file.write_text("SCALE = 3\n")
    os.utime(file, ns=(modified, modified))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.util.find_spec("there_is_no_such_module")  # Python remembers a finder for each folder
    modules.load_from_text(f"{name}:f")
    assert importlib.import_module(name).SCALE == 3


@pytest.mark.usefixtures("hooks")
def test_a_change_just_after_loading_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "changed_at_once.py"
    file.write_text("SCALE = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    modules.load_from_text("changed_at_once:f")
    __import__("changed_at_once")
    file.write_text("SCALE = 10\n")
    assert modules.changed("changed_at_once:f")


@pytest.mark.usefixtures("hooks")
def test_installed_modules_are_loaded_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (tmp_path / "loaded_from_text.py").write_text("")
    (installed / "loaded_as_ever.py").write_text("")
    monkeypatch.syspath_prepend(installed)
    monkeypatch.syspath_prepend(tmp_path)
    modules.load_from_text("loaded_from_text:f")
    modules.load_from_text("loaded_as_ever:f")
    kinds = [type(importlib.util.find_spec(f"loaded_{how}").loader) for how in ("as_ever", "from_text")]
    assert kinds[0] is SourceFileLoader and kinds[1] is not SourceFileLoader


def test_folders_without_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bare_outside" / "bare_inside").mkdir(parents=True)
    file = tmp_path / "bare_outside" / "bare_inside" / "model.py"
    file.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert modules.factory_file("bare_outside.bare_inside.model:f") == str(file)


def write_two_models(folder: Path, name: str, text: str = "") -> None:
    """Factories in `{name}_one` and `{name}_two`; each imports a module of its own, and both a third."""
    for which in ("one", "two"):
        (folder / f"{name}_{which}.py").write_text(f"import {name}_of_{which}, {name}_shared\n{text}")
        (folder / f"{name}_of_{which}.py").write_text("")
    (folder / f"{name}_shared.py").write_text("")


@pytest.mark.usefixtures("hooks")
@pytest.mark.parametrize("from_text", [True, False])
def test_a_models_modules_are_not_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_text: bool
) -> None:
    name = f"apart_{from_text}"
    write_two_models(tmp_path, name)
    monkeypatch.syspath_prepend(tmp_path)
    for which in ("one", "two"):
        if from_text:
            modules.load_from_text(f"{name}_{which}:f")
        importlib.import_module(f"{name}_{which}")
    modules.load_from_text(f"{name}_one:f")
    modules.load_from_text(f"{name}_two:f")
    files = {f"{name}_{what}.py" for what in ("one", "of_one", "shared", "two", "of_two")}
    assert modules.loaded(f"{name}_two:f").keys() == files
    mine = {f"{name}_{what}.py" for what in ("two", "of_two", "shared")}
    assert modules.imported(f"{name}_two:f").keys() == mine


@pytest.mark.usefixtures("hooks")
def test_what_no_text_explains_is_every_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_two_models(tmp_path, "hidden")
    (tmp_path / "hidden_plugin.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("hidden_one", "hidden_two"):
        modules.load_from_text(f"{module}:f")
        importlib.import_module(module)
    importlib.import_module("hidden_plugin")  # as a library does, by a name in some file
    for which in ("one", "two"):
        assert "hidden_plugin.py" in modules.imported(f"hidden_{which}:f")


@pytest.mark.usefixtures("hooks")
def test_a_module_that_may_import_anything_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_two_models(tmp_path, "open", "if False:\n    __import__(name)\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("open_one", "open_two"):
        modules.load_from_text(f"{module}:f")
        importlib.import_module(module)
    assert "open_of_one.py" in modules.imported("open_two:f")


@pytest.mark.usefixtures("hooks")
def test_what_a_process_has_loaded_is_what_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_two_models(tmp_path, "held")
    monkeypatch.syspath_prepend(tmp_path)
    modules.load_from_text("held_one:f")
    importlib.import_module("held_one")
    code = {
        **modules.imported("held_one:f"),
        "held_two.py": modules.file_digest(str(tmp_path / "held_two.py")),
    }
    modules.require_same("held_one:f", code)
    (tmp_path / "held_shared.py").write_text("SCALE = 2\n")  # which it has loaded
    modules.require_same("held_one:f", code)
    (tmp_path / "held_two.py").write_text("SCALE = 2\n")  # which it would have to load
    with pytest.raises(
        ChangedCode, match=r"'held_two.py', in the folder of factory 'held_one:f', has changed"
    ):
        modules.require_same("held_one:f", code)
    (tmp_path / "held_one.py").unlink()
    with pytest.raises(ChangedCode, match="there is no module 'held_one'"):
        modules.require_same("held_one:f", code)


def test_a_factorys_module_is_found_among_digests(tmp_path: Path) -> None:
    for make in (neighbours, package):
        factory, _ = make(tmp_path / make.__name__)
        project = Project(tmp_path / make.__name__, factory, tmp_path / "store")
        assert project("paths") is True
