"""Model sources: they survive JSON, and their identity is made of contents and never of paths."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dlcb.compiler import ArtifactError, CaptureError, InputDeclaration, ModelSource

SOURCE = ModelSource(
    name="m",
    version="1",
    factory="json:dumps",
    arguments={"width": 3},
    inputs=(InputDeclaration("x", "float32", ("batch", 3), (0.0, 1.0)), InputDeclaration("z", "bool", None)),
    outputs=("y",),
    dims={"batch": (1, None)},
)


def test_json_and_back() -> None:
    assert ModelSource.from_json(json.loads(json.dumps(SOURCE.to_json()))) == SOURCE
    with pytest.raises(ArtifactError):
        ModelSource.from_json({"name": "m"})


def test_the_identity_follows_contents(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for path in (first, second):
        path.write_bytes(b"weights")
    one, two = (replace(SOURCE, weights=(str(path),)).identity() for path in (first, second))
    assert one.digest == two.digest
    second.write_bytes(b"Weights")
    assert replace(SOURCE, weights=(str(second),)).identity().digest != one.digest


def test_names_do_not_matter_and_everything_else_does() -> None:
    digest = SOURCE.identity().digest
    assert replace(SOURCE, name="n", version="2").identity().digest == digest
    for changed in (
        replace(SOURCE, arguments={"width": 4}),
        replace(SOURCE, factory="textwrap:dedent"),
        replace(SOURCE, dims={}),
        replace(SOURCE, outputs=("z",)),
        replace(SOURCE, inputs=SOURCE.inputs[:1]),
    ):
        assert changed.identity().digest != digest


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no_such_module_here"):
        replace(SOURCE, factory="no_such_module_here:f").identity()
    with pytest.raises(CaptureError, match="gone"):
        replace(SOURCE, weights=(str(tmp_path / "gone"),)).identity()
