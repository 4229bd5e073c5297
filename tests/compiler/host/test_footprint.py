"""The bytes that a signature foretells are those that the interpreter finds."""

import random

import pytest

from dlcb.compiler.dtype import FLOAT16, FLOAT32, INT64
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr, evaluate, maximum, size
from dlcb.compiler.host.footprint import footprint
from dlcb.compiler.host.interpreter import Interpreter
from dlcb.compiler.host.program import Buffer, Definition, Input, LibraryCall, Program, Segment

BATCH, LENGTH = size("batch"), size("length")
ELEMENTS = (BATCH * LENGTH, BATCH * LENGTH * LENGTH, BATCH * 384, size("twice") * 7, as_expr(1000))


def program(draw: random.Random) -> Program:
    steps = 12
    buffers = []
    for number in range(draw.randrange(1, 20)):
        first = draw.randrange(steps)
        place = draw.choice(["arena", "arena", "arena", "result"])
        kind = draw.choice([FLOAT16, FLOAT32, INT64]).name
        last = min(first + draw.randrange(5), steps)
        buffers.append(Buffer(f"v{number}", kind, draw.choice(ELEMENTS), place, first, last))
    calls = tuple(LibraryCall("relu", (), {}, "", ()) for _ in range(steps))
    return Program(
        "p",
        (Input("x", "float32", (BATCH, LENGTH)),),
        (),
        (Definition("twice", LENGTH * 2),),
        (Segment((), tuple(buffers), (), calls, ()),),
        (),
        "",
    )


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_a_plan_takes_but_for_gaps_and_rounding(seed: int) -> None:
    made = program(random.Random(seed))
    foretold, interpreter = footprint(made), Interpreter(made)
    for batch, length in ((1, 1), (3, 100), (32, 17), (8, 512)):
        sizes = {"batch": batch, "length": length}
        expected = evaluate(foretold, sizes)
        taken = interpreter.plan(sizes).peak_bytes
        slack = 64 * len(made.segments[0].buffers)  # each begins at a cache line
        assert taken <= 1.1 * expected + slack  # gaps in the arena
        assert expected <= taken + slack


def layers(*of_elements: Expr) -> Program:
    """One that holds memory of so many elements in a step each."""
    buffers = [Buffer(f"v{k}", "float32", elements, "arena", k, k) for k, elements in enumerate(of_elements)]
    calls = tuple(LibraryCall("relu", (), {}, "", ()) for _ in buffers)
    segment = Segment((), tuple(buffers), (), calls, ())
    return Program("p", (Input("x", "float32", (BATCH, LENGTH)),), (), (), (segment,), (), "")


def test_layers_that_need_a_part_of_what_another_one_does_are_not_named() -> None:
    half, quarter = (LENGTH + 1) // 2, (LENGTH + 3) // 4
    large, other = BATCH * half * 64, BATCH * quarter * 256
    made = layers(BATCH * half * 32, large, other, BATCH * half * 16, BATCH * quarter * 96)
    assert footprint(made) is maximum(large * 4 + 64, other * 4 + 64)


def test_what_may_be_less_than_nothing_is_no_part() -> None:
    """A length of 0 has -1 gaps."""
    gaps = (LENGTH - 1) // 2
    made = layers(BATCH * 64, BATCH * 64 + gaps)
    for length in (0, 9):
        sizes = {"batch": 3, "length": length}
        both = [4 * evaluate(elements, sizes) + 64 for elements in (BATCH * 64, BATCH * 64 + gaps)]
        assert evaluate(footprint(made), sizes) == max(both)


def test_a_size_that_only_the_run_tells_is_left_out() -> None:
    late = Buffer("late", "float32", size("found"), "result", 0, 1)
    known = Buffer("known", "float32", BATCH, "result", 0, 1)
    call = LibraryCall("relu", (), {}, "", ())
    made = Program(
        "p",
        (Input("x", "float32", (BATCH,)),),
        (),
        (),
        (Segment((), (known, late), (), (call,), ()),),
        (),
        "",
    )
    assert footprint(made).free == {BATCH}
    assert evaluate(footprint(made), {"batch": 1000}) == 4000 + 2 * 64
