"""Prepared plans: known shapes hit, the cache is bounded, memory is reused and never stale, bad indices are
found."""

import dataclasses

import handmade
import pytest
import torch

from dlcb.compiler.errors import ArtifactError, CompilerError, GuardError, IndexRangeError
from dlcb.compiler.expr.node import ONE, ZERO, as_expr, equal, product, size
from dlcb.compiler.host.program import (
    Binding,
    CheckedTensor,
    EagerCall,
    IndexCheck,
    Launch,
    LibraryCall,
    Output,
    Program,
    Segment,
    Tensor,
)
from dlcb.compiler.runtime.cpu import CpuDevice
from dlcb.compiler.runtime.memory import SharedArena
from dlcb.compiler.runtime.shape_cache import ShapeCache
from dlcb.compiler.thunks.dynamic import ProgramThunk

n, m, found = size("n"), size("m"), size("found")


@pytest.fixture(scope="session")
def binary() -> tuple[handmade.DictStore, str]:
    return handmade.store_with_kernels()


def thunk(program: Program, store: handmade.DictStore, parameters=None, **more) -> ProgramThunk:
    return ProgramThunk(program, parameters or {}, store, CpuDevice(), **more)


def poison(compiled: ProgramThunk) -> None:
    """Fill the arena with NaN: what a run reads without writing it first shows."""
    compiled.executor.around.memory.block.fill_(0xFF)


def test_the_first_call_at_a_shape_misses_and_the_second_hits(binary) -> None:
    store, key = binary
    compiled = thunk(handmade.chain(key, 5), store)
    x = torch.randn(3, 5)
    assert [compiled.run([x]).hit for _ in range(3)] == [False, True, True]
    assert not compiled.run([torch.randn(5, 3)]).hit  # the same number of elements is another shape
    cache = compiled.executor.cache
    assert (cache.hits, cache.misses, cache.evictions, len(cache)) == (2, 2, 0, 2)
    assert compiled.tier == "dynamic"


def test_alternating_shapes_are_right_over_poisoned_memory(binary) -> None:
    store, key = binary
    compiled = thunk(handmade.chain(key, 6), store)
    for shape in [(32, 4), (1, 1), (32, 4), (320, 64), (1, 1), (720, 128), (320, 64), (0, 5), (32, 4)] * 3:
        x = torch.randn(shape)
        poison(compiled)
        (out,) = compiled.run([x]).outputs
        assert torch.equal(out, x * 64)


def test_results_belong_to_the_caller(binary) -> None:
    store, key = binary
    compiled = thunk(handmade.chain(key, 2), store)
    first = compiled.run([torch.ones(4, 4)]).outputs[0]
    compiled.run([torch.full((4, 4), 7.0)])
    assert torch.equal(first, torch.full((4, 4), 4.0))


def test_the_cache_is_bounded_and_the_oldest_leaves(binary) -> None:
    store, key = binary
    compiled = thunk(handmade.chain(key, 2), store, capacity=4)
    for rows in range(1, 9):
        compiled.run([torch.randn(rows, 2)])
        compiled.run([torch.randn(1, 2)])  # stays the most recently used
    cache = compiled.executor.cache
    assert len(cache) == 4
    assert cache.evictions == 4
    assert compiled.executor.is_cached([(1, 2)])
    assert not compiled.executor.is_cached([(2, 2)])


def test_a_shape_cache_holds_at_least_one_plan() -> None:
    with pytest.raises(ValueError, match="capacity 0"):
        ShapeCache(0)


def test_growth_prepares_old_plans_again_and_drops_the_old_block(binary) -> None:
    store, key = binary
    compiled = thunk(handmade.chain(key, 4), store)
    small, large = torch.randn(2, 2), torch.randn(100, 100)
    compiled.run([small])
    memory = compiled.executor.around.memory
    before, generation = memory.block.data_ptr(), memory.generation
    compiled.run([large])
    assert memory.generation == generation + 1
    assert memory.block.data_ptr() != before
    poison(compiled)
    ran = compiled.run([small])
    assert ran.hit  # sizes were known; only addresses were not
    assert torch.equal(ran.outputs[0], small * 16)


