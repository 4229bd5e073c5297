"""Buffers that live together never share bytes; those that do not may."""

import random

from dlcb.compiler.host.arena import ALIGNMENT, arena, of_rooms

Lives = list[tuple[int, int]]


def place(lives: Lives, sizes: list[int], kinds: list[int] | None = None) -> tuple[list[int], int]:
    """The offset of each buffer, and the bytes of the whole; without kinds each has its own room."""
    made, rooms = arena(lives, kinds or list(range(len(lives))), draws(kinds) if kinds else [])
    offsets, total = made.place(of_rooms(rooms, sizes))
    return [offsets[room] for room in rooms], total


def draws(kinds: list[int]) -> list[list[int]]:
    draw = random.Random(0)
    of_kinds = [[64 << draw.randrange(8) for _ in range(5)] for _ in range(16)]
    return [[of_kind[kind] for kind in kinds] for of_kind in of_kinds]


def random_lives(draw: random.Random) -> Lives:
    firsts = [draw.randrange(20) for _ in range(draw.randrange(1, 30))]
    return [(first, first + draw.randrange(8)) for first in firsts]


def test_random_lives_never_overlap_and_equal_buffers_share_rooms_only_where_that_is_no_loss() -> None:
    draw = random.Random(7)
    shared = taken = apart = 0
    for _ in range(200):
        lives = random_lives(draw)
        kinds = [draw.randrange(5) for _ in lives]
        of_kind = [draw.choice([0, 1, 63, 64, 65, 1000, 4096]) for _ in range(5)]
        sizes = [of_kind[kind] for kind in kinds]
        offsets, total = place(lives, sizes, kinds)
        for a in range(len(lives)):
            assert offsets[a] % ALIGNMENT == 0
            assert 0 <= offsets[a] <= offsets[a] + sizes[a] <= total
            for b in range(a):
                together = lives[a][0] <= lives[b][1] and lives[b][0] <= lives[a][1]
                if together and sizes[a] and sizes[b]:
                    assert offsets[a] + sizes[a] <= offsets[b] or offsets[b] + sizes[b] <= offsets[a]
        shared += len(set(arena(lives, kinds, draws(kinds))[1])) < len(lives)
        taken, apart = taken + total, apart + place(lives, sizes)[1]
    assert shared > 50
    assert taken <= 1.03 * apart


def test_equal_layers_take_as_many_rooms_as_one() -> None:
    one: Lives = [(0, 1), (1, 2), (1, 3), (2, 3)]
    layers = [(first + 3 * k, last + 3 * k) for k in range(12) for first, last in one]
    kinds = [1, 2, 1, 3] * 12
    sizes = [640, 2560, 640, 64] * 12
    made, rooms = arena(layers, kinds, [sizes])
    assert rooms[:4] == rooms[4:8] == rooms[-4:]
    assert made.place(of_rooms(rooms, sizes))[1] == place(layers, sizes)[1]


def test_a_gap_that_fits_is_used() -> None:
    # the small buffer lives after the middle one is gone, beside the two outer ones
    offsets, total = place([(0, 9), (0, 3), (0, 9), (4, 9)], [256, 128, 128, 128])
    assert total == 512
    assert offsets[3] == offsets[1]


def test_one_after_another_needs_the_largest_alone() -> None:
    assert place([(k, k) for k in range(5)], [64, 640, 128, 64, 320]) == ([0] * 5, 640)
