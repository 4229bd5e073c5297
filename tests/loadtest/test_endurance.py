"""The long tests of a whole server are what their commands run; a verdict that is missed fails here too."""

import pytest

from dlcb.loadtest import endurance
from dlcb.loadtest.batching import batching

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
def test_three_times_the_load_for_a_minute() -> None:
    outcome = endurance.overload(seconds=60)
    assert outcome.met, outcome.verdict


@pytest.mark.timeout(3600)
def test_ten_thousand_shapes_leave_memory_as_it_was() -> None:
    outcome = endurance.soak(seconds=600, shapes=10_000)
    assert outcome.met, outcome.verdict


@pytest.mark.timeout(1800)
def test_a_model_that_loads_does_not_move_the_latency_of_another() -> None:
    outcome = endurance.beside(seconds=20)
    assert outcome.met, outcome.verdict


@pytest.mark.timeout(900)
def test_sentences_of_all_lengths_are_worth_running_together() -> None:
    outcome = batching(seconds=10)
    assert outcome.met, outcome.verdict
