"""Words of the command line that select nothing are refused, with those that there are."""

from pathlib import Path

import pytest
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
