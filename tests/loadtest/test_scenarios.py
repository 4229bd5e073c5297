"""Scenarios draw what they declare, within their ranges, and not the same twice."""

import numpy as np
import pytest

from dlcb.loadtest.scenarios import SCENARIOS, AnyRank, Integers, Padding, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda one: one.name)
def test_drawn_inputs_are_as_declared(scenario: Scenario) -> None:
    random = np.random.default_rng()
    seen = set()
    for _ in range(50):
        inputs = scenario.draw(random)
        assert list(inputs) == [declared.name for declared in scenario.inputs]
        sizes: dict[str, int] = {}
        for declared in scenario.inputs:
            array = inputs[declared.name]
            assert array.dtype == declared.dtype
            if isinstance(declared.shape, AnyRank):
                assert declared.shape.rank[0] <= array.ndim <= declared.shape.rank[1]
                assert all(declared.shape.size[0] <= size <= declared.shape.size[1] for size in array.shape)
            else:
                for dim, size in zip(declared.shape, array.shape, strict=True):
                    assert sizes.setdefault(str(dim), size) == size
            if isinstance(declared.values, Integers):
                assert declared.values.low <= array.min() and array.max() < declared.values.high
            if isinstance(declared.values, Padding):
                assert (array[:, 0] == 1).all() and (np.diff(array, axis=1) <= 0).all()
        for dim, (low, high) in scenario.dims.items():
            assert low <= sizes[dim] <= high
        seen.add(tuple(array.shape for array in inputs.values()))
    assert len(seen) > 10
