"""What a module's text imports, and where that cannot be known from it."""

from __future__ import annotations

import ast

import pytest

from dlcb.compiler.imports import imports_of


@pytest.mark.parametrize(
    ("text", "package", "names"),
    [
        ("import a.b", "", {"a", "a.b"}),
        ("def f():\n    from a import b", "", {"a", "a.b"}),
        ("from . import b", "p.q", {"p", "p.q", "p.q.b"}),
        ("from ..r import b as c", "p.q", {"p", "p.r", "p.r.b"}),
        ("import_me = 1", "", set()),
    ],
)
def test_names(text: str, package: str, names: set[str]) -> None:
    imports = imports_of(ast.parse(text), package)
    assert imports.names == names and imports.all_named


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\nimportlib.import_module(name)",
        "__import__(name)",
        "exec(text)",
        "from importlib.util import spec_from_file_location as find\nfind(name, path)",
        "import pickle",
        "torch.load(path, weights_only=False)",
    ],
)
def test_what_may_import_anything(text: str) -> None:
    assert not imports_of(ast.parse(text), "").all_named
