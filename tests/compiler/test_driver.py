"""What a compilation leaves in a process that goes on."""

import gc
import sys
import weakref

import pytest

from dlcb.compiler.driver import _only_new_garbage, _short_turns
from dlcb.compiler.garbage import no_collections


class Ring:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


def test_a_compilation_frees_its_own_garbage_and_sets_nothing_aside_for_good() -> None:
    with no_collections():
        before = weakref.ref(Ring())
        with _only_new_garbage():
            made = weakref.ref(Ring())
        assert made() is None and before() is not None
    assert gc.isenabled() and not gc.get_freeze_count()
    gc.collect()
    assert before() is None


def test_what_others_have_set_aside_stays_so() -> None:
    gc.freeze()
    try:
        with _only_new_garbage():
            made = weakref.ref(Ring())
        assert made() is None and gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_turns_of_threads_are_as_long_as_before() -> None:
    before = sys.getswitchinterval()
    with pytest.raises(KeyError), _short_turns():
        assert sys.getswitchinterval() < before
        raise KeyError
    assert sys.getswitchinterval() == before
