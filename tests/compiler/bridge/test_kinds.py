"""The user's code cannot tell a symbolic size from a number, nor a fake tensor from a real one, unless that
is said: at 13 rows, where these programs do something else, a condition fails or the model is unproven."""

from __future__ import annotations

import copy
import functools
import numbers
import operator
import pickle
import sys
from builtins import isinstance as an_instance
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
from captured_programs import Program, as_array, assert_agrees, captured, graph_outputs
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import transformer

from dlcb.compiler.bridge import kinds
from dlcb.compiler.bridge.branches import Branches
from dlcb.compiler.bridge.guards import collect
from dlcb.compiler.expr.node import evaluate, size

N = size("n")
Asked = Callable[[Any], bool]


def branches(function: Callable[[Tensor], Tensor]) -> Branches:
    return collect(Program(function).eval(), {"x": torch.zeros(7, 4)}, {"x": [N, 4]}, 20.0)


def served(found: Branches) -> set[int]:
    return {n for n in (7, 8, 13, 64) if all(evaluate(each.condition, {"n": n}) for each in found.found)}


def name_of(asked: Asked) -> str:
    return asked.__name__


def is_int(n: Any) -> bool:
    return isinstance(n, int)


def is_no_symbol(n: Any) -> bool:
    return not isinstance(n, torch.SymInt)


def is_a_number(n: Any) -> bool:
    return isinstance(n, numbers.Integral)


def is_one_of(n: Any) -> bool:
    return isinstance(n, int | float)


def type_is_int(n: Any) -> bool:
    return type(n) is int


def type_equals_int(n: Any) -> bool:
    return type(n) == int  # noqa: E721


def type_in_a_table(n: Any) -> bool:
    return {int: True, float: True}.get(type(n), False)


def name_of_the_type(n: Any) -> bool:
    return type(n).__name__ == "int"


def type_below_int(n: Any) -> bool:
    return issubclass(type(n), int)


def no_node(n: Any) -> bool:
    return not hasattr(n, "node")


def no_node_to_get(n: Any) -> bool:
    return getattr(n, "node", None) is None


def no_node_listed(n: Any) -> bool:
    return "node" not in dir(n)


def comparison_is_true(n: Any) -> bool:
    return (n == 13) is True


def the_same_copied(n: Any) -> bool:
    return copy.deepcopy(n) == n


@pytest.mark.parametrize(
    "asked",
    [
        *(is_int, is_no_symbol, is_a_number, is_one_of, type_is_int, type_equals_int, type_in_a_table),
        *(name_of_the_type, type_below_int, no_node, no_node_to_get, no_node_listed, the_same_copied),
        comparison_is_true,
    ],
    ids=name_of,
)
def test_a_size_is_a_number(asked: Asked) -> None:
    found = branches(lambda x: x * 2 if asked(x.shape[0]) and x.shape[0] == 13 else x + 1)
    assert (served(found), found.missing) == ({7, 8, 64}, "")


@functools.singledispatch
def dispatched(n: Any) -> bool:
    return False


@dispatched.register
def _(n: int) -> bool:
    return n == 13


def same_object(n: Any) -> bool:
    thirteen = 13
    return n is thirteen


def same_object_asked(n: Any) -> bool:
    return operator.is_(n, 13)


def same_address(n: Any) -> bool:
    return id(n) == id(13)


def class_of_it(n: Any) -> bool:
    return n.__class__ is int and n == 13


def class_that_matches(n: Any) -> bool:
    match n:
        case int(value):
            return value == 13
    return False


def as_large_as_a_number(n: Any) -> bool:
    return sys.getsizeof(n) == sys.getsizeof(5) and n == 13


def real_part(n: Any) -> bool:
    return n.real == 13


def real_part_to_get(n: Any) -> bool:
    return getattr(n, "real", None) == 13


def stored(n: Any) -> bool:
    return pickle.loads(pickle.dumps(n)) == 13


kind = type
same = operator.is_
TABLE = {"same": same_object, "operator": same}


def another_name_of_type(n: Any) -> bool:
    return kind(n) is int and n == 13


def another_name_of_isinstance(n: Any) -> bool:
    return an_instance(n, int) and n == 13


def no_node_or_an_exception(n: Any) -> bool:
    try:
        return n.node is None
    except AttributeError:
        return n == 13


def no_attributes_at_all(n: Any) -> bool:
    try:
        vars(n)
    except TypeError:
        return n == 13
    return False


def type_in_an_array(n: Any) -> bool:
    return numpy.asarray(n).dtype == numpy.int64 and n == 13


def same_object_by_a_table(n: Any) -> bool:
    return TABLE["same"](n)


def same_object_by_a_partial(n: Any) -> bool:
    return {"p": functools.partial(same_object)}["p"](n)


