"""The user's own modules: those that lie in the folder of the factory's top-level module or package. They are
found without running anything of the user's, and what a compilation has loaded of them is told by digests of
their files, which a later process compares with the files that it has.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from threading import RLock
from types import CodeType
from typing import Any

from dlcb.compiler.errors import CaptureError, ChangedCode, DeclarationError
from dlcb.compiler.imports import UNKNOWN, Imports, imports_of, with_parents

INSTALLED = frozenset({"site-packages", "dist-packages"})  # other people's modules lie below these
NOT_OF_THE_MODEL = frozenset({"__main__", "__mp_main__", "dlcb"})  # the compiler's own sources are in the key

# Held while code that is not ours is imported, or makes a module, on whichever thread: of two factories each
# would draw the other's random numbers, and a package that puts another module in its own place, as
# transformers does, gives a second thread that imports it meanwhile the first, which lacks most names.
OTHERS_CODE = RLock()

_when_loaded: dict[str, str] = {}  # digests of files, by their paths
_imports: dict[str, Imports] = {}  # of what was loaded, by the same paths
_factories: set[str] = set()  # modules of all factories that were asked for
_folders: set[str] = set()  # whose modules are loaded from their text; each ends with a slash


def factory_file(factory: str) -> str:
    """The file of the module of "module:function". CaptureError when there is none."""
    module = factory.partition(":")[0]
    spec = _spec(module)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise DeclarationError(
            f"factory '{factory}': there is no module '{module}': it must be installed, on PYTHONPATH or "
            "beside the configuration file",
            key="factory",
            stage="source",
        )
    return os.path.abspath(spec.origin)


def factory_paths(factory: str) -> tuple[str, str]:
    """Where the factory's module may lie in the factory's folder, be it a file or a package."""
    parts = factory.partition(":")[0].split(".")
    if len(parts) == 1:  # a package's own folder, or the folder of a module
        return f"{parts[0]}.py", "__init__.py"
    path = "/".join(parts[1:])
    return f"{path}.py", f"{path}/__init__.py"


class _FromText(SourceFileLoader):
    """Reads a module's text and notes the digest of what it has read. Bytecode that Python has kept is not
    looked at: it is taken for any file of that size which was changed in that second."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        text = self.get_data(path)
        _when_loaded[path] = hashlib.sha256(text).hexdigest()
        package = fullname if self.is_package(fullname) else fullname.rpartition(".")[0]
        _imports[path] = _imports_in(text, package)
        return self.source_to_code(text, path)


def _finder(path: str) -> FileFinder:
    """Python's own finder for a folder, but for the loader of text. ImportError for one that is not the
    user's."""
    inside = os.path.join(os.path.abspath(path), "")
    standard = os.path.join(sysconfig.get_path("stdlib"), "")
    own = inside.startswith(tuple(_folders)) and not inside.startswith(standard)
    if not own or not os.path.isdir(path) or not INSTALLED.isdisjoint(Path(inside).parts):
        raise ImportError(f"'{path}' is no folder of the user's modules")
    extensions, bytecode = (
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )
    return FileFinder(path, extensions, (_FromText, SOURCE_SUFFIXES), bytecode)


def load_from_text(factory: str) -> None:
    """From now on this process loads the user's modules from their text as it is at that moment. CaptureError
    when there is no module of the factory."""
    file = Path(factory_file(factory))
    _factories.add(factory.partition(":")[0])
    packages = factory.partition(":")[0].count(".") + (file.stem == "__init__")
    inside = os.path.join(file.parents[packages], "")  # where Python looks for the outermost package
    if inside in _folders:
        return
    _folders.add(inside)
    if _finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _finder)
    for path in sys.path_importer_cache.copy():
        if os.path.join(os.path.abspath(path), "").startswith(inside):
            sys.path_importer_cache.pop(path, None)


def loaded(factory: str | None) -> dict[str, str]:
    """Digests of the user's own modules that are loaded now, by their paths in the folder. Left out are
    installed packages, unless the factory is in one, and the standard library.

    A module that is loaded stays what it was when its file is changed or goes: its digest is that of the text
    which was loaded (see `load_from_text`), or the file's when this process first asked for it."""
    return {path: _when_loaded[file] for _name, file, path in _own(factory)}


def imported(factory: str | None) -> dict[str, str]:
    """Of what `loaded` gives that which this factory's module may have loaded: left out is what the imports
    of other factories' modules explain, and its own do not."""
    own = list(_own(factory))
    if factory is None or not own:
        return {}
    files = {name: file for name, file, _path in own}
    mine, all_named = _reached(factory.partition(":")[0], files)
    if not all_named:
        return loaded(factory)
    others = set[str]().union(*(_reached(module, files)[0] for module in _factories.copy()))
    return {path: _when_loaded[file] for name, file, path in own if name in mine or name not in others}


def loads() -> int:
    """How many files of the user's this process knows as loaded. It grows with each."""
    return len(_when_loaded)


def _own(factory: str | None) -> Iterator[tuple[str, str, str]]:
    """Name, file, and path in the factory's folder, of each of the user's own modules that are loaded; their
    digests are known then."""
    folder = folder_of(factory) if factory else None
    if folder is None or folder.name in INSTALLED:  # beside one installed module are other packages
        return
    inside, standard = (os.path.join(path, "") for path in (folder, sysconfig.get_path("stdlib")))
    for name, module in sys.modules.copy().items():  # in one step: another thread may be importing
        file = names_in(module).get("__file__")
        if not file or not file.startswith(inside) or file.startswith(standard):
            continue
        path = Path(file).relative_to(folder)
        own = name.partition(".")[0] not in NOT_OF_THE_MODEL and INSTALLED.isdisjoint(path.parts)
        if own and (file in _when_loaded or os.path.isfile(file)):
            if file not in _when_loaded:
                _when_loaded[file] = file_digest(file)
            yield name, file, path.as_posix()


