"""Weights and programs that change under a loaded model: one rule tells, whoever reads them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from dlcb.compiler import (
    ChangedCode,
    CompileOptions,
    InputDeclaration,
    ModelSource,
    compile_model,
    find,
    load_model,
    made_of,
    modules,
)
from dlcb.kernel_cache import open_store


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    for name in ("a", "b", "m.pt2"):
        (tmp_path / name).write_text(name)
    weights = (str(tmp_path / "a"), str(tmp_path / "b"))
    return ModelSource("m", "1", program=str(tmp_path / "m.pt2"), weights=weights)


def exchanged(path: Path) -> None:
    """Another file of the same size and time takes its place."""
    status, new = path.stat(), path.with_suffix(".new")
    new.write_text(path.read_text().upper())
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    new.rename(path)


@pytest.mark.parametrize("key", ["program", "weights[0]", "weights[1]"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.write_text("other"), "it is "),
        (exchanged, "it is "),
        (Path.unlink, "it cannot be read"),
    ],
)
def test_a_file_that_has_changed_is_named_with_both_digests(
    source: ModelSource, key: str, change: object, said: str
) -> None:
    digests = source.file_digests()
    path = Path(source.files[key])
    before = path.read_bytes()
    made_of.require_same(source, digests)
    change(path)  # type: ignore[operator]
    words = made_of.rewritten(source, digests)
    assert words.startswith(f"{key} '{path.name}' has changed since the model was compiled")
    assert f"it was {digests[key][:12]}" in words and said in words
    if path.exists():
        assert modules.file_digest(str(path))[:12] in words
    for require in (made_of.require_same, made_of.require_same_files):
        with pytest.raises(ChangedCode, match="load the model anew"):
            require(source, digests)
    made_of.require_same_code(source, digests)
    made_of.require_same_files(source, digests, {d for k, d in digests.items() if k != key})
    assert source.identity(digests)["weights"] == f"{digests['weights[0]']},{digests['weights[1]']}"
    path.write_bytes(before)
    assert made_of.rewritten(source, digests) == ""


def test_compilations_of_other_files_do_not_agree(source: ModelSource) -> None:
    digests = source.file_digests()
    made_of.require_agreement(source, digests, {**digests, "module.py": "x"})
    with pytest.raises(ChangedCode, match=r"^weights\[1\] 'b' has changed"):
        made_of.require_agreement(source, digests, {**digests, "weights[1]": "x"})


RESTLESS = """
import pathlib, torch

def scaled(weights):
    path = pathlib.Path(weights[0])
    layer = torch.nn.Linear(2, 2)
    layer.load_state_dict(torch.load(path))
    if path.with_name("busy").exists():  # as if somebody exchanged it meanwhile
        torch.save({name: 2 * value for name, value in layer.state_dict().items()}, path)
    return layer
"""


def test_what_was_read_of_two_versions_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "restless.py").write_text(RESTLESS)
    monkeypatch.syspath_prepend(tmp_path)
    weights, busy = tmp_path / "w.pt", tmp_path / "busy"
    torch.save(torch.nn.Linear(2, 2).state_dict(), weights)
    source = ModelSource(
        *("m", "1", "restless:scaled"),
        weights=(str(weights),),
        inputs=(InputDeclaration("x", "float32", ("n", 2)),),
        outputs=("y",),
    )
    store, options = open_store(tmp_path / "store"), CompileOptions(optimisation="-O0", check_shapes=1)
    busy.touch()
    with pytest.raises(ChangedCode, match="has changed since the model was compiled"):
        compile_model(source, store, options)
    busy.unlink()
    assert find(source, options, store) is None
    compilation = compile_model(source, store, options)
    model = load_model(source, compilation.artifact_key, store)
    x = torch.randn(3, 2)
    wanted = torch.nn.functional.linear(x, *torch.load(weights).values())
    torch.testing.assert_close(model.call(x)[0], wanted)
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ChangedCode, match="load the model anew"):
        load_model(source, compilation.artifact_key, store)
