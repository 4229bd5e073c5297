import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcb.kernel_cache.evict import POLICIES, Record, policy_named, unused_since, victims

OLD_BUT_USED = Record("old but used", size=10, uses=9, used_ns=1)
MIDDLE = Record("middle", size=10, uses=1, used_ns=2)
YOUNG = Record("young", size=10, uses=1, used_ns=3)
RECORDS = [YOUNG, OLD_BUT_USED, MIDDLE]


@pytest.mark.parametrize(
    ("policy", "order"),
    [("lru", [OLD_BUT_USED, MIDDLE, YOUNG]), ("lfu", [MIDDLE, YOUNG, OLD_BUT_USED]), ("none", [])],
)
def test_who_leaves_first(policy: str, order: list[Record]) -> None:
    assert victims(RECORDS, 0, POLICIES[policy]) == order


@pytest.mark.parametrize(("limit", "count"), [(30, 0), (29, 1), (20, 1), (19, 2), (0, 3)])
def test_as_few_leave_as_the_bound_needs(limit: int, count: int) -> None:
    assert len(victims(RECORDS, limit, POLICIES["lru"])) == count


def test_pinned_ones_stay_and_others_leave_for_them() -> None:
    pinned = Record("pinned", size=100, uses=0, used_ns=0, pinned_by=("model",))
    assert victims([pinned, *RECORDS], 100, POLICIES["lru"]) == [OLD_BUT_USED, MIDDLE, YOUNG]
    assert unused_since([pinned, *RECORDS], 3) == [OLD_BUT_USED, MIDDLE]


def test_an_unknown_policy_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="'fifo'; there are none, lru, lfu"):
        policy_named("fifo")


records = st.lists(
    st.builds(
        Record,
        key=st.uuids().map(str),
        size=st.integers(0, 100),
        uses=st.integers(0, 3),
        used_ns=st.integers(0, 5),
        pinned_by=st.sampled_from([(), ("model",)]),
    ),
    max_size=12,
)


@settings(deadline=None)  # a busy machine is no failure
@given(records, st.integers(0, 500), st.sampled_from(["lru", "lfu"]))
def test_the_bound_holds_or_only_pins_break_it(records: list[Record], limit: int, policy: str) -> None:
    leaving = victims(records, limit, POLICIES[policy])
    staying = [record for record in records if record not in leaving]
    size = sum(record.size for record in staying)
    assert size <= limit or all(record.pinned_by for record in staying)
    assert not any(record.pinned_by for record in leaving)
    if leaving:  # the last to leave had to
        assert size + leaving[-1].size > limit
