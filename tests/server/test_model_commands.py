"""`dlcb compile`, `explain` and `bench` over a configuration of two small models, their exit codes, and a
server that starts from a bundle and compiles nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from dlcb.compiler.ir import text
from dlcb.kernel_cache import UnwritableFolder, ls, open_store
from dlcb.server.cli import app
from tests.server.conftest import HERE, Start

CONFIG = """\
server: {port: 0, spares: 0, device: cpu, grace_seconds: 0}
models:
  - name: scaled
    factory: command_models:scaled
    inputs: [{name: x, datatype: FP32, shape: [rows, columns]}]
    outputs: [y]
    dims: {columns: [0, 512]}
    bench: [{rows: 4, columns: 32}, {rows: 1, columns: 7}]
  - name: double
    factory: command_models:double
    inputs: [{name: x, datatype: FP32, shape: null}]
    outputs: [y]
    bench: [[8], [2, 3]]
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("DLCB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "models.yaml"
    path.write_text(CONFIG)
    return path


def dlcb(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(code: int, *words: object) -> str:
    """The one line that says why a command ends with this exit code, after what `bench` says it is at."""
    result = dlcb(*words)
    assert result.exit_code == code, result.output
    *others, line = result.stderr.splitlines()
    assert line.startswith("dlcb: ")
    assert all(" rounds of ours" in other for other in others)
    return line


def test_what_was_compiled_is_found_again(config: Path) -> None:
    for found in ("miss", "hit"):
        result = dlcb("compile", "--config", config, "--rank", 2)  # which `bench` has as well
        lines = result.stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["scaled", *["double"] * 3], result.output
        assert all(line.endswith(f"cache {found}") for line in lines)
    assert "free rows, columns | dynamic | 1 kernel |" in lines[0]
    assert "free rank | jit" in lines[1]
    assert "double rank 1 free x_0" in lines[2]
    assert "double rank 2 free x_0, x_1" in lines[3]


def test_a_bundle_serves_without_compiling(
    config: Path, tmp_path: Path, launch: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, compiler = tmp_path / "kernel_cache.bundle", shutil.which("g++")
    assert compiler is not None
    monkeypatch.setenv("CXX", compiler)  # a name that the machine that serves does not know
    assert "wrote" in dlcb("compile", "--config", config, "--bundle", bundle, "--rank", 3).stdout
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))  # no compiler there
    server = launch(config, "--bundle", str(bundle), "--no-compile", cache=tmp_path / "fresh")
    assert any(re.match(r"scaled .*cache hit", line) for line in server.lines)
    with server.client() as client:
        for shape in ([3], [1, 3], [1, 1, 3]):  # the first two are ranks of `bench`
            tensor = {"name": "x", "datatype": "FP32", "shape": shape, "data": [1, 2, 3]}
            answer = client.post("/v1/models/double/infer", json={"inputs": [tensor]}).json()
            assert answer["outputs"][0]["data"] == [2, 4, 6]
        found = client.get("/v1/models/double/coverage").json()
        kernels = [name for rank in found["ranks"] for name in rank["kernels"]]
        assert [rank["ranks"] for rank in found["ranks"]] == [[1], [2], [3]]
        assert len(kernels) == 3 and found["kernels"] == list(dict.fromkeys(kernels))
        assert client.get("/v1/models/scaled/coverage").json()["ranks"] is None
        metrics = client.get("/metrics").text
        (guard,) = client.get("/v1/models/scaled/coverage").json()["guards"]
        range_of_columns = {"condition": "columns <= 512", "reason": "declared: the range of 'columns'"}
        assert guard == {**range_of_columns, "source_line": "", "graph": 1}
    assert 'dlcb_shape_cache_requests_total{model="double",result="miss",tier="jit"} 3.0' in metrics
    assert 'dlcb_compile_seconds_count{model="scaled",reason="request",tier="dynamic"} 0.0' in metrics
    assert server.stop() == 0


def test_a_server_that_must_not_compile_says_what_it_lacks(config: Path, launch: Start) -> None:
    with pytest.raises(RuntimeError, match=r"hold no 'scaled' .* for cpp \S+, and compiling is refused$"):
        launch(config, "--no-compile")


def test_explain_gives_each_dim_its_reason(config: Path) -> None:
    shown = dlcb("explain", "scaled", "--config", config).stdout
    assert "scaled: dynamic tier" in shown
    for size, most, reason in (
        ("rows", "any", "nothing in the program limits it"),
        ("columns", "512", "declared: the range of 'columns'"),
    ):
        assert re.search(rf"x +│ \d +│ {size} +│ 0 to {most} +│ proven +│ refused +│", shown), shown
        assert shown.count(f"size   {size}: {reason}\n") == 1
    assert "guard  columns <= 512  [declared: the range of 'columns']\n" in shown
    assert "float32[rows, columns]" in shown
    ours = shown.replace(".softmax(dim=-1)", "")  # the user's line, which is quoted
    assert "1 generated kernel" in shown and "softmax" not in ours  # it is made of simpler operators


def test_explain_is_as_wide_as_what_it_prints_where_no_terminal_bounds_it(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    config.write_text(
        CONFIG.replace("columns", "a_long_name_of_the_columns_that_no_table_of_80_has_room_for")
    )
    shown = dlcb("explain", "scaled", "--config", config).stdout
    kernel = next(line for line in shown.splitlines() if line.startswith("│ k0_"))
    assert "float32[rows, a_long_name_of_the_columns_that_no_table_of_80_has_room_for]" in kernel
    assert kernel.rstrip().endswith("div │")


def test_what_is_in_the_cache_is_explained_without_pytorch(config: Path) -> None:
    dlcb("explain", "scaled", "--config", config)
    explain = ("-m", "dlcb.server", "explain", "scaled", "--config", str(config))
    paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(HERE))))
    result = subprocess.run(
        [sys.executable, "-X", "importtime", *explain],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "now from the kernel cache" in result.stdout
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "dlcb.compiler.host.program" in loaded and "torch" not in loaded


def test_stages_are_text_and_graphs_parse_again(config: Path) -> None:
    for stage in ("capture", "decompose", "passes"):
        shown = dlcb("explain", "scaled", "--config", config, "--stage", stage).stdout
        assert text.show(text.parse(shown)) == shown
    assert "kernel k0_div" in dlcb("explain", "scaled", "--config", config, "--stage", "schedule").stdout
    assert "rows" in dlcb("explain", "scaled", "--config", config, "--stage", "solve").stdout


def test_the_source_of_kernels(config: Path) -> None:
    shown = dlcb("explain", "double", "--rank", 3, "--source", "--config", config)
    assert 'extern "C" void add_' in shown.stdout
    shown = dlcb("explain", "scaled", "--source", "--config", config)
    assert 'extern "C" void div_' in shown.stdout and "expf" in shown.stdout


def test_bench_measures_the_sizes_of_the_file(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    result = dlcb("bench", "--config", config, "--peers", "eager", "--rounds", 1, "--out", out)
    assert result.exit_code == 0, result.output
    for case in ("scaled", "double rank 1", "double rank 2"):
        assert f'"{case}"' in out.read_text()
    assert "geometric mean" in result.stdout and "WRONG" not in result.stdout
    assert "spread of rounds: up to 1.00 times" in result.stdout  # of one


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("compile", "nobody"), "model 'nobody' is not registered; registered are double, scaled"),
        (("explain", "double", "--stage", "capture"), "'double' takes any rank: say which with --rank"),
        (("explain", "scaled", "--stage", "nowhere"), "unknown stage 'nowhere': expected one of capture"),
        (("bench", "--peers", "nobody", "scaled"), "unknown peers nobody"),
        (("bench", "--suite", "nothing"), "unknown suite 'nothing': expected one of survey"),
        (("bench", "--suite", "sizes", "scaled"), "unknown cases scaled: the suite is measured whole"),
        (("compile", "scaled", "--rank", "2"), "--rank is for models of any rank, found none in scaled"),
        (("explain", "scaled", "--rank", "2"), "--rank is for models of any rank, found none in scaled"),
    ],
)
def test_a_wrong_word_is_a_usage_error(config: Path, words: tuple[str, ...], line: str) -> None:
    assert line in refused(2, *words, "--config", config)


