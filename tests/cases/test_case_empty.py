"""Cases of the group Empty and huge."""

import pytest
import torch
from case_running import compiled, random

from dlcb.compiler import CompileOptions
from dlcb.compiler.options import Target

GIB = 2**30


def test_E1_argmin_of_nothing_is_nothing(store):
    case = compiled(store, "least", {"x": ("n", 3)})
    (found,) = case.agrees(random(0, 3))
    assert found.shape == (0,) and found.dtype == torch.int64
    case.agrees(random(4, 3))


def test_E3_reductions_over_an_empty_dim(store):
    case = compiled(store, "mean_and_sum", {"x": ("n", "m")}, outputs=2)
    mean, total = case.agrees(random(3, 0))
    assert mean.isnan().all() and total.tolist() == [0, 0, 0]
    case.agrees(random(0, 3))
    case = compiled(store, "largest", {"x": ("n", "m")})
    case.agrees(random(3, 2))
    assert "m" in case.refused(random(3, 0))


@pytest.mark.device
def test_E5_more_elements_than_32_bits_count(store):
    options = CompileOptions(target=Target.cuda(), check_shapes=0)
    case = compiled(store, "plain", {"x": ("n",)}, options=options)
    n = 3_288_334_336
    x = torch.zeros(n, dtype=torch.float32, device="cuda")
    x[-1] = 3.0
    (found,) = case.model.call(x)
    assert found.shape == (n,) and float(found[-1]) == 7.0 and float(found[0]) == 1.0
    (small,) = case.model.call(x[-5:])
    assert small.tolist() == [1.0, 1.0, 1.0, 1.0, 7.0]


def test_E7_a_large_intermediate_is_known_before_it_is_made(store):
    names = "abcde"
    case = compiled(store, "outer_five", {name: (f"{name}0",) for name in names})
    case.agrees(*(random(n) for n in (2, 3, 1, 2, 5)))
    sizes = dict(zip(names, (64, 32, 32, 32, 512), strict=True))
    plan = case.model.plan({name: (n,) for name, n in sizes.items()})
    assert plan.bytes >= 4 * GIB
    assert plan.output_shapes["out0"] == tuple(sizes.values())