def test_two_programs_share_one_block(binary) -> None:
    store, key = binary
    memory = SharedArena(torch.device("cpu"))
    one, two = (thunk(handmade.chain(key, k), store, memory=memory) for k in (3, 5))
    for rows in (2, 50, 3, 500, 2):
        x = torch.randn(rows, 7)
        assert torch.equal(one.run([x]).outputs[0], x * 8)
        assert torch.equal(two.run([x]).outputs[0], x * 32)


def test_unaligned_inputs_take_another_plan(binary) -> None:
    store, key = binary
    count = n * m
    wide = handmade.variant("twice_by_four", ["x", "out"], count, guards=[equal(count % 4, 0)], alignment=16)
    narrow = handmade.variant("twice", ["x", "out"], count)
    program = handmade.program(
        [handmade.given("x", n, m)],
        [handmade.buffer("out", count, "result", 0, 1)],
        [Launch((wide, narrow))],
        [handmade.tensor("out", n, m)],
        ["out"],
        key,
    )
    compiled = thunk(program, store)
    memory = torch.randn(65)
    for start in (0, 1):
        x = memory[start : start + 64].view(8, 8)
        ran = compiled.run([x])
        assert not ran.hit
        assert torch.equal(ran.outputs[0], x * 2)


def test_a_bad_index_names_input_place_and_range_and_the_next_call_works(binary) -> None:
    store, key = binary
    compiled = thunk(handmade.lookup(key), store, handmade.table())
    ids = torch.randint(0, 10, (3, 4))
    good = handmade.table()["table"][ids]
    for place, bad in (((1, 2), 10), ((2, 3), -1)):
        broken = ids.clone()
        broken[place] = bad
        with pytest.raises(IndexRangeError) as caught:
            compiled.run([broken])
        error = caught.value
        assert (error.input, error.position, error.value, error.low, error.high) == ("ids", place, bad, 0, 10)
        assert torch.equal(compiled.run([ids]).outputs[0], good)


def test_division_by_a_free_size_needs_no_division(binary) -> None:
    store, key = binary
    step = handmade.launch("rows_by_magic", ["out"], n * m, m, kinds=["int64", "magic"])
    program = handmade.program(
        [handmade.given("x", n, m)],
        [handmade.buffer("out", n * m, "result", 0, 1, dtype="int64")],
        [step],
        [handmade.tensor("out", n, m, dtype="int64")],
        ["out"],
        key,
    )
    compiled = thunk(program, store)
    for rows, width in ((3, 1), (5, 7), (2, 64), (9, 100)):
        (out,) = compiled.run([torch.empty(rows, width)]).outputs
        assert torch.equal(out, torch.arange(rows).view(-1, 1).expand(rows, width))


# ---- library and eager calls between kernels


def mixed(key: str) -> Program:
    """out = (2x) @ w.T by a library into the arena, doubled; and relu of it, an eager call; both handed
    out."""
    product_shape = (n, as_expr(3))
    return handmade.program(
        [handmade.given("x", n, 4)],
        [
            handmade.buffer("double", n * 4, "arena", 0, 1),
            handmade.buffer("linear", n * 3, "arena", 1, 3),
            handmade.buffer("relu", n * 3, "call", 2, 4),
            handmade.buffer("out", n * 3, "result", 3, 4),
        ],
        [
            handmade.launch("twice", ["x", "double"], n * 4),
            LibraryCall("linear", ("double", "w"), {}, "linear", ()),
            EagerCall("aten.relu.default", ("linear",), ("$0",), ("relu",), ()),
            handmade.launch("add", ["linear", "relu", "out"], n * 3),
        ],
        [
            handmade.tensor("double", n, 4),
            handmade.tensor("w", 3, 4),
            handmade.tensor("linear", *product_shape),
            handmade.tensor("relu", *product_shape),
            handmade.tensor("out", *product_shape),
        ],
        ["out", "relu"],
        key,
        parameters=[handmade.buffer("w", 12, "parameter", 0, 0)],
    )


