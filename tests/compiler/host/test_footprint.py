"""The bytes that a signature foretells are those that the interpreter finds."""

import random

import pytest

from dlcb.compiler.dtype import FLOAT16, FLOAT32, INT64
from dlcb.compiler.expr.node import as_expr, evaluate, size
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
