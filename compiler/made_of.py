"""What of the user's a model was compiled from, as digests: modules of code by their paths in the factory's
folder, the other files by their keys in the configuration. Whoever makes or reads something for a loaded
model compares with it, so that what serves is of one version.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from dlcb.compiler import modules
from dlcb.compiler.errors import CaptureError, ChangedCode
from dlcb.compiler.source import ModelSource

SHOWN = 12  # characters of a digest in a message


def rewritten(source: ModelSource, made_of: Mapping[str, str], folder: Path | None = None) -> str:
    """What to say where a file is gone or another by now; "" where none is. `folder` is the factory's, where
    that is known already. CaptureError when the factory's own is gone and has to be looked for."""
    code = _code(source, made_of)
    if folder is None:
        folder = modules.folder_of(source.factory) if source.factory and code else Path()
    others = modules.rewritten_in(folder, code) if code else []
    return said_of(source, made_of, others[0]) if others else _rewritten_file(source, made_of)


def require_same(source: ModelSource, made_of: Mapping[str, str]) -> None:
    """ChangedCode where this process has, or would load, other code, or would read other files."""
    require_same_code(source, made_of)
    require_same_files(source, made_of)


def require_same_code(source: ModelSource, made_of: Mapping[str, str]) -> None:
    """ChangedCode where this process has, or would load, other code."""
    modules.require_same(source.factory, _code(source, made_of))


def require_same_files(
    source: ModelSource, made_of: Mapping[str, str], wanted: Collection[str] | None = None
) -> None:
    """ChangedCode where one of the files (of those with `wanted` digests) is gone or another by now."""
    compared = {key: digest for key, digest in made_of.items() if wanted is None or digest in wanted}
    if said := _rewritten_file(source, compared):
        raise ChangedCode(said)


def require_agreement(source: ModelSource, some: Mapping[str, str], others: Mapping[str, str]) -> None:
    """ChangedCode where two compilations of a source were made of other versions of something."""
    if differing := modules.disagreement(some, others):
        raise ChangedCode(said_of(source, some, differing[0]))


def said_of(source: ModelSource, made_of: Mapping[str, str], key: str) -> str:
    """What is to be said of a model of which this module, or file, is not what it was; clients are told as
    well, and no path but the file's name."""
    path = source.files.get(key)
    if path is None:
        return modules.said_of(key, source.factory)
    try:
        now = f"it was {made_of[key][:SHOWN]}, it is {modules.file_digest(path)[:SHOWN]}"
    except CaptureError:
        now = f"it was {made_of[key][:SHOWN]}; it cannot be read"
    return (
        f"{key} '{Path(path).name}' has changed since the model was compiled (sha256: {now}): load the model "
        "anew, or put the file back"
    )


def _rewritten_file(source: ModelSource, made_of: Mapping[str, str]) -> str:
    for key, path in source.files.items():
        if key in made_of and modules.digest_now(path) != made_of[key]:
            return said_of(source, made_of, key)
    return ""


def _code(source: ModelSource, made_of: Mapping[str, str]) -> dict[str, str]:
    return {path: digest for path, digest in made_of.items() if path not in source.files}
