"""Configuration files: what is wrong is said in one line with its place, and the shipped file explains every
key."""

# ruff: noqa: E501 - a table reads best with one line a case

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from dlcb.server.errors import ConfigError
from dlcb.server.repository import Repository
from dlcb.server.settings import Batching, Cache, Input, Keys, Limits, Model, Server, read

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
GOOD = """\
server:
  port: 8000
models:
  - name: m
    factory: some.where:make
    inputs:
      - {name: x, datatype: FP32, shape: [batch, 3]}
    outputs: [y]
"""


def test_what_turns_out_later_is_told_at_its_key(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(GOOD)
    settings = read(path)
    for key, line in (("factory", 5), ("inputs.0.datatype", 7), ("outputs", 8)):
        told = settings.at_key(settings.models[0], key, "is wrong")
        assert str(told) == f"{path}:{line}: models.0.{key}: is wrong"


def wrong(tmp_path: Path, old: str, new: str) -> str:
    path = tmp_path / "c.yaml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(path))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("port: 8000", "port: 80000", ":2: server.port: .*65535.* found 80000"),
        ("port: 8000", "prot: 8000", ":2: server.prot: unknown key; did you mean 'port'"),
        ("port: 8000", "zzz: 8000", ":2: server.zzz: unknown key; known are 'access_log_every', 'backend', "),
        ("port: 8000", "keys: {groups: [{nam: a, keys: [b]}]}", ":2: .*groups.0.nam: .*did you mean 'name'"),
        ("    outputs: [y]", "    outputs: [y]\n    batching: {max_row: 3}", ":9: models.0.batching.max_row: .*'max_rows'"),
        ("port: 8000", "port: [", ":.*: not YAML"),
        ("port: 8000", "workers: 0", ":2: server.workers: "),
        ("port: 8000", "keys: {admin: ['env:NO_SUCH_VARIABLE_HERE']}", ":2: server.keys.admin: .*NO_SUCH_VARIABLE_HERE"),
        ("FP32", "FP33", ":7: models.0.inputs.0.datatype: 'FP33' is not one of BOOL"),
        ("[batch, 3]", "[batch, 3], values: [2, 0]", ":7: models.0.inputs.0.values: .*2 is not below 0"),
        ("[batch, 3]", "[batch, -3]", ":7: models.0.inputs.0.shape.1: expected a name for a free dim .* or a number of at least 0, found -3$"),
        ("[batch, 3]", "[batch, -1]", ":7: models.0.inputs.0.shape.1: .* found -1; a free dim has a name here, such as 'batch'"),
        ("[batch, 3]", "['-1', 3]", ":7: models.0.inputs.0.shape.0: .* found '-1'; a free dim has a name here"),
        ("[batch, 3]", "[batch, 1.5]", ":7: models.0.inputs.0.shape.1: expected a name .* found 1.5$"),
        ("[batch, 3]", "[batch, true]", ":7: models.0.inputs.0.shape.1: expected a name .* found True$"),
        ("[batch, 3]", "[batch, 'a b']", ":7: models.0.inputs.0.shape.1: 'a b' is no name of a dim: expected letters"),
        ("    outputs: [y]", "    outputs: [y]\n    dims: {'a b': [3, 4]}", ":9: models.0.dims.a b: 'a b' is no name of a dim"),
        ("some.where:make", "nonsense", ":5: models.0.factory: expected module:function, found 'nonsense'"),
        ("port: 8000", "port: eight", ":2: server.port: expected an integer, found 'eight'"),
        ("[batch, 3]", "batch", ":7: models.0.inputs.0.shape: expected a list, found 'batch'"),
        ("    outputs: [y]", "    outputs: [y]\n    version: 2", ":9: models.0.version: expected text, in quotes, found 2"),
        ("    outputs: [y]\n", "", ":4: models.0.outputs: is missing"),
        ("port: 8000", "tls_certificate: a.pem", ":2: server.tls_certificate: tls_certificate and tls_key belong together"),
        ("port: 8000", "tls_certificate: a.pem\n  tls_key: b.pem", ":2: server.tls_certificate: there is no file /.*/a.pem"),
        ("    factory: some.where:make\n", "", ":4: models.0: exactly one of"),
        ("    outputs: [y]", "    outputs: [y]\n    program: a.pt2", ":9: models.0.program: exactly one of"),
        ("    outputs: [y]", "    outputs: [y]\n    bench:\n      - {batch: 3}\n      - {bach: 3}", ":11: models.0.bench.1: expected sizes of 'batch'"),
        ("name: m", "name: m/n", ":4: models.0.name: expected letters, digits, .* found 'm/n'"),
        ("    outputs: [y]", "    outputs: [y, y]", ":8: models.0.outputs.1: output 'y' is declared twice"),
        ("    outputs: [y]", "    outputs: [y]\n    batching: {mask: msk}", ":9: models.0.batching.mask: 'msk' is no input; inputs are 'x'"),
        ("    outputs: [y]", "    outputs: [y]\n    dims: {batch: [3, 2]}", ":9: models.0.dims.batch: 'batch' has the empty range"),
        ("    outputs: [y]", "    outputs: [y]\n    dims: {other: [3, 4]}", ":9: models.0.dims.other: 'other' stands in no"),
        ("    outputs: [y]", "    outputs: [y]\n    weights: [none.pt]", ":9: models.0: 'none.pt': there is no file"),
        ("    outputs: [y]", "    outputs: [y]\n    weights: ['package:no_such_package_here/w']", ":9: .* no package"),
        ("port: 8000", "keys: {groups: [{name: g, keys: [k], models: [m, n]}]}", ":2: server.keys: group 'g' names model 'n'; registered are 'm'"),
        ("    outputs: [y]", "    outputs: [y]\n    weights: ['package:no_such_package.here/w']", ":9: .* no package 'no_such_package.here'"),
        ("port: 8000", "port: 8000\n  port: 9000", ":3: key 'port' is given twice"),
        ("port: 8000", "port: 1" + "0" * 5000, ":1: not YAML: .*digit"),
        ("port: 8000", "port: 2020-99-99", ":1: not YAML: month"),
        ("port: 8000", "port: " + "[" * 2000 + "]" * 2000, ":1: .* nested too deep"),
        ("port: 8000", "grace_seconds: .inf", ":2: server.grace_seconds: Input should be a finite number"),
        ("port: 8000", "limits: {requests_per_second: 1.0e-320}", ":2: server.limits.requests_per_second: .*0.000001"),
        ("port: 8000", "keys: {infer: [' a']}", ":2: server.keys.infer: a key: expected printable ASCII"),
        ("port: 8000", "keys: {infer: ['é']}", ":2: server.keys.infer: a key: expected printable ASCII"),
        ("port: 8000", "keys: {infer: [a], groups: [{name: g, keys: [a]}]}", ":2: server.keys: a key of group 'g' is one of 'infer' as well"),
        ("port: 8000", "keys: {groups: [{name: g, keys: [a]}, {name: h, keys: [b, a]}]}", ":2: server.keys: a key of group 'h' is one of group 0"),
        ("name: m", f"name: {'m' * 300}", ":4: models.0.name: .* at most 100"),
        ("[batch, 3]", "[class, 3]", ":7: models.0.inputs.0.shape.0: 'class' means something"),
        ("[batch, 3]", "[batch, where]", ":7: models.0.inputs.0.shape.1: 'where' means something"),
        ("[batch, 3]", str([1] * 33), ":7: models.0.inputs.0.shape: .* at most 32"),
        ("    outputs: [y]", "    outputs: [y]\n    arguments: {a: [.nan]}", ":9: models.0.arguments: nan has no form in JSON"),
        ("    outputs: [y]", "    outputs: [y]\n    arguments: {a: 2020-01-01}", ":9: models.0.arguments: .* is date"),
        ("    outputs: [y]", "    outputs: [y]\n    arguments: {a: " + "9" * 40 + "}", ":9: models.0.arguments: an integer of 133 bits"),
        ("    outputs: [y]", "    outputs: [y]\n    limits: {inflight_bytes: 5}", ":9: models.0.limits.inflight_bytes: counts over all models"),
        ("    outputs: [y]", f"    outputs: [y]\n    weights: [{'w' * 5000}]", ":9: models.0: 'w{100}...': cannot be looked up"),
        ("models:", "modles:", ":3: modles: unknown key; did you mean 'models'"),
    ],
)  # fmt: skip
def test_an_error_names_line_key_and_rule(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert re.match(expected, wrong(tmp_path, old, new)), wrong(tmp_path, old, new)


def test_a_model_registered_twice(tmp_path: Path) -> None:
    twice = GOOD.partition("models:\n")[2]
    message = wrong(tmp_path, "    outputs: [y]\n", "    outputs: [y]\n" + twice)
    assert message == ":9: models.1: 'm' version '1' is registered twice"


def test_paths_in_the_file_start_where_it_lies_and_those_of_the_command_line_do_not(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(GOOD + "cache: {folder: kernels, bundle: a.bundle}\n")
    assert read(path).cache.folder == tmp_path / "kernels"
    assert read(path).cache.bundle == tmp_path / "a.bundle"
    assert read(path, {}, {"bundle": Path("b.bundle")}).cache.bundle == Path("b.bundle")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / "none.yaml")


def test_overrides_go_through_the_same_checks(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(GOOD)
    assert read(path, {"port": 9}).server.port == 9
    with pytest.raises(ConfigError, match=r"server\.port"):
        read(path, {"port": -1})


def test_keys_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "secret")
    path = tmp_path / "c.yaml"
    path.write_text(GOOD.replace("port: 8000", "keys: {infer: ['env:THE_KEY', plain]}"))
    assert read(path).server.keys.infer == ("secret", "plain")


def test_the_quickstart_file_is_valid_and_its_weights_are_files() -> None:
    settings = read(QUICKSTART)
    assert [model.name for model in settings.models] == ["minilm", "pnet", "standardize"]
    for model in settings.models:
        assert all(Path(weights).is_absolute() for weights in model.source(settings.folder).weights)


def test_the_quickstart_file_explains_every_key() -> None:
    text = QUICKSTART.read_text()
    sections: tuple[type[BaseModel], ...] = (Server, Cache, Limits, Keys, Batching, Input, Model)
    keys = {name for section in sections for name in section.model_fields}
    assert {key for key in keys if not re.search(rf"^[\s#-]*{key}:", text, re.MULTILINE)} == set()


def test_a_model_has_the_server_s_limits_where_it_names_none(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        """
server: {limits: {timeout_ms: 70, queue_requests: 3}}
models:
  - name: m
    factory: a:b
    inputs: [{name: x, datatype: FP32, shape: [n]}]
    outputs: [y]
    limits: {queue_requests: 5}
"""
    )
    found = read(path)
    limits = Repository(found).limits(found.models[0])
    assert (limits.timeout_ms, limits.queue_requests, limits.body_bytes) == (70, 5, 64 << 20)


def test_a_model_of_several_files_names_them_all(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    for name in ("a.pt2", "b.pt2"):
        (tmp_path / name).touch()
    path.write_text(GOOD.replace("factory: some.where:make", "program: [a.pt2, b.pt2]"))
    source = read(path).models[0].source(tmp_path)
    assert (source.program, source.beside) == (str(tmp_path / "a.pt2"), (str(tmp_path / "b.pt2"),))
    path.write_text(GOOD.replace("factory: some.where:make", "program: a.pt2"))
    source = read(path).models[0].source(tmp_path)
    assert (source.program, source.beside) == (str(tmp_path / "a.pt2"), ())
    assert "models.0.program" in wrong(tmp_path, "factory: some.where:make", "program: []")