def same_object_by_text(n: Any) -> bool:
    return eval("n is thirteen", {"n": n, "thirteen": 13})


def same_by_another_name(n: Any) -> bool:
    return same(n, 13)


def same_by_a_table(n: Any) -> bool:
    return TABLE["operator"](n, 13)


def same_for_each(n: Any) -> bool:
    return any(map(same, [n], [13]))


def equal_as_objects_are(n: Any) -> bool:
    return object.__eq__(n, 13) is True


class Length:
    def __init__(self, n: Any) -> None:
        self.n = n

    @property
    def is_thirteen(self) -> bool:
        thirteen = 13
        return self.n is thirteen

    def __add__(self, other: Any) -> bool:
        return self.n is other


def same_as_a_property(n: Any) -> bool:
    return Length(n).is_thirteen


def same_as_a_sum(n: Any) -> bool:
    return Length(n) + 13


@pytest.mark.parametrize(
    "asked",
    [
        *(same_object, same_object_asked, same_address, class_of_it, class_that_matches),
        *(as_large_as_a_number, real_part, real_part_to_get, stored, dispatched),
        *(another_name_of_type, another_name_of_isinstance, no_node_or_an_exception, no_attributes_at_all),
        *(type_in_an_array, same_object_by_a_table, same_object_by_a_partial, same_object_by_text),
        *(same_by_another_name, same_by_a_table, same_for_each, equal_as_objects_are),
        *(same_as_a_property, same_as_a_sum),
    ],
    ids=name_of,
)
def test_what_tells_a_size_from_a_number_is_said(asked: Asked) -> None:
    assert branches(lambda x: x * 2 if asked(x.shape[0]) else x + 1).missing


def test_none_and_its_like_are_no_sizes() -> None:
    def function(x: Tensor, mask: Tensor | None = None, flag: bool = True) -> Tensor:
        if mask is None and flag is True and x.dtype is torch.float32 and Length.__add__ is not x:
            return x + 1
        return x

    assert branches(function) == Branches(())


def test_a_forward_that_refuses_zeros_is_followed_on_other_values() -> None:
    found = branches(lambda x: torch.linalg.inv(x.T @ x))
    assert found == Branches(())


