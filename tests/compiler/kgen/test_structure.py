"""What the emitted text must look like: nothing computed twice, nothing left to the kernel that the host can
compute."""

import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from kernel_rows import ROWS
from kernel_runs import Case

from dlcb.compiler.dtype import INT64
from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.expr.node import apply, load
from dlcb.compiler.kgen import Kernel, coords
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


def statements(body: str) -> Iterator[tuple[int, str]]:
    """(depth, text) of each definition and assignment in order, and "}" where a block ends; depth counts
    enclosing braces."""
    depth = 0
    for line in body.splitlines():
        text = line.strip()
        if text.startswith("}"):
            yield depth, "}"
            depth -= 1
        assigns = re.fullmatch(r"(?:const (?!Pack)[\w ]+ \w+|\w+|\w+\[.*\]) = (.*);", text)
        if assigns and "static_cast" not in text and "parameters[" not in text:
            yield depth, text
        if text.endswith("{"):
            depth += 1


def computed(text: str) -> Iterator[str]:
    """The right-hand side of a statement and every sub-expression in brackets that computes or reads
    something, with the name before the bracket. What the kernel itself changes is no repetition:
    accumulators, and rows kept in registers. Nor is a thread's own place in a tile. What is read under a
    condition is not there under another."""
    right = text.partition(" = ")[2].removesuffix(";")
    if re.fullmatch(r"\w+ \? in\d+\[[^]]*\] : \S+", right):
        yield right
        return
    opened: list[int] = []
    parts: list[str] = []
    for place, sign in enumerate(right):
        if sign in "([":
            opened.append(re.search(r"[\w.:]*$", right[:place]).start())
        elif sign in ")]" and opened:
            parts.append(right[opened.pop() : place + 1])
    yield from (part for part in parts if re.match(r"in\d+\[|[^\[]*\(.*[-+*/%<>=&|?,\[]", part))
    if text.startswith("const") and right not in parts and re.search(r"\W", right):
        yield right


def repetitions(kernel: Kernel) -> list[str]:
    """What is computed again where its value is still in sight."""
    visible: list[set[str]] = [set() for _ in range(64)]
    found = []
    for depth, text in statements(kernel.body):
        if text == "}":
            visible[depth] = set()
            continue
        for part in computed(text):
            changing = re.search(r"\b(?:row|sums?|folds?|part_of_)\w*\[|threadIdx", part)
            if not changing and any(part in parts for parts in visible[: depth + 1]):
                found.append(part)
            visible[depth].add(part)
    return found


def divisions(kernel: Kernel) -> list[str]:
    """Divisions by what the kernel holds in an integer variable."""
    integers = set(re.findall(r"(?:int|int64_t|Wide|long long) (\w+)", kernel.body))
    by_sign = [d for d in re.findall(r"[/%] (\w+)", kernel.body) if d in integers and not d.isdigit()]
    return by_sign + re.findall(r"(?:floor_div|floor_mod|trunc_mod)\([^;]*, size\d+\)", kernel.body)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ROWS)
def test_no_expression_is_computed_twice_where_it_can_be_seen(name: str, target: str) -> None:
    for kernel in kernels(name, TARGETS[target]):
        assert not repetitions(kernel), kernel.body


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ROWS)
def test_no_division_by_a_free_size(name: str, target: str) -> None:
    for kernel in kernels(name, TARGETS[target]):
        assert not divisions(kernel), kernel.body


@pytest.mark.parametrize("target", TARGETS)
def test_a_division_by_a_free_size_is_a_multiplication(target: str) -> None:
    for kernel in kernels("repeat_and_flip", TARGETS[target]):
        assert "divide(" in kernel.body
        assert any(p.kind.startswith("magic") for p in kernel.parameters)


def test_a_row_over_several_axes_is_walked_as_memory() -> None:
    """A group of channels is one row: neither divided into its axes nor guarded."""
    for kernel in kernels("groups_of_channels", Target.cpp()):
        assert "divide(" not in kernel.body
        assert "? in0[" not in kernel.body


@pytest.mark.parametrize("name", ("heads_merged", "patches"))
def test_the_lanes_of_a_cpu_walk_one_axis(name: str) -> None:
    for kernel in kernels(name, Target.cpp()):
        (lanes,) = re.findall(r"#pragma omp simd\n\s*for .*\{([^}]*)\}", kernel.body)
        assert not re.search(r"/ \d|% \d|divide\(", lanes), kernel.body


@pytest.mark.parametrize("name", ("concatenated", "padded", "reflected", "replicated", "rolled"))
def test_the_lanes_of_a_cpu_do_not_ask_where_they_are(name: str) -> None:
    """They are cut where they would be treated differently."""
    *_, kernel = kernels(name, Target.cpp())
    lanes = re.findall(r"#pragma omp simd\n\s*for .*\{([^}]*)\}", kernel.body)
    assert 2 <= len(lanes) <= 6
    assert not any(re.search(r"<|%|_of\(", body) for body in lanes), kernel.body


def test_what_each_row_would_compute_for_its_lanes_is_computed_once() -> None:
    (kernel,) = kernels("upsampled", Target.cpp())
    table, lanes = re.findall(r"#pragma omp simd\n\s*for .*\{([^}]*)\}", kernel.body)
    assert "(int64_t)" in table and "(int64_t)" not in lanes
    assert "?" not in lanes  # nothing is read but within the image


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
    assert kernel.body.count("erf_of") == 1
    assert kernel.body.count("#pragma omp simd") == 3  # the mean, the variance, the result


def test_the_same_graph_gives_the_same_text() -> None:
    again = kernels.__wrapped__("embeddings", Target.cpp())
    assert [k.body for k in kernels("embeddings", Target.cpp())] == [k.body for k in again]


@pytest.mark.parametrize("deepest", [0, 1, 3])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["gelu_add_norm", "depthwise", "masked_mean", "split_sizes", "chain"])
def test_how_deep_elements_are_computed_inside_each_other_does_not_matter(
    name: str, target: str, deepest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [kernel.body for kernel in kernels(name, TARGETS[target])]
    monkeypatch.setattr(coords, "_DEEPEST", deepest)
    again = kernels.__wrapped__(name, TARGETS[target])
    assert [kernel.body for kernel in again] == expected


def test_an_operator_without_a_spelling_names_itself_and_the_target() -> None:
    node = apply("exp", load("x", 0, INT64))
    with pytest.raises(UnsupportedOperator, match=r"exp on int64 in C\+\+"):
        spell(tables(), "C++", node, [("x", ATOM)])