def test_calls_stand_between_kernels(binary) -> None:
    store, key = binary
    w = torch.randn(3, 4)
    compiled = thunk(mixed(key), store, {"w": w})
    for rows in (1, 6, 1, 30, 6):
        x = torch.randn(rows, 4)
        poison(compiled)
        out, relu = compiled.run([x]).outputs
        expected = (2 * x) @ w.t()
        torch.testing.assert_close(relu, expected.relu())
        torch.testing.assert_close(out, expected + expected.relu())


def test_a_library_may_read_the_callers_memory_and_write_the_result(binary) -> None:
    store, _ = binary
    program = handmade.program(
        [handmade.given("x", n, m), handmade.given("y", m, 5)],
        [handmade.buffer("out", n * 5, "result", 0, 1)],
        [LibraryCall("matmul", ("x", "y"), {}, "out", ())],
        [handmade.tensor("x", n, m), handmade.tensor("y", m, 5), handmade.tensor("out", n, 5)],
        ["out"],
        "",
    )
    compiled = thunk(program, store)
    for _ in range(2):
        x, y = torch.randn(3, 6), torch.randn(6, 5)
        torch.testing.assert_close(compiled.run([x, y]).outputs[0], x @ y)


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("heads_inside", [False, True])
def test_a_returned_tensor_is_laid_out_as_its_readers_expect(read: bool, heads_inside: bool, binary) -> None:
    """Attention's result lies with heads inside; a step that reads it where a program declares it row-major
    gets a copy that is. What only the caller gets stays as it is."""
    store, _ = binary
    shape = (n, as_expr(2), m, as_expr(4))
    inside, row_major = (40, 4, 8, 1), (40, 20, 4, 1)
    across = (as_expr(4), as_expr(8)) if heads_inside else (m * 4, as_expr(4))
    declared = (m * 8, *across, as_expr(1))
    attention = LibraryCall("attention", ("q", "k", "v"), {"scale": None, "causal": False}, "out", ())
    reader = LibraryCall("cumsum", ("out",), {"axis": 1}, "sums", ())
    program = handmade.program(
        [handmade.given(name, *shape) for name in "qkv"],
        [
            handmade.buffer("out", product(shape), "call", 0, 2),
            *([handmade.buffer("sums", product(shape), "call", 1, 2)] if read else []),
        ],
        [attention, *([reader] if read else [])],
        [
            *(handmade.tensor(name, *shape) for name in "qkv"),
            Tensor("out", "out", "float32", shape, declared, ZERO),
            *([Tensor("sums", "sums", "float32", shape, declared, ZERO)] if read else []),
        ],
        ["out", *(["sums"] if read else [])],
        "",
    )
    q, k, v = (torch.randn(2, 2, 5, 4) for _ in range(3))
    out, *sums = thunk(program, store).run([q, k, v]).outputs
    eager = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(out, eager)
    assert out.stride() == ((inside if heads_inside else row_major) if read else eager.stride())
    for each in sums:
        torch.testing.assert_close(each, eager.cumsum(1))


def test_outputs_that_are_inputs_or_parameters_are_copies(binary) -> None:
    store, _ = binary
    program = handmade.program(
        [handmade.given("x", n)],
        [],
        [],
        [handmade.tensor("x", n), handmade.tensor("w", 3)],
        ["x", "w"],
        "",
        parameters=[handmade.buffer("w", 3, "parameter", 0, 0)],
    )
    w, x = torch.randn(3), torch.randn(2)
    shown = thunk(program, store, {"w": w}).run([x]).outputs
    assert torch.equal(shown[0], x)
    assert torch.equal(shown[1], w)
    assert {t.data_ptr() for t in shown}.isdisjoint({x.data_ptr(), w.data_ptr()})


def test_an_eager_call_that_returns_its_operand_does_not_lend_memory(binary) -> None:
    """`same` is a view of `double`, whose bytes in the arena are free for `later` after the call."""
    store, key = binary
    program = handmade.program(
        [handmade.given("x", n)],
        [
            handmade.buffer("double", n, "arena", 0, 1),
            handmade.buffer("same", n, "call", 1, 4),
            handmade.buffer("later", n, "arena", 2, 3),
            handmade.buffer("out", n, "result", 3, 4),
        ],
        [
            handmade.launch("twice", ["x", "double"], n),
            EagerCall("aten.to.dtype", ("double",), ("$0", "dtype:float32"), ("same",), ()),
            handmade.launch("twice", ["same", "later"], n),
            handmade.launch("add", ["same", "later", "out"], n),
        ],
        [handmade.tensor(name, n) for name in ("double", "same", "out")],
        ["out", "same"],
        key,
    )
    compiled, x = thunk(program, store), torch.randn(9)
    out, same = compiled.run([x]).outputs
    assert torch.equal(same, 2 * x)
    assert torch.equal(out, 6 * x)


