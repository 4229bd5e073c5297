"""The image files: linted by hadolint, and held to what their users rely on."""

import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("Dockerfile.*"))


def instructions(dockerfile: Path) -> list[str]:
    """The file's instructions, continuation lines joined, comments dropped."""
    lines = [line for line in dockerfile.read_text().splitlines() if line and not line.startswith("#")]
    return re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()


def test_there_is_an_image_for_each_kind_of_machine() -> None:
    assert [path.name for path in DOCKERFILES] == ["Dockerfile.cpu", "Dockerfile.cuda"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(dockerfile: Path, require_tool: Callable[[str], Path]) -> None:
    found = subprocess.run(
        [require_tool("hadolint"), "--config", DOCKER / "hadolint.yaml", dockerfile],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_hadolint_would_find_something(tmp_path: Path, require_tool: Callable[[str], Path]) -> None:
    careless = tmp_path / "Dockerfile"
    careless.write_text("FROM debian\nRUN cd /tmp\n")
    found = subprocess.run(
        [require_tool("hadolint"), "--config", DOCKER / "hadolint.yaml", careless],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert "DL3006" in found.stdout


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_image_is_small_in_rights_and_says_how_it_is(dockerfile: Path) -> None:
    words = instructions(dockerfile)
    bases = [line for line in words if line.startswith("FROM")]
    last_stage = words[words.index(bases[-1]) :]
    assert len(bases) == 2 and all("${BASE_IMAGE}" in base for base in bases)
    (user,) = [line.split()[1] for line in last_stage if line.startswith("USER")]
    assert int(user.split(":")[0]) > 0
    (health,) = [line for line in last_stage if line.startswith("HEALTHCHECK")]
    assert "/v2/health/ready" in health
    (command,) = [json.loads(line.removeprefix("CMD ")) for line in last_stage if line.startswith("CMD")]
    assert command[0] == "serve" and "0.0.0.0" in command
    assert any("org.opencontainers.image.revision" in line for line in last_stage if line.startswith("LABEL"))
    assert any(line.split() == ["VOLUME", "/var/cache/dlcb"] for line in last_stage)
    assert any("DLCB_CACHE=/var/cache/dlcb" in line for line in last_stage if line.startswith("ENV"))


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_what_an_image_copies_reaches_the_builder(dockerfile: Path) -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignore if line.startswith("!")}
    copied = {
        source
        for line in instructions(dockerfile)
        if line.startswith("COPY") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)
    folders = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"].values()
    )
    assert folders <= copied


def test_compose_mounts_only_what_exists() -> None:
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    assert set(compose["services"]) == {"dlcb", "prometheus", "grafana"}
    for service in compose["services"].values():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert source in compose["volumes"] or (DOCKER / source).exists(), mount
    overlay = yaml.safe_load((DOCKER / "compose.cuda.yaml").read_text())
    for name in (compose, overlay):
        assert (ROOT / name["services"]["dlcb"]["build"]["dockerfile"]).exists()


def test_every_package_is_installed() -> None:
    """setuptools is told each package by name; one that is missing there is missing in the image."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    on_disk = {
        ".".join([name, *init.parent.relative_to(ROOT / folder).parts])
        for name, folder in settings["package-dir"].items()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert on_disk == set(settings["packages"])
