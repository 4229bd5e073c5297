"""Schedules become host programs that run: views, prologues, indices, sizes known late, all against
PyTorch."""

import json

import compiled_graphs
import pytest
import torch

from dlcb.compiler.dtype import BOOL, FLOAT32, INT64
from dlcb.compiler.errors import GuardError, IndexRangeError
from dlcb.compiler.expr.node import ZERO, as_expr, evaluate_all, size
from dlcb.compiler.host.index_origin import origin
from dlcb.compiler.host.program import POSITION, EagerCall, Launch, LibraryCall, Program
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import GraphBuilder, Value
from dlcb.kernel_cache import LayeredStore, open_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LayeredStore:
    return open_store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def build() -> GraphBuilder:
    return GraphBuilder("program")


def poisoned(thunk, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Outputs of a run whose arena held NaN."""
    thunk.executor.around.memory.block.fill_(0xFF)
    return thunk.run(inputs).outputs


def test_kernels_calls_and_views_of_one_program(build, store: LayeredStore) -> None:
    batch, length = build.system.fresh("batch"), build.system.fresh("length")
    x = build.input("x", (batch, length, 8), FLOAT32)
    w = build.parameter("w", (8, 8), FLOAT32)
    b = build.parameter("b", (8,), FLOAT32)
    heads = build.apply(
        ops.reshape, build.apply(ops.linear, x, w, b), shape=(batch, length, as_expr(2), as_expr(4))
    )
    heads = build.apply(ops.permute, heads, order=(0, 2, 1, 3))
    attended = build.apply(ops.attention, heads, heads, heads, scale=0.5, causal=False)
    merged = build.apply(ops.permute, attended, order=(0, 2, 1, 3))
    merged = build.apply(ops.reshape, merged, shape=(batch, length, as_expr(8)))
    out = build.apply(ops.gelu, build.apply(ops.add, merged, x), approximate="none")
    first = build.apply(ops.select, out, axis=1, index=as_expr(0))
    weights = {"w": torch.randn(8, 8), "b": torch.randn(8)}
    thunk = compiled_graphs.compiled(build.build(out, first, attended), weights, store)
    assert thunk.program.calls == ("product", "attention")

    def eager(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        heads = (
            torch.nn.functional.linear(x, weights["w"], weights["b"]).unflatten(-1, (2, 4)).transpose(1, 2)
        )
        attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, scale=0.5)
        out = torch.nn.functional.gelu(attended.transpose(1, 2).flatten(2) + x)
        return out, out[:, 0], attended

    for shape in [(2, 5), (1, 1), (3, 17), (2, 5), (64, 3)]:
        x = torch.randn(*shape, 8)
        torch.testing.assert_close(poisoned(thunk, x), eager(x), atol=1e-5, rtol=1e-5)
    again = Program.from_json(json.loads(json.dumps(thunk.program.to_json())))
    assert again == thunk.program


def test_what_depends_on_parameters_alone_is_computed_at_load(build, store: LayeredStore) -> None:
    n = build.system.fresh("n")
    x = build.input("x", (n, 4), FLOAT32)
    w, scale = build.parameter("w", (3, 4), FLOAT32), build.parameter("scale", (3, 1), FLOAT32)
    out = build.apply(ops.linear, x, build.apply(ops.mul, w, scale))
    weights = {"w": torch.randn(3, 4), "scale": torch.randn(3, 1)}
    thunk = compiled_graphs.compiled(build.build(out), weights, store)
    assert thunk.program.launches == 0
    assert {given.name for given in thunk.program.prologue.inputs} == {"w", "scale"}
    x = torch.randn(5, 4)
    torch.testing.assert_close(poisoned(thunk, x)[0], x @ (weights["w"] * weights["scale"]).t())


def test_a_view_of_what_is_moved_at_load_is_one_of_what_was_there_before(build, store: LayeredStore) -> None:
    """An element of a roll is one of what is rolled, which stays in memory."""
    x = build.input("x", (build.system.fresh("n"),), FLOAT32)
    w = build.parameter("w", (5,), FLOAT32)
    rolled = build.apply(ops.roll, build.apply(ops.softmax, w, axis=0), axis=0, shift=2)
    picked = build.apply(ops.select, rolled, axis=0, index=as_expr(0))
    weights = {"w": torch.randn(5)}
    thunk = compiled_graphs.compiled(build.build(picked, build.apply(ops.relu, x)), weights, store)
    found, _ = poisoned(thunk, torch.randn(4))
    torch.testing.assert_close(found, weights["w"].softmax(0)[3])


def test_a_guard_of_the_program_reaches_the_host(build, store: LayeredStore) -> None:
    n = build.system.fresh("n")
    x = build.input("x", (n, 3), FLOAT32)
    out = build.apply(ops.reshape, build.apply(ops.relu, x), shape=(n * 3 // 4, as_expr(4)))
    thunk = compiled_graphs.compiled(build.build(out), {}, store)
    x = torch.randn(8, 3)
    assert torch.equal(poisoned(thunk, x)[0], x.relu().view(6, 4))
    with pytest.raises(GuardError, match="nearest legal n"):
        thunk.run([torch.randn(7, 3)])


def test_a_bad_index_is_traced_through_views_to_the_input(build, store: LayeredStore) -> None:
    batch, length = build.system.fresh("batch"), build.system.fresh("length")
    ids = build.input("ids", (batch, length), INT64)
    table = build.parameter("table", (10, 4), FLOAT32)
    turned = build.apply(ops.permute, ids, order=(1, 0))
    out = build.apply(ops.embedding, table, build.apply(ops.reshape, turned, shape=(length * batch,)))
    weights = {"table": torch.randn(10, 4)}
    thunk = compiled_graphs.compiled(build.build(out), weights, store)
    ids = torch.randint(0, 10, (3, 4))
    assert torch.equal(poisoned(thunk, ids)[0], weights["table"][ids.t().reshape(-1)])
    ids[2, 1] = 12
    with pytest.raises(IndexRangeError) as caught:
        thunk.run([ids])
    assert (caught.value.input, caught.value.position, caught.value.value) == ("ids", (2, 1), 12)


def test_sizes_known_late_split_the_program(build, store: LayeredStore) -> None:
    n = build.system.fresh("n")
    x = build.input("x", (n, 4), FLOAT32)
    doubled = build.apply(ops.add, x, x)
    found = build.system.fresh("found")
    places = build.apply(
        ops.eager,
        doubled,
        target="aten.nonzero.default",
        arguments=("$0",),
        shapes=((found, as_expr(2)),),
        dtypes=(INT64,),
    )
    floats = build.apply(ops.cast, places, dtype=FLOAT32)
    out = build.apply(ops.mul, floats, floats)
    thunk = compiled_graphs.compiled(build.build(out, doubled), {}, store)
    assert [len(segment.binds) for segment in thunk.program.segments] == [1, 0]
    for _ in range(3):
        x = torch.randn(5, 4).relu()
        squares, twice = poisoned(thunk, x)
        assert torch.equal(squares, (2 * x).nonzero().float() ** 2)
        assert torch.equal(twice, 2 * x)


def test_an_eager_node_that_indexes_is_checked(build, store: LayeredStore) -> None:
    n = build.system.fresh("n")
    x, ids = build.input("x", (n, 4), FLOAT32), build.input("ids", (3,), INT64)
    out = build.apply(
        ops.eager,
        x,
        ids,
        target="aten.index_select.default",
        arguments=("$0", 0, "$1"),
        shapes=((as_expr(3), as_expr(4)),),
        dtypes=(FLOAT32,),
    )
    thunk = compiled_graphs.compiled(build.build(build.apply(ops.neg, out)), {}, store)
    (segment,) = thunk.program.segments
    assert [type(step) for step in segment.steps] == [EagerCall, Launch]
    x, ids = torch.randn(5, 4), torch.tensor([4, 0, 2])
    assert torch.equal(poisoned(thunk, x, ids)[0], -x[ids])
    with pytest.raises(
        IndexRangeError, match=r"input 'ids' holds 5 at position \[1\], where 0 to 4 is allowed"
    ):
        thunk.run([x, torch.tensor([4, 5, 2])])
    with pytest.raises(IndexRangeError, match="where 0 to 5 is allowed"):
        thunk.run([torch.randn(6, 4), torch.tensor([4, 5, -1])])


def test_indices_beside_a_mask_are_checked_against_the_axis_behind_all_that_it_spans(
    build, store: LayeredStore
) -> None:
    n = build.system.fresh("n")
    x = build.input("x", (as_expr(3), as_expr(2), n), FLOAT32)
    mask, ids = build.input("mask", (as_expr(3), as_expr(2)), BOOL), build.input("ids", (1,), INT64)
    out = build.apply(
        ops.eager,
        x,
        mask,
        ids,
        target="aten.index_put.default",
        arguments=("$0", ("$1", "$2"), "$0"),
        shapes=((as_expr(3), as_expr(2), n),),
        dtypes=(FLOAT32,),
    )
    (segment,) = compiled_graphs.compiled(build.build(out), {}, store).program.segments
    (step,) = segment.steps
    (check,) = step.checks
    assert (check.tensor, check.check.low, check.check.high) == ("ids", ZERO - n, n)


def test_a_guard_over_a_size_that_nothing_makes_leaves_the_others(build, store: LayeredStore) -> None:
    n = build.system.fresh("n")
    unmade = build.system.runtime_size("r0", low=3)
    x = build.input("x", (n, 4), FLOAT32)
    build.system.require(n % 2 < 1)
    build.system.require(unmade + 1 <= n)
    thunk = compiled_graphs.compiled(build.build(build.apply(ops.neg, x)), {}, store)
    x = torch.randn(6, 4)
    assert torch.equal(poisoned(thunk, x)[0], -x)
    with pytest.raises(GuardError, match="n % 2"):
        thunk.run([torch.randn(5, 4)])


def test_an_operator_that_only_pytorch_has_is_a_library_call(build, store: LayeredStore) -> None:
    n = build.system.fresh("n")
    x = build.input("x", (n, 4), FLOAT32)
    out = build.apply(ops.neg, build.apply(ops.cumsum, x, axis=0))
    thunk = compiled_graphs.compiled(build.build(out), {}, store)
    assert isinstance(thunk.program.segments[0].steps[0], LibraryCall)
    x = torch.randn(6, 4)
    torch.testing.assert_close(poisoned(thunk, x)[0], -x.cumsum(0))


def place_of(indices: Value, position: int, **sizes: int) -> tuple[str, list[int] | None]:
    name, coordinates = origin(indices)
    return name, None if coordinates is None else evaluate_all(coordinates, {POSITION: position, **sizes})


def test_origins_are_followed_through_what_moves_elements_and_no_further(build) -> None:
    n, m = size("n"), size("m")
    ids = build.input("ids", (n, m), INT64)
    sizes = {"n": 3, "m": 4}
    here = torch.arange(12).view(3, 4)
    moved = {
        "slice": (build.apply(ops.slice, ids, axis=1, start=as_expr(1), stop=m, step=2), here[:, 1::2]),
        "expand": (build.apply(ops.expand, ids, shape=(as_expr(2), n, m)), here.expand(2, 3, 4)),
        "flip": (build.apply(ops.flip, ids, axes=(0,)), here.flip(0)),
        "cast": (build.apply(ops.cast, ids, dtype=FLOAT32), here),
    }
    for value, expected in moved.values():
        for position, element in enumerate(expected.reshape(-1).tolist()):
            assert place_of(value, position, **sizes) == ("ids", [element // 4, element % 4])
    summed = build.apply(ops.sum, ids, axes=(0,), keepdim=False)
    assert place_of(summed, 0, **sizes) == (summed.name, None)
    added = build.apply(ops.add, ids, ids)
    assert place_of(added, 0, **sizes) == (added.name, None)
