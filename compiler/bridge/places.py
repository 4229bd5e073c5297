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
