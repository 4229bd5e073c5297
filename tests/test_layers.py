"""Imports flow one way. The import graph is drawn from the sources, without running them, and held against
the order that the design states: each layer imports only layers above it in the list."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Each line may import the lines above it, and itself where it is a folder; names on one line do not import
# each other.
COMPILER = (
    ("errors", "garbage", "imports"),
    ("modules", "torchscript"),
    ("dtype", "options", "report", "source"),
    ("made_of",),
    ("expr",),
    ("signature",),
    ("solver",),
    ("shapes",),
    ("ir",),
    ("bridge", "passes"),
    ("kgen",),
    ("build",),
    ("host",),
    ("runtime",),
    ("artifact",),
    ("disagreement", "parameters", "refused"),
    ("thunks",),
    ("check", "describe", "explain", "quickstart"),
    ("compilation",),
    ("loading",),
    ("driver", "stages"),
    ("bench",),
)
FREE_OF_TORCH = (
    "errors",
    "garbage",
    "imports",
    "modules",
    "dtype",
    "options",
    "signature",
    "report",
    "source",
    "made_of",
    "expr",
    "solver",
    "shapes",
    "ir",
    "passes",
    "kgen",
    "build",
    "host",
    "artifact",
    "compilation",
    "describe",
    "explain",
)
# what the server may name: the package itself, and these modules of it, which load no torch
PUBLIC = (
    "compiler",
    "compiler.errors",
    "compiler.made_of",
    "compiler.modules",
    "compiler.signature",
    "compiler.source",
    "compiler.explain",
    "compiler.report",
    "kernel_cache",
)
LOADED_WITH_THE_PACKAGE = (
    "errors",
    "garbage",
    "dtype",
    "expr",
    "signature",
)  # the rest is loaded when it is named
# (file, top-level package): imports inside a function, each with its reason
LATE = {
    (
        "compiler/bridge/guards.py",
        "torch",
    ): "torch._dynamo takes 1.5 s; only captures need it",
    ("kernel_cache/remote.py", "fsspec"): "takes 0.15 s; only a cache with a remote needs it",
    ("compiler/build/toolchain.py", "cupy"): "an extra that only CUDA targets need",
    ("compiler/quickstart.py", "transformers"): "an extra that only one factory needs",
    ("compiler/bench/suites.py", "transformers"): "an extra that only one suite needs",
    ("compiler/bench/suites.py", "torchvision"): "an extra that only one suite needs",
}


@dataclass(frozen=True)
class Import:
    """`target` is a dotted name: of a module, or of something in one."""

    file: str
    line: int
    target: str
    late: bool

    @property
    def ours(self) -> bool:
        return self.target.startswith("dlcb.")

    @property
    def words(self) -> list[str]:
        return self.target.removeprefix("dlcb.").split(".")

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.target}"


def _imports(package: str) -> list[Import]:
    found: list[Import] = []
    for path in sorted((ROOT / package).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text())
        for node, late in _statements(tree.body, late=False):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                assert node.level == 0, f"{file}:{node.lineno}: a relative import"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [Import(file, node.lineno, name, late) for name in names]
    return found


def _statements(body: list[ast.stmt], late: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The imports of a block and whether they stand inside a function; what only a type checker reads is
    left out."""
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement, late
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _statements(statement.body, late=True)
        elif not (isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test)):
            for name in ("body", "orelse", "finalbody", "handlers"):
                for inner in getattr(statement, name, []):
                    block = inner.body if isinstance(inner, ast.ExceptHandler) else [inner]
                    yield from _statements(block, late)


def _part(file: str) -> str:
    """ "compiler/kgen/cpp.py" -> "kgen", "compiler/driver.py" -> "driver"."""
    return file.split("/")[1].removesuffix(".py")


@pytest.fixture(scope="module")
def imports() -> dict[str, list[Import]]:
    return {package: _imports(package) for package in ("compiler", "kernel_cache", "server")}


def test_every_part_of_the_compiler_has_a_place(imports):
    listed = {name for row in COMPILER for name in row}
    present = {
        path.stem
        for path in (ROOT / "compiler").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert present - {"__init__"} <= listed


def test_the_compilers_layers_import_upwards_only(imports):
    depth = {name: k for k, row in enumerate(COMPILER) for name in row}
    wrong = []
    for each in imports["compiler"]:
        if not each.ours or each.words[0] != "compiler":
            continue
        here, there = _part(each.file), each.words[1]
        if here == "__init__":
            if there not in LOADED_WITH_THE_PACKAGE:
                wrong.append(str(each))
        elif there != here and there in depth and depth[there] >= depth[here]:
            wrong.append(str(each))
    assert not wrong, "\n".join(wrong)


def test_the_kernel_cache_imports_nothing_of_ours(imports):
    wrong = [str(each) for each in imports["kernel_cache"] if each.ours and each.words[0] != "kernel_cache"]
    assert not wrong, "\n".join(wrong)


def test_the_compiler_does_not_know_the_server(imports):
    wrong = [
        str(each)
        for each in imports["compiler"]
        if each.ours and each.words[0] not in ("compiler", "kernel_cache")
    ]
    assert not wrong, "\n".join(wrong)


def test_the_server_uses_public_names(imports):
    wrong = []
    for each in imports["server"]:
        if each.ours and each.words[0] != "server":
            module, name = ".".join(each.words[:-1]), each.words[-1]
            if (module not in PUBLIC and ".".join(each.words) not in PUBLIC) or name.startswith("_"):
                wrong.append(str(each))
    assert not wrong, "\n".join(wrong)


def test_torch_stays_where_it_belongs(imports):
    wrong = [
        str(each)
        for each in imports["compiler"]
        if each.target.split(".")[0] == "torch" and _part(each.file) in FREE_OF_TORCH
    ]
    wrong += [str(each) for each in imports["kernel_cache"] if each.target.split(".")[0] == "torch"]
    assert not wrong, "\n".join(wrong)


def test_the_compiler_and_the_cache_need_no_web(imports):
    web = {"pydantic", "fastapi", "starlette", "uvicorn", "orjson", "prometheus_client", "yaml"}
    wrong = [
        str(e) for p in ("compiler", "kernel_cache") for e in imports[p] if e.target.split(".")[0] in web
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_stand_at_the_top(imports):
    late = {(each.file, each.target.split(".")[0]) for rows in imports.values() for each in rows if each.late}
    assert late <= set(LATE), sorted(late - set(LATE))


def test_no_import_cycle_between_modules(imports):
    edges: dict[str, set[str]] = {}
    modules = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        for package in imports
        for path in (ROOT / package).rglob("*.py")
    }
    for rows in imports.values():
        for each in rows:
            if each.ours and not each.late:
                here = each.file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
                whole = ".".join(each.words)
                edges.setdefault(here, set()).add(whole if whole in modules else whole.rpartition(".")[0])
    assert _cycle(edges) == []


def _cycle(edges: dict[str, set[str]]) -> list[str]:
    """The modules of one cycle, in order; empty where there is none."""
    done: set[str] = set()
    for start in edges:
        path, stack = [], [(start, iter(sorted(edges.get(start, ()))))]
        path.append(start)
        while stack:
            here, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                done.add(here)
                stack.pop()
                path.pop()
            elif following in path:
                return path[path.index(following) :]
            elif following not in done and following in edges:
                path.append(following)
                stack.append((following, iter(sorted(edges[following]))))
    return []


def test_a_cycle_would_be_found():
    assert _cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]
    assert _cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
