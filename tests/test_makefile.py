"""What the Makefile promises and can be checked without installing: what is missing is said in one line."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # the tests themselves may run under make, which hands down its level and its variables
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env={**outside, "MFLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_is_the_default_and_lists_every_command() -> None:
    shown = make().stdout
    for command in ("serve", "test", "test-slow", "test-gpu", "lint", "bench", "loadtest"):
        assert f"make {command} " in shown


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("compiler-found", "CXX=no-such-compiler"),
            "error: no C++ compiler: no-such-compiler is not on the path",
        ),
        (
            ("{new}/bin/python", "VENV={new}", "PYTHON=no-such-python"),
            "error: no-such-python is missing or older",
        ),
        (("{new}/bin/python", "VENV={new}", "PYTHON={old}"), "fake-python cannot make virtual environments"),
    ],
    ids=["no compiler", "no python", "no venv"],
)
def test_what_is_missing_is_said_in_one_line(arguments: tuple[str, ...], line: str, tmp_path: Path) -> None:
    old = tmp_path / "fake-python"  # new enough, and fails at importing venv
    old.write_text('#!/bin/sh\ncase "$2" in *venv*) exit 1 ;; esac\n')
    old.chmod(0o755)
    done = make(*(text.format(new=tmp_path / "venv", old=old) for text in arguments))
    ours, makes = done.stderr.strip().split("\n")
    assert line in ours
    assert makes.startswith("make: ***") and done.returncode == 2
    assert not (tmp_path / "venv").exists()


def test_the_gpu_decides_what_serve_installs(tmp_path: Path) -> None:
    for code, extras in ((0, "server,quickstart,cuda"), (1, "server,quickstart")):
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\nexit {code}\n")
        tool.chmod(0o755)
        done = subprocess.run(
            ["make", "--dry-run", "serve", f"VENV={tmp_path / 'venv'}"],
            cwd=ROOT,
            env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"'.[{extras}]'" in done.stdout
