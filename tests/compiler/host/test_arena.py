"""Buffers that live together never share bytes; those that do not may."""

import random

from dlcb.compiler.host.arena import ALIGNMENT, Arena


def test_random_lives_never_overlap() -> None:
    draw = random.Random(7)
    for _ in range(200):
        count = draw.randrange(1, 30)
        lives = []
        for _ in range(count):
            first = draw.randrange(20)
            lives.append((first, first + draw.randrange(8)))
        sizes = [draw.choice([0, 1, 63, 64, 65, 1000, 4096]) for _ in range(count)]
        offsets, total = Arena(lives).place(sizes)
        for a in range(count):
            assert offsets[a] % ALIGNMENT == 0
            assert 0 <= offsets[a] <= offsets[a] + sizes[a] <= total
            for b in range(a):
                together = lives[a][0] <= lives[b][1] and lives[b][0] <= lives[a][1]
                if together and sizes[a] and sizes[b]:
                    assert offsets[a] + sizes[a] <= offsets[b] or offsets[b] + sizes[b] <= offsets[a]


def test_a_gap_that_fits_is_used() -> None:
    # the small buffer lives after the middle one is gone, beside the two outer ones
    offsets, total = Arena([(0, 9), (0, 3), (0, 9), (4, 9)]).place([256, 128, 128, 128])
    assert total == 512
    assert offsets[3] == offsets[1]


def test_one_after_another_needs_the_largest_alone() -> None:
    assert Arena([(k, k) for k in range(5)]).place([64, 640, 128, 64, 320]) == ([0] * 5, 640)
