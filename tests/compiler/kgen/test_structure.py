"""What the emitted text must look like: nothing computed twice, nothing left to the kernel that the host can
compute."""

import re
from collections.abc import Callable
from functools import cache

import pytest
from kernel_rows import ROWS
from kernel_runs import Case

from dlcb.compiler.dtype import INT64
from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.expr.node import apply, load
from dlcb.compiler.kgen import Kernel
from dlcb.compiler.kgen.cstyle import ATOM, spell, tables
from dlcb.compiler.options import Target

TARGETS = {"cpp": Target.cpp(), "cuda": Target.cuda()}
GOLDEN = (
    "gelu_add_norm",
    "softmax_channels",
    "masked_mean",
    "embeddings",
    "pooled",
    "depthwise",
    "repeat_and_flip",
    "column_sum",
)


@cache
def kernels(name: str, target: Target) -> list[Kernel]:
    case = Case(ROWS[name].graph(name), target)
    return [kernel for kernel_set in case.kernels for kernel in kernel_set.kernels]


def statements(body: str) -> list[tuple[int, str]]:
    """(depth, right-hand side) of each definition, in order; depth counts enclosing braces."""
    found, depth = [], 0
    for line in body.splitlines():
        text = line.strip()
        if text.startswith("}"):
            depth -= 1
        match = re.fullmatch(r"const (?!Pack)[\w ]+ \w+ = (.*);", text)
        if match and "static_cast" not in text and "parameters[" not in text:
            found.append((depth, match[1]))
        if text.endswith("{"):
            depth += 1
        if text.startswith("}"):
            found.append((depth, "}"))
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ROWS)
def test_no_expression_is_computed_twice_where_it_can_be_seen(name: str, target: str) -> None:
    for kernel in kernels(name, TARGETS[target]):
        visible: list[set[str]] = [set() for _ in range(64)]
        for depth, text in statements(kernel.body):
            if text == "}":
                visible[depth + 1] = set()
            elif re.search(r"\W", text):
                assert not any(text in seen for seen in visible[: depth + 1]), (
                    f"{text} again in\n{kernel.body}"
                )
                visible[depth].add(text)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ROWS)
def test_no_division_by_a_free_size(name: str, target: str) -> None:
    for kernel in kernels(name, TARGETS[target]):
        integers = set(re.findall(r"(?:int|int64_t|Wide|long long) (\w+)", kernel.body))
        for divisor in re.findall(r"[/%] (\w+)", kernel.body):
            assert divisor not in integers or divisor.isdigit(), f"division by {divisor} in\n{kernel.body}"


@pytest.mark.parametrize("target", TARGETS)
def test_a_division_by_a_free_size_is_a_multiplication(target: str) -> None:
    for kernel in kernels("repeat_and_flip", TARGETS[target]):
        assert "divide(" in kernel.body
        assert any(p.kind.startswith("magic") for p in kernel.parameters)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GOLDEN)
def test_text_is_as_reviewed(name: str, target: str, golden: Callable[[str, str], None]) -> None:
    text = "\n".join(f"{_facts(kernel)}\n{kernel.body}" for kernel in kernels(name, TARGETS[target]))
    golden(f"kgen/{name}.{target}", text)


def _facts(kernel: Kernel) -> str:
    lines = [f"// {p.name}: {p.kind} {p.value}" for p in kernel.parameters]
    lines += [f"// assumes {guard}" for guard in kernel.guards]
    lines += [f"// checks {c.label} in {c.low} .. {c.high}" for c in kernel.checks]
    return "\n".join([f"// {kernel.name}: {kernel.domain} elements, grid {kernel.grid[0]}", *lines])


def test_one_binary_serves_every_broadcast_pattern() -> None:
    assert len(kernels("broadcasts", Target.cpp())) == 1


def test_what_depends_on_rows_leaves_the_inner_loop() -> None:
    (kernel,) = kernels("gelu_add_norm", Target.cpp())
    assert kernel.body.count("erff") == 1
    assert kernel.body.count("#pragma omp simd") == 3  # the mean, the variance, the result


def test_the_same_graph_gives_the_same_text() -> None:
    again = kernels.__wrapped__("embeddings", Target.cpp())
    assert [k.body for k in kernels("embeddings", Target.cpp())] == [k.body for k in again]


def test_an_operator_without_a_spelling_names_itself_and_the_target() -> None:
    node = apply("exp", load("x", 0, INT64))
    with pytest.raises(UnsupportedOperator, match=r"exp on int64 in C\+\+"):
        spell(tables(), "C++", node, [("x", ATOM)])
