"""The names that a module's text imports, anywhere in it. A text may import by names that only a run makes:
then nobody can list them, and that is said."""

from __future__ import annotations

import ast
from dataclasses import dataclass

# whoever mentions these may import whatever it likes
ANYTHING = frozenset(
    {"__import__", "import_module", "exec", "eval", "run_path", "run_module", "spec_from_file_location"}
)
UNPICKLES = frozenset({"pickle", "dill", "cloudpickle", "joblib"})


@dataclass(frozen=True)
class Imports:
    """Modules, by their full names, of which some may be none (`from a import b`: b may be a function).
    `all_named`: it can import no others."""

    names: frozenset[str]
    all_named: bool


UNKNOWN = Imports(frozenset(), False)


def imports_of(tree: ast.AST, package: str) -> Imports:
    """What the text of a module imports that lies in `package` ("": in none)."""
    names: set[str] = set()
    all_named = True
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names.update(alias.name for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                base = _absolute(module or "", package, level)
                names.add(base)
                names.update(f"{base}.{alias.name}" for alias in aliases)
                all_named = all_named and ANYTHING.isdisjoint(alias.name for alias in aliases)
            case ast.Name(id=word) | ast.Attribute(attr=word):
                all_named = all_named and word not in ANYTHING
            case ast.keyword(arg="weights_only", value=ast.Constant(value=False)):
                all_named = False  # torch.load makes objects of any class
    all_named = all_named and UNPICKLES.isdisjoint(name.partition(".")[0] for name in names)
    return Imports(frozenset(parent for name in names for parent in with_parents(name)), all_named)


def with_parents(name: str) -> list[str]:
    """A module's name and those of the packages that it lies in."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _absolute(module: str, package: str, level: int) -> str:
    if not level:
        return module
    above = package.rsplit(".", level - 1)[0]
    return f"{above}.{module}" if module else above