def test_a_wrong_file_is_a_configuration_error(config: Path) -> None:
    config.write_text(CONFIG.replace("rows: 4, ", ""))
    assert "models.yaml:8: models.0.bench.0: expected sizes of 'columns', 'rows', found 'columns'" in refused(
        2, "compile", "--config", config
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (":scaled", ":scald", "4: models.0.factory: module 'command_models' has no function 'scald', did"),
        ("_models:scaled", "_model:scaled", "4: models.0.factory: factory 'command_model:scaled': there is"),
        ("[y]", "[y, z]", "6: models.0.outputs: 2 outputs declared, the program gives 1 tensors"),
    ],
)
def test_a_declaration_that_the_code_does_not_bear_out_is_told_at_its_key(
    config: Path, old: str, new: str, words: str
) -> None:
    config.write_text(CONFIG.replace(old, new, 1))
    for command in ("compile", "explain", "bench"):
        assert f"models.yaml:{words}" in refused(2, command, "scaled", "--config", config)


def test_sizes_that_a_model_refuses_are_told_at_their_key(config: Path) -> None:
    config.write_text(CONFIG.replace("columns: 32", "columns: 513"))
    line = refused(2, "bench", "scaled", "--config", config, "--peers", "eager")
    assert "models.yaml:8: models.0.bench: axis 1 of input 'x' is 513, but 'columns' is declared as 0" in line