def indexed(low: int, high: int) -> Program:
    check = IndexCheck("ids", (size("position"),), (n,), as_expr(low), as_expr(high))
    call = EagerCall(
        "aten.index_select.default", ("w", "ids"), ("$0", 0, "$1"), ("out",), (CheckedTensor("ids", check),)
    )
    return handmade.program(
        [handmade.given("ids", n, dtype="int64")],
        [handmade.buffer("out", n * 4, "call", 0, 1)],
        [call],
        [handmade.tensor("ids", n, dtype="int64"), handmade.tensor("w", 10, 4), handmade.tensor("out", n, 4)],
        ["out"],
        "",
        parameters=[handmade.buffer("w", 40, "parameter", 0, 0)],
    )


def test_indices_of_an_eager_call_are_checked_before_it(binary) -> None:
    store, _ = binary
    w = handmade.table()["table"]
    compiled = thunk(indexed(0, 10), store, {"w": w})
    ids = torch.tensor([3, 9, 0])
    assert torch.equal(compiled.run([ids]).outputs[0], w[ids])
    with pytest.raises(IndexRangeError, match=r"input 'ids' holds 10 at position \[1\], where 0 to 9"):
        compiled.run([torch.tensor([3, 10, 12])])
    assert compiled.run([torch.empty(0, dtype=torch.int64)]).outputs[0].shape == (0, 4)


def after_nonzero(key: str) -> Program:
    """Twice the coordinates of what is not zero, as floats: their number is known only after a first
    segment."""
    first = Segment(
        guards=(),
        buffers=(
            handmade.buffer("double", n * m, "arena", 0, 1),
            handmade.buffer("places", found * 2, "call", 1, 2, "int64"),
        ),
        tensors=(handmade.tensor("double", n, m), handmade.tensor("places", found, 2, dtype="int64")),
        steps=(
            handmade.launch("twice", ["x", "double"], n * m),
            EagerCall("aten.nonzero.default", ("double",), ("$0",), ("places",), ()),
        ),
        binds=(Binding("found", "places", 0),),
    )
    second = Segment(
        guards=(),
        buffers=(
            handmade.buffer("floats", found * 2, "call", 0, 1),
            handmade.buffer("out", found * 2, "result", 1, 2),
        ),
        tensors=(
            handmade.tensor("places", found, 2, dtype="int64"),
            handmade.tensor("floats", found, 2),
            handmade.tensor("out", found, 2),
        ),
        steps=(
            EagerCall("aten.to.dtype", ("places",), ("$0", "dtype:float32"), ("floats",), ()),
            handmade.launch("twice", ["floats", "out"], found * 2),
        ),
        binds=(),
    )
    return Program(
        "nonzero", (handmade.given("x", n, m),), (), (), (first, second), (Output("out", "out"),), (key,)
    )


def test_sizes_known_only_at_run_time_start_a_new_segment(binary) -> None:
    store, key = binary
    compiled = thunk(after_nonzero(key), store)
    x = torch.zeros(3, 4)
    hits = []
    for places in ([(0, 1), (2, 3)], [(1, 1)], [], [(0, 1), (2, 3)]):
        x.zero_()
        for place in places:
            x[place] = 1.0
        ran = compiled.run([x])
        hits.append(ran.hit)
        assert torch.equal(ran.outputs[0], 2 * x.nonzero().float())
    assert hits == [False, False, False, True]


