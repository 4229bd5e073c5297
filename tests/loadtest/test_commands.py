"""Words of the command line that select nothing are refused, with those that there are."""

from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dlcb.loadtest.__main__ import app
from dlcb.loadtest.reference import eager_references
from dlcb.server.errors import ConfigError

RACE = Path(__file__).parents[2] / "loadtest" / "race.yaml"


@pytest.mark.parametrize(
    ("words", "known"),
    [
        (("race", "--contestant", "dlcb", "--contestant", "zzz"), "raw-asgi"),
        (("race", "--case", "zzz"), "identity"),
        (("run", "--scenario", "zzz"), "standardize"),
    ],
)
def test_an_unknown_name_is_refused_with_those_there_are(words: tuple[str, ...], known: str) -> None:
    refused = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert refused.exit_code == 2
    assert f"no {words[1].removeprefix('--')} 'zzz'; there are" in refused.stderr and known in refused.stderr


def test_a_file_without_the_scenarios_model_is_no_reference() -> None:
    with pytest.raises(ConfigError, match=r"race.yaml: registers no pnet; registered are identity, mean, "):
        eager_references(RACE, {"pnet", "identity"})


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        (("overload", "--seconds", "40"), "53 s of load in all (13 s to find what it can bear, 40 s of"),
        (("soak", "--seconds", "40"), "40 s of load in all (10000 shapes)"),
        (("beside", "--seconds", "5"), "15 s of load in all (3 rounds of 5 s, and as long as a model takes"),
        (("batching", "--seconds", "5"), "60 s of load in all (3 rounds and one to warm up, 3 ways in each)"),
        (("run", "--seconds", "5"), "5 s of load in all (shared by the models), beside the answers to"),
    ],
)
def test_a_run_says_first_how_long_it_takes(
    words: tuple[str, ...], whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise ConfigError("far enough")

    for name in ("overload", "soak", "beside"):
        monkeypatch.setattr(f"dlcb.loadtest.__main__.endurance.{name}", stop)
    monkeypatch.setattr("dlcb.loadtest.__main__.sharing.batching", stop)
    monkeypatch.setattr("dlcb.loadtest.__main__._measure", stop)
    monkeypatch.setattr("dlcb.loadtest.__main__.console", Console(width=200))
    assert whole in CliRunner().invoke(app, words).output
