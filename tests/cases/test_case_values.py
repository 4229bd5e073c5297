"""Cases of the group Values and shapes."""

import pytest
import torch
from case_models import NarrowNumbers
from case_running import compiled, random
from fuzz.compiled import load, ready

from dlcb.compiler.dtype import FLOAT32
from dlcb.compiler.errors import RequestError
from dlcb.compiler.expr.node import const, evaluate, size
from dlcb.compiler.host.evaluator import compile_expressions
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import GraphBuilder
from dlcb.compiler.shapes.system import System


def test_W1_transpose_flatten_repeat_flip(store):
    case = compiled(store, "repeat_and_flip", {"x": ("m", "n")})
    (found,) = case.agrees(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
    assert found.tolist() == [3, 3, 1, 1, 2, 2, 0, 0]
    case.agrees(random(3, 5))


@pytest.mark.parametrize(("n", "length"), [(14, 10), (15, 20), (16, 20), (25, 20)])
def test_W4_a_size_rounded_to_tens(store, n, length):
    case = compiled(store, "round_to_tens", {"x": ("n",)})
    (found,) = case.agrees(random(n), tier=case.model.plan({"x": (n,)}).tier)
    assert found.shape == (length,)


def test_W4_a_size_padded_to_a_multiple(store):
    rows = compiled(store, "rows_of_three", {"x": ("n", 4)})
    chunks = compiled(store, "chunks_of_eight", {"x": ("b", "n", "c")})
    assert rows.free() | chunks.free() == {"b", "n", "c"}
    for n in range(1, 31):
        assert rows.agrees(random(n, 4))[0].shape == (-(-n // 3), 3, 4)
        assert chunks.agrees(random(2, n, 5))[0].shape == (2, -(-n // 8), 5)


def test_W6_nearest_upsampling(store):
    case = compiled(store, "upsampled", {"x": ("b", 1, "h", "w")})
    x = torch.arange(12.0).view(1, 1, 3, 4)
    (found,) = case.agrees(x)
    assert (found[0, 0, :, 0] / 4).tolist() == [0, 1, 2]
    for h, w in ((1, 1), (7, 5), (20, 33)):
        case.agrees(random(2, 1, h, w))


def test_W8_negative_numerators(store):
    system = System()
    assert (system.simplify(const(-7) // 2).value, system.simplify(const(-7) % 2).value) == (-4, 1)
    n = size("n")
    both = ((n - 9) // 2, (n - 9) % 2)
    assert [evaluate(e, {"n": 2}) for e in both] == [-4, 1]
    assert compile_expressions(both, ("n",), ())(2) == (-4, 1)
    case = compiled(store, "negative_places", {"x": ("n",)}, outputs=2)
    quotients, remainders = case.agrees(torch.zeros(3))
    assert (quotients[2], remainders[2]) == (-4, 1)
    sizes = compiled(store, "negative_sizes", {"x": ("n",)}, outputs=2)
    for length in (1, 2, 8, 21):
        case.agrees(random(length))
        sizes.agrees(random(length))


@pytest.mark.parametrize(("end", "length"), [(1, 1), (2, 1), (4, 2), (5, 3), (9, 5)])
def test_W9_lengths_of_ranges(store, end, length):
    case = compiled(store, "every_second", {"x": ("e",)})
    (found,) = case.agrees(random(end))
    assert found.shape == (length,)


def test_W10_a_product_is_a_product(store):
    g = GraphBuilder("product")
    a, b, c = (g.system.fresh(name) for name in "abc")
    x = g.input("x", (a, b, c), FLOAT32)
    graph = g.build(g.apply(ops.neg, g.apply(ops.reshape, x, shape=(b + c, a + b))))
    (model,) = load([ready(graph)], [{}], store)
    (found,) = model.call(random(3, 3, 6))
    assert torch.equal(found, -random(3, 3, 6).reshape(9, 6))
    with pytest.raises(RequestError):
        model.call(random(1, 2, 3))


def test_W11_permuted_inputs(store):
    case = compiled(store, "permuted", {"x": ("n", "h", "w", "c")}, outputs=3)
    for shape in ((2, 3, 4, 5), (1, 1, 1, 1), (1, 4, 1, 3)):
        case.agrees(random(*shape))
        wide = random(shape[0], shape[1], shape[2], 2 * shape[3])[..., ::2]
        case.agrees(wide)
        case.agrees(random(*shape[::-1]).permute(3, 2, 1, 0))


def test_W18_alternating_shapes(store):
    case = compiled(store, "smoothed", {"x": ("b", "s")})
    for length in (32, 1, 32, 1, 700, 3):
        case.agrees(random(2, length))
    case = compiled(store, "pool_and_sum", {"x": ("b", "c", "h", "w")})
    for height, width in ((320, 640), (720, 1280), (320, 640), (8, 6)):
        case.agrees(random(1, 1, height, width))


def test_W19_a_free_output_dim_stays_free(store):
    case = compiled(store, "smoothed", {"x": ("b", "s")})
    assert case.signature.output_dims["out0"] == ("b", "s")
    assert {dim.symbol for dim in case.signature.outputs[0].dims} == {"b", "s"}


def test_W21_sizes_read_back(store):
    case = compiled(store, "sizes_back", {"x": ("a", "b")}, outputs=3)
    first, second, third = case.agrees(torch.ones(4, 8))
    assert first.shape == (1, 4, 8)
    assert [float(t[0, 0, 0]) for t in (first, second, third)] == [1, 4, 8]


def test_W25_concat_then_reshape_and_gathers(store):
    case = compiled(store, "joined_and_reshaped", {"x": ("b", "n"), "y": ("b", 3)})
    for b, n in ((2, 1), (1, 5), (4, 7)):
        case.agrees(random(b, n), random(b, 3))
    assert case.refused(random(1, 2), random(1, 3))
    case = compiled(
        store,
        "gathered",
        {"x": ("n", "m"), "rows": ("k", "m"), "columns": ("k", "l")},
        types={"rows": "int64", "columns": "int64"},
        values={"rows": (0, 1), "columns": (0, 1)},
    )
    for n, m, k, width in ((3, 4, 5, 2), (1, 1, 1, 1), (7, 2, 3, 9)):
        case.agrees(random(n, m), torch.randint(0, n, (k, m)), torch.randint(0, m, (k, width)))


def test_a_transposed_output_at_the_size_where_it_is_square(store):
    case = compiled(store, "transposed_product", {"x": ("n", 4)}, outputs=2)
    for n in (8, 3, 8, 1):
        case.agrees(random(n, 4))


def test_an_input_may_bear_the_name_of_a_step(store):
    for name in ("mul_0", "full_0", "add_3"):
        compiled(store, "plain", {name: ("n",)}).agrees(random(5))


def test_numbers_are_rounded_to_their_types(store):
    case = compiled(store, "narrow_numbers", {"x": ("n",)}, outputs=10)
    assert case.report.tier == "dynamic" and not case.report.quarantined
    for n in (1, 3, 40):
        for found, wanted in zip(case.model.call(x := random(n)), NarrowNumbers()(x), strict=True):
            assert torch.equal(found, wanted)
