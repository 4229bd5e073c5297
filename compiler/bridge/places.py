"""How places in source files are told."""

from __future__ import annotations

import sys
from pathlib import Path


def short(path: str) -> str:
    """A source path as one would import it, so that reports do not depend on where packages are installed."""
    for folder in sorted((entry for entry in sys.path if entry), key=len, reverse=True):
        if path.startswith(folder + "/"):
            return path[len(folder) + 1 :]
    return "/".join(Path(path).parts[-2:])


def words_at(place: str) -> str:
    """The text of a place as `short` tells it, "file:line"; "" where no such file is at hand."""
    path, _, line = place.rpartition(":")
    files = [Path(folder) / path for folder in sys.path if folder]
    file = next((file for file in files if file.is_file()), None)
    if file is None or not line.isdecimal():
        return ""
    try:
        lines = file.read_text("utf-8", errors="replace").splitlines()
    except OSError:  # it may not be read
        return ""
    return lines[int(line) - 1].strip() if 0 < int(line) <= len(lines) else ""
