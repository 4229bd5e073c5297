"""Looking in place of sleeping: only between requests that follow each other closely, only while turns are
shorter for it, and never past its moment."""

from __future__ import annotations

import asyncio
import time

import pytest

from dlcb.server import batcher, lookout
from dlcb.server.lookout import BLOCK, LONGEST_LOOK, LONGEST_SLEEP, Habit, look

from .test_fairness import Crowd


def turns(habit: Habit, count: int, looking: float, asleep: float) -> list[bool]:
    """How so many turns were taken, where they take so long."""
    taken = []
    for _ in range(count):
        taken.append(habit.looks)
        habit.took(looking if habit.looks else asleep)
    return taken


def test_looking_is_kept_while_turns_are_quicker_and_sleep_measured_again() -> None:
    habit = Habit()
    stretch = [False] * BLOCK + [True] * (LONGEST_LOOK * BLOCK)
    assert turns(habit, 2 * len(stretch), 1.0, 2.0) == 2 * stretch


def test_looking_ends_with_the_first_block_that_gains_nothing_and_is_tried_ever_more_rarely() -> None:
    habit = Habit()
    turns(habit, 10 * BLOCK, 1.0, 2.0)
    expected = [True] * BLOCK  # others want the cores now
    for sleep in (2, 4, 8, 16, 32, 64, 128, 256, 512, 512):
        expected += [False] * (sleep * BLOCK) + [True] * BLOCK
    assert turns(habit, len(expected), 8.0, 2.0) == expected
    turns(habit, LONGEST_SLEEP * BLOCK, 1.0, 2.0)
    assert turns(habit, 10 * BLOCK, 1.0, 2.0) == [True] * (10 * BLOCK)  # they have gone


def test_one_block_that_gains_among_many_that_do_not_changes_little() -> None:
    habit = Habit()
    for _ in range(100):
        turns(habit, BLOCK, 8.0, 2.0)
    looked = 0
    for number in range(10_000):
        gains = number % 3 == 0  # as where load comes and goes
        looked += sum(turns(habit, BLOCK, 1.0 if gains else 8.0, 2.0))
    assert looked < 0.05 * 10_000 * BLOCK


def test_looking_must_be_worth_its_processor_time() -> None:
    habit = Habit()
    turns(habit, 2 * BLOCK, 0.95, 1.0)
    assert not habit.looks


@pytest.mark.parametrize("when", [False, True])
def test_a_turn_in_ten_that_takes_long_speaks_against_looking_and_not_against_sleep(when: bool) -> None:
    habit = Habit()
    for number in range(3 * BLOCK):
        slow = number % 10 == 0 and habit.looks is when
        habit.took(100.0 if slow else 1.0 if habit.looks else 2.0)
    assert habit.looks is not when


def test_a_look_ends_when_something_is_found_or_its_moment_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    given_way: list[int] = []
    monkeypatch.setattr(lookout.os, "sched_yield", lambda: given_way.append(1))

    def third() -> bool:
        looks.append(1)
        return len(looks) == 3

    look(third, time.perf_counter() + 60)
    assert len(looks) == 3 and len(given_way) == 2
    look(lambda: False, time.perf_counter())


class Conversation(Crowd):
    """A client that asks again as soon as it is answered, and a model that is quick unless told otherwise."""

    def __init__(self, run_seconds: float = 1e-6) -> None:
        super().__init__({})
        self.model.run_seconds = self.run_seconds = run_seconds
        self.batcher._last_reply = time.perf_counter() + 60  # whatever the clock does meanwhile

    async def leaves(self, count: int = 1) -> list[bool]:
        """Whether each job is brisk that leaves when so many requests have come."""
        for _ in range(count):
            self.ask(4)
        jobs = len(self.lane.jobs)
        await asyncio.sleep(0)
        return [job.brisk for job in list(self.lane.jobs)[jobs:]]


@pytest.mark.parametrize(
    ("run_seconds", "count", "brisk"),
    [(1e-6, 1, [True]), (1e-6, 2, [False]), (1.0, 1, [False])],
    ids=["alone", "two", "slow"],
)
def test_a_quick_request_alone_is_brisk(run_seconds: float, count: int, brisk: list[bool]) -> None:
    async def talk() -> None:
        assert await Conversation(run_seconds).leaves(count) == brisk

    asyncio.run(talk())


def test_a_request_after_a_pause_or_beside_another_is_not_brisk() -> None:
    async def talk() -> None:
        conversation = Conversation()
        conversation.batcher._last_reply = time.perf_counter() - 1
        assert await conversation.leaves() == [False]
        conversation.batcher._last_reply = time.perf_counter() + 60
        assert await conversation.leaves() == [False]  # the first still runs

    asyncio.run(talk())


@pytest.mark.parametrize("looks", [False, True])
def test_the_loop_turns_until_the_answer_where_it_is_looked_for(
    looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_way: list[int] = []
    monkeypatch.setattr(batcher.os, "sched_yield", lambda: given_way.append(1))
    monkeypatch.setattr(batcher, "LOOK_SECONDS", 60.0)

    async def talk() -> None:
        conversation = Conversation()
        conversation.batcher._habit.looks = looks
        assert await conversation.leaves() == [True]
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(given_way) == (5 if looks else 0)
        conversation.lane.step()
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(given_way) == (5 if looks else 0)
        assert conversation.answered

    asyncio.run(talk())
