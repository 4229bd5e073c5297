"""Sizes that move together: totals, twins, and what leads."""

from __future__ import annotations

from dlcb.compiler.bridge.relations import followers
from dlcb.compiler.expr.node import evaluate, size

FIRST = {"past": 5, "new": 7, "again": 7, "total": 12, "other": 9}


def test_a_total_follows_its_parts() -> None:
    moves = {
        "past": {**FIRST, "past": 8, "total": 15},
        "new": {**FIRST, "new": 9, "again": 9, "total": 14},
        "again": {**FIRST, "new": 3, "again": 3, "total": 8},
    }
    assert followers(FIRST, moves) == {
        "again": size("new"),
        "total": size("past") + size("new"),
    }


def test_a_part_follows_where_the_total_leads() -> None:
    moves = {"total": {**FIRST, "total": 15, "past": 8}, "new": {**FIRST, "new": 9, "again": 9, "total": 14}}
    found = followers(FIRST, moves)
    assert evaluate(found["past"], {"total": 40, "new": 11}) == 29


def test_multiples_and_offsets() -> None:
    first = {"pixels": 35, "cells": 4}
    assert followers(first, {"cells": {"pixels": 51, "cells": 6}}) == {"pixels": size("cells") * 8 + 3}


def test_what_is_no_whole_multiple_does_not_follow() -> None:
    first = {"two": 4, "three": 6}
    assert followers(first, {"two": {"two": 6, "three": 9}}) == {}


def test_a_half_leads_its_whole_in_whichever_order_they_stand() -> None:
    moves = {"whole": {"whole": 10, "half": 5}, "half": {"whole": 14, "half": 7}}
    for order in (["whole", "half"], ["half", "whole"]):
        first = {name: {"whole": 8, "half": 4}[name] for name in order}
        for moved in (order, order[:1], order[1:]):
            assert followers(first, {name: moves[name] for name in moved}) == {"whole": size("half") * 2}


def test_what_moves_alone_leads_nothing() -> None:
    assert followers(FIRST, {"other": {**FIRST, "other": 20}}) == {}