def test_a_call_that_returns_another_shape_is_an_error_of_ours(binary) -> None:
    store, _ = binary
    program = indexed(0, 10)
    (segment,) = program.segments
    wrong = [t if t.name != "out" else handmade.tensor("out", n, 5) for t in segment.tensors]
    segment = dataclasses.replace(segment, tensors=tuple(wrong))
    compiled = thunk(dataclasses.replace(program, segments=(segment,)), store, {"w": torch.randn(10, 4)})
    with pytest.raises(
        CompilerError, match=r"out was expected to have shape \[2, 5\], PyTorch returned \[2, 4\]"
    ):
        compiled.run([torch.tensor([1, 2])])


def test_a_prologue_makes_parameters_once(binary) -> None:
    store, key = binary
    prologue = handmade.program(
        [handmade.given("w", 3, 4)],
        [handmade.buffer("w2", 12, "result", 0, 1)],
        [handmade.launch("twice", ["w", "w2"], 12)],
        [handmade.tensor("w2", 3, 4)],
        ["w2"],
        key,
    )
    main = handmade.program(
        [handmade.given("x", n, 4)],
        [handmade.buffer("out", n * 3, "result", 0, 1)],
        [LibraryCall("linear", ("x", "w2", "b"), {}, "out", ())],
        [
            handmade.tensor("x", n, 4),
            handmade.tensor("w2", 3, 4),
            handmade.tensor("b", 3),
            handmade.tensor("out", n, 3),
        ],
        ["out"],
        "",
        parameters=[handmade.buffer("w2", 12, "parameter", 0, 0), handmade.buffer("b", 3, "parameter", 0, 0)],
    )
    w, b, x = torch.randn(3, 4), torch.randn(3), torch.randn(5, 4)
    program = dataclasses.replace(main, prologue=prologue, units=(key,))
    compiled = thunk(program, store, {"w": w, "b": b})
    w.zero_()  # not read again
    (out,) = compiled.run([x]).outputs
    assert not torch.equal(out, b.expand(5, 3))
    assert Program.from_json(program.to_json()) == program


def test_a_bad_index_of_a_run_that_stops_midway_is_not_the_next_runs(binary) -> None:
    """The plans of a segment share the flags that kernels raise."""
    store, key = binary
    program = handmade.lookup(key)
    (segment,) = program.segments
    refused = EagerCall("aten.relu.default", ("out",), ("$0",), ("relu",), ())
    segment = dataclasses.replace(
        segment,
        buffers=(*segment.buffers, handmade.buffer("relu", n * m * 5, "call", 1, 2)),
        tensors=(*segment.tensors, handmade.tensor("relu", n, m, 5)),  # PyTorch returns [n, m, 4]
        steps=(*segment.steps, refused),
    )
    stopped = thunk(dataclasses.replace(program, segments=(segment,)), store, handmade.table())
    with pytest.raises(IndexRangeError, match="holds 10"):
        stopped.run([torch.tensor([[3, 10]])])
    for shape in ((1, 2), (2, 3)):
        with pytest.raises(GuardError, match="relu was expected to have shape"):
            stopped.run([torch.zeros(shape, dtype=torch.int64)])


@pytest.mark.parametrize("read", [False, True])
def test_another_type_than_was_expected_is_never_read_as_that(read: bool, binary) -> None:
    """As where PyTorch was asked in autocast while the program was made, and is not now."""
    store, _ = binary
    x = handmade.given("x", n)
    call = EagerCall("aten.relu.default", ("x",), ("$0",), ("relu",), ())
    reader = EagerCall("aten.neg.default", ("relu",), ("$0",), ("neg",), ())
    names = ("relu", "neg") if read else ("relu",)
    program = handmade.program(
        [x],
        [handmade.buffer(name, n, "call", k, 2) for k, name in enumerate(names)],
        [call, reader][: len(names)],
        [handmade.tensor("x", n), *(Tensor(name, name, "float16", (n,), (ONE,), ZERO) for name in names)],
        [names[-1]],
        "",
    )
    with pytest.raises(GuardError, match=r"relu was expected to be torch.float16"):
        thunk(program, store).run([torch.randn(4)])


def test_a_binary_for_another_device_is_refused() -> None:
    store = handmade.DictStore()
    store.put("a" * 64, b"\x7fELF of a GPU")
    with pytest.raises(ArtifactError, match="do not load here, as a library of this processor would"):
        CpuDevice().load(["a" * 64], store)