def test_nothing_to_measure_is_said(config: Path) -> None:
    config.write_text(re.sub(" *bench: .*", "", CONFIG))
    result = dlcb("bench", "--config", config)
    assert result.exit_code == 2 and "no `bench` sizes, so there is nothing to measure" in result.stderr


def test_a_missing_compiler(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "'no-such-compiler' cannot be run" in refused(3, "compile", "scaled", "--config", config)


def test_an_unusable_cache_folder(config: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, where a folder should be")
    assert str(tmp_path / "cache") in refused(4, "compile", "scaled", "--config", config)


def test_a_torn_bundle(config: Path, tmp_path: Path) -> None:
    config.write_text(f"cache: {{bundle: {tmp_path / 'torn'}}}\n{CONFIG}")
    (tmp_path / "torn").write_bytes(b"dlcb bundle 1\n")
    assert "torn is not a whole bundle" in refused(4, "explain", "scaled", "--config", config)


def test_a_listing_without_a_terminal_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    label = "a label that is longer than the eighty columns of a terminal " * 3
    open_store(tmp_path / "cache").put("ab" * 32, b"payload", kind="kernel", label=label)
    listed = dlcb("cache", "ls", "--folder", tmp_path / "cache")
    assert listed.exit_code == 0 and label in listed.output


def test_a_cache_without_room_is_looked_into_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    store = open_store(folder)
    store.put("ab" * 32, b"payload", kind="kernel", label="a")

    def full(*paths: Path) -> None:
        raise UnwritableFolder(folder, "No space left on device")

    monkeypatch.setattr("dlcb.kernel_cache.disk.prove_writable", full)
    for word in ("ls", "stat", "check", "prune", "clear"):
        assert dlcb("cache", word, "--folder", folder).exit_code == 0, word
    assert ls(store) == []


def test_a_cache_that_cannot_be_tidied_is_4_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    open_store(folder)
    (folder / "lock").unlink(missing_ok=True)
    (folder / "lock").mkdir()  # nobody can lock it
    assert "lock" in refused(4, "cache", "prune", "--folder", folder)


def test_a_cache_is_cleared_but_for_what_is_pinned(tmp_path: Path) -> None:
    store = open_store(tmp_path / "cache")
    for key in ("ab" * 32, "cd" * 32):
        store.put(key, b"payload", kind="kernel", label=key)
    store.pin("ab" * 32, "model:1")
    cleared = dlcb("cache", "clear", "--folder", tmp_path / "cache")
    assert cleared.exit_code == 0 and cleared.output.startswith("evicted 1 entries")
    assert [entry.key for entry in ls(store)] == ["ab" * 32]