def test_whoever_traces_goes_on_tracing() -> None:
    def tracer(frame: Any, event: str, argument: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        branches(lambda x: x + 1)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


def shapes_broadcast(x: Tensor) -> Tensor:
    try:
        torch.broadcast_shapes(x.shape[:1], (13,))
    except RuntimeError:
        return x + 1
    return x * 2


def nothing_is_divided(x: Tensor) -> Tensor:
    try:
        _ = 5 // (x.shape[0] - 13)
    except ZeroDivisionError:
        return x * 2
    return x + 1


def refused_far_above(x: Tensor) -> Tensor:
    def inner() -> Tensor:
        return x + x.new_ones(x.shape[0] - 1 if x.shape[0] > 12 else x.shape[0], 1)

    try:
        return inner()
    except Exception:
        return x


def added(x: Tensor) -> Tensor:
    return x + x.new_zeros(min(x.shape[0], 8), 1)


def refused_in_a_stack(x: Tensor) -> Tensor:
    with ExitStack() as stack:
        stack.enter_context(suppress(RuntimeError))
        return added(x)
    return x * 2


def refused_in_a_decorated_function(x: Tensor) -> Tensor:
    return x * 2 if forgiven(x) is None else x + 1


@contextmanager
def forgiving() -> Iterator[None]:
    try:
        with torch.no_grad():
            yield
    except RuntimeError:
        pass


@forgiving()
def forgiven(x: Tensor) -> Tensor:
    return added(x)


def refused_in_an_own_context(x: Tensor) -> Tensor:
    class Forgiving:
        def __enter__(self) -> None:
            pass

        def __exit__(self, kind: Any, *rest: Any) -> bool:
            return kind is not None

    with Forgiving():
        return added(x)
    return x * 2


def refused_before_the_end(x: Tensor) -> Tensor:
    try:
        y = x * 2
        y = added(x)
    finally:
        return y  # noqa: B012


@pytest.mark.parametrize(
    "function",
    [
        *(shapes_broadcast, nothing_is_divided, refused_far_above, refused_in_a_stack),
        *(refused_in_a_decorated_function, refused_in_an_own_context, refused_before_the_end),
    ],
    ids=name_of,
)
def test_refusals_that_are_caught(function: Callable[[Tensor], Tensor]) -> None:
    found = branches(function)
    assert "caught" in found.missing or 13 not in served(found)


def keeps_going(x: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            return x + 1
    finally:
        x.dim()


def other_exceptions(x: Tensor) -> Tensor:
    try:
        return x.softmax(1)
    except (TypeError, AttributeError):
        return x


@contextmanager
def quiet() -> Iterator[None]:
    with torch.no_grad(), nullcontext():
        yield


class Timed:
    def __enter__(self) -> Timed:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.over = True


def other_contexts(x: Tensor) -> Tensor:
    with quiet(), Timed(), torch.autocast("cpu", enabled=False):
        return x.softmax(1)


@pytest.mark.parametrize("function", [keeps_going, other_exceptions, other_contexts], ids=name_of)
def test_what_catches_no_refusal_stays_proven(function: Callable[[Tensor], Tensor]) -> None:
    assert branches(function) == Branches(())


def plain_tensor(x: Tensor) -> bool:
    return type(x) is Tensor


def not_fake(x: Tensor) -> bool:
    return not isinstance(x, FakeTensor)


def not_fake_by_another_name(x: Tensor) -> bool:
    return kind(x) is Tensor


def not_fake_as_text(x: Tensor) -> bool:
    return "Fake" not in repr(x)


def no_mode_or_an_exception(x: Tensor) -> bool:
    try:
        return x.fake_mode is None
    except AttributeError:
        return True


def not_compiling(x: Tensor) -> bool:
    return not torch.compiler.is_compiling()


def not_exporting(x: Tensor) -> bool:
    return not torch.compiler.is_exporting()


@pytest.mark.parametrize(
    "asked",
    [
        *(plain_tensor, not_fake, not_fake_by_another_name, not_fake_as_text, no_mode_or_an_exception),
        *(not_compiling, not_exporting),
    ],
    ids=name_of,
)
def test_code_that_asks_whether_it_is_traced(asked: Callable[[Tensor], bool]) -> None:
    def function(x: Tensor) -> Tensor:
        return x * 2 if asked(x) and x.shape[0] == 13 else x + 1

    found = captured(function, ("n", 4))
    if found.unproven:
        return
    x = torch.randn(13, 4)
    graphs = (found, *found.others)
    serving = [
        each
        for each in graphs
        if all(evaluate(guard.condition, {"n": 13}) for guard in each.graph.system.solve().guards)
        and each.verdicts[0].size in ("n", 13)
    ]
    for each in serving[:1]:
        (ours,) = graph_outputs(each, {"x0": x})
        torch.testing.assert_close(torch.from_numpy(ours), torch.from_numpy(as_array(function(x))))


@pytest.mark.parametrize(
    "function",
    [lambda x: x * (x.shape[0] & 5), lambda x: x * (x.shape[0] | 1), lambda x: x * (2 ** x.shape[0] % 7)],
    ids=["and", "or", "power"],
)
def test_a_number_that_cannot_be_followed_is_said(function: Callable[[Tensor], Tensor]) -> None:
    assert "the number" in branches(function).missing


def test_modules_get_their_names_back() -> None:
    before = dict(globals())
    with kinds.as_real():
        assert isinstance(int, type) and type("C", (), {}).__name__ == "C"
        assert type(int) == type  # noqa: E721
        assert globals()["isinstance"] is not before.get("isinstance")
    assert dict(globals()) == before


def test_a_module_that_is_loaded_later_is_the_users_too(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = ModuleType("loaded_later")
    fresh.__file__ = "/models/loaded_later.py"
    with kinds.as_real():
        assert not hasattr(fresh, "isinstance")
    monkeypatch.setitem(sys.modules, "loaded_later", fresh)
    with kinds.as_real():
        assert hasattr(fresh, "isinstance")
    assert not hasattr(fresh, "isinstance")


class Attending(nn.Module):
    """PyTorch compares the values of each of its masks with the causal one's."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, target: Tensor, memory: Tensor) -> Tensor:
        n, m = target.shape[1], memory.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(n)
        near = torch.full((m, m), -torch.inf).triu(2)
        return self.decoder(target, self.encoder(memory, mask=near), tgt_mask=causal)


def test_transformers_with_masks_are_followed() -> None:
    module = Attending().eval()
    program = captured(module, ("b", "n", 8), ("b", "m", 8))
    assert [verdict.size for verdict in program.verdicts] == ["b", "n", 8, "b", "m", 8]
    assert not program.others and not program.elsewhere
    for b, n, m in ((1, 1, 1), (2, 5, 3), (3, 2, 9)):
        inputs = {"target": torch.randn(b, n, 8), "memory": torch.randn(b, m, 8)}
        assert_agrees(program, module, inputs, 2e-4)


def test_pytorch_compares_masks_again_afterwards() -> None:
    before = transformer._detect_is_causal_mask
    with kinds.as_real():
        assert transformer._detect_is_causal_mask(torch.zeros(2, 2)) is False
        assert transformer._detect_is_causal_mask(torch.zeros(2, 2), True, 2) is True
    assert transformer._detect_is_causal_mask is before
