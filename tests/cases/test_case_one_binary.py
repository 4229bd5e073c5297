"""Cases of the group One binary: one compile serves every size, every broadcast pattern and every layout of
the inputs."""

import itertools
from pathlib import Path

import pytest
import torch
from case_running import compiled, random

from dlcb.compiler import CompileOptions, InputDeclaration, ModelSource, compile_model, load_model
from dlcb.compiler.build.toolchain import calls
from dlcb.kernel_cache import open_store


def test_S1_sixteen_combinations(store):
    names = "abcd"
    before = calls.total
    case = compiled(store, "add_four", {name: (f"{name}0",) for name in names})
    assert calls.total - before <= 1
    for lengths in itertools.product((1, 4), repeat=4):
        case.agrees(*(random(n, seed=k) for k, n in enumerate(lengths)))


def test_S3_eight_broadcast_patterns(store):
    case = compiled(store, "add", {"x": ("a", "b"), "y": ("c", "d")})
    shapes = [(5, 3), (1, 3), (5, 1), (1, 1)]
    for left, right in itertools.product(shapes, repeat=2):
        case.agrees(random(*left), random(*right, seed=1))


def test_S4_any_batch_after_any_other(store):
    case = compiled(store, "smoothed", {"x": ("b", "s")})
    for batch in (1, 2, 3, 7, 4, 0, 1, 2, 5):
        case.agrees(random(batch, 6))


def test_S6_an_unused_input_of_any_size(store):
    case = compiled(store, "ignores_second", {"x": ("n",), "unused": ("m",)})
    for unused in (0, 2):
        case.agrees(random(5), random(unused))


def test_S8_a_width_tied_to_a_weight(store):
    case = compiled(store, "root_mean_square", {"x": ("b", "s", "?")})
    assert case.free() == {"b", "s"}
    width = next(line for line in case.report.dims if line.axis == 2)
    assert width.size == "48" and width.reason
    for b, s in ((1, 1), (2, 17), (0, 3)):
        case.agrees(random(b, s, 48))
    assert "48" in case.refused(random(2, 3, 40))


def test_S10_a_sample_of_size_one_stays_free(tmp_path: Path):
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    path = tmp_path / "sample.pt2"
    torch.export.save(torch.export.export(module, (torch.randn(1, 4),)), path)
    source = ModelSource(
        "sample",
        "1",
        program=str(path),
        inputs=(InputDeclaration("input", "float32", ("b", 4)),),
        outputs=("out",),
    )
    local = open_store(tmp_path / "store")
    compilation = compile_model(source, local, CompileOptions(check_shapes=0))
    assert compilation.report.free_dims == ("b",)
    model = load_model(source, compilation.artifact_key, local)
    for batch in (1, 2, 5, 0):
        x = random(batch, 4)
        torch.testing.assert_close(model.call(x)[0], module(x))


def test_S12_attention_over_many_lengths(store):
    shape = ("b", 2, "s", 16)
    case = compiled(store, "attention", {"q": shape, "k": shape, "v": shape})
    masked = compiled(
        store,
        "masked_attention",
        {"q": shape, "k": shape, "v": shape, "mask": ("b", "s")},
        types={"mask": "bool"},
    )
    for length in (320, 256, 192, 128, 1):
        q, k, v = (random(2, 2, length, 16, seed=n) for n in range(3))
        case.agrees(q, k, v)
        mask = torch.arange(length) < torch.tensor([[max(length // 2, 1)], [length]])
        masked.agrees(q, k, v, mask)


# ---- every size with every layout ----------------------------------------------------------------


def transposed(x):
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def stepped(x):
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1])
    wide[..., ::2] = x
    return wide[..., ::2]


def expanded(x):
    return x[:1].expand(x.shape)


def offset(x):
    whole = torch.zeros(x.numel() + 7)
    whole[7:] = x.flatten()
    return whole[7:].view(x.shape)


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


LAYOUTS = [torch.Tensor.contiguous, transposed, stepped, expanded, offset]
SIZES = (0, 1, 2, 37, 400)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("factory", ["smoothed", "plain"])
def test_every_size_with_every_layout(store, factory, layout):
    case = compiled(store, factory, {"x": ("a", "b")})
    for a, b in itertools.product(SIZES, repeat=2):
        case.agrees(layout(random(a, b)))


@pytest.mark.parametrize("layout", [*LAYOUTS, channels_last], ids=lambda f: f.__name__)
def test_every_size_of_images_with_every_layout(store, layout):
    case = compiled(store, "pool_and_sum", {"x": ("n", "c", "h", "w")})
    for n, c, h, w in itertools.product((0, 1, 2), (1, 3), (2, 37), (2, 61)):
        case.agrees(layout(random(n, c, h, w)))