def _reached(module: str, files: Mapping[str, str]) -> tuple[set[str], bool]:
    """Names of modules among `files` that are loaded with this one, as their texts say, and whether those
    can be all."""
    reached: set[str] = set()
    waiting, all_named = with_parents(module), True
    while waiting:
        name = waiting.pop()
        if name in reached or name not in files:
            continue
        reached.add(name)
        file = files[name]
        if file not in _imports:  # loaded before this module had a say
            _imports[file] = _imports_of_file(file, name)
        imports = _imports[file]
        all_named = all_named and imports.all_named
        waiting += imports.names
    return reached, all_named


def _imports_of_file(file: str, name: str) -> Imports:
    try:
        text = Path(file).read_bytes()
    except OSError:
        return UNKNOWN
    return _imports_in(text, name if Path(file).stem == "__init__" else name.rpartition(".")[0])


def _imports_in(text: bytes, package: str) -> Imports:
    try:
        return imports_of(ast.parse(text), package)
    except (SyntaxError, ValueError, RecursionError):
        return UNKNOWN


def names_in(module: object) -> Mapping[str, Any]:
    """What a module defines now: one that Python loads when it is first used is not loaded for this."""
    try:
        names: Mapping[str, Any] = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return names


def unchanged(factory: str | None, digests: Mapping[str, str]) -> bool:
    """Whether the files are as they were when `loaded` gave these digests, here or on another machine."""
    return not rewritten(factory, digests)


def changed(factory: str | None) -> list[str]:
    """Paths, in the factory's folder, of modules of the user's that this process has loaded and that are
    others by now, of which it sees nothing: only another process loads them anew. CaptureError when the
    factory's own is gone."""
    return rewritten(factory, loaded(factory))


def rewritten(factory: str | None, digests: Mapping[str, str]) -> list[str]:
    """Of these files those that are gone or have other digests. CaptureError when the factory's own is
    gone."""
    return rewritten_in(folder_of(factory), digests) if factory and digests else []


def rewritten_in(folder: Path, digests: Mapping[str, str]) -> list[str]:
    """The same, where the factory's folder is known: nothing is looked for."""
    return sorted(path for path, digest in digests.items() if digest_now(folder / path) != digest)


def differing(factory: str | None, digests: Mapping[str, str]) -> list[str]:
    """Of these modules those that are others in this process: as it has loaded them, else as their files are
    now. CaptureError when the factory's own file is gone."""
    if not factory or not digests:
        return []
    folder = folder_of(factory)
    return sorted(
        path
        for path, digest in digests.items()
        if (_when_loaded.get(str(folder / path)) or digest_now(folder / path)) != digest
    )


def disagreement(some: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    """Modules that both know, and that are not the same."""
    return sorted(path for path in some.keys() & others.keys() if some[path] != others[path])


def require_same(factory: str | None, digests: Mapping[str, str]) -> None:
    """ChangedCode where this process has, or would load, other code than that of these digests."""
    try:
        others = differing(factory, digests)
    except CaptureError as error:
        raise ChangedCode(f"{error.message}, though there was when the model was compiled") from error
    if others:
        raise ChangedCode(said_of(others[0], factory))


def said_of(path: str, factory: str | None) -> str:
    """What is to be said of a model whose module is not what it was."""
    return (
        f"'{path}', in the folder of factory '{factory}', has changed since the model was compiled: "
        "load the model anew"
    )


def digest_now(path: str | Path) -> str:
    """The file's digest, "" where it cannot be read."""
    try:
        return file_digest(str(path))
    except CaptureError:
        return ""


def _spec(module: str) -> ModuleSpec | None:
    """What importlib.util.find_spec gives, which imports the packages on the way, and so runs them."""
    if module in sys.modules:
        return sys.modules[module].__spec__
    package, path = module.rpartition(".")[0], None
    if package:
        parent = _spec(package)
        if parent is None or parent.submodule_search_locations is None:
            return None
        path = parent.submodule_search_locations
    try:
        return next(filter(None, (finder.find_spec(module, path) for finder in sys.meta_path)), None)
    except KeyError:  # a folder without __init__.py in a package: Python looks for it in a loaded one only
        return importlib.util.find_spec(module)


def folder_of(factory: str) -> Path:
    """Of a package the package's own folder, of a module outside of any the one that it lies in."""
    file = Path(factory_file(factory))
    inside = factory.partition(":")[0].count(".") + (file.stem == "__init__")
    return file.parents[max(inside - 1, 0)]


def file_digest(path: str) -> str:
    """The sha256 of a file's content, computed once for each state of the file that a process meets: another
    that takes its place may be of the same size and, where times are copied, of the same time.
    CaptureError when it cannot be read."""
    try:
        status = Path(path).stat()
        state = (status.st_ino, status.st_ctime_ns, status.st_mtime_ns, status.st_size)
        return _digest_of_state(path, state)
    except OSError as error:
        raise CaptureError(f"'{path}' cannot be read: {error.strerror}", stage="source") from error


@lru_cache(maxsize=4096)
def _digest_of_state(path: str, state: tuple[int, ...]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
