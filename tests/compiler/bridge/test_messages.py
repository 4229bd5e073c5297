"""A size in the text of an assertion, a log or a warning decides nothing; in any other text it may."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from captured_programs import Program
from torch import Tensor, _assert

from dlcb.compiler.bridge.guards import collect
from dlcb.compiler.expr.node import size

logger = logging.getLogger("messages")
table = {"7": 1}


def missing(function: object) -> str:
    return collect(Program(function), {"x": torch.zeros(7, 2)}, {"x": (size("n"), 2)}, 20.0).missing


def asserts(x: Tensor) -> Tensor:
    _assert(x.shape[0] % 7 == 0, f"Rows ({x.shape[0]}) come in {7:d}s.")
    torch._assert(x.shape[0] > 2, f"{x.shape[0]:d}")
    return x


def logs(x: Tensor) -> Tensor:
    logger.info(f"rows: {x.shape[0]!r} of {x.shape[1]}")
    return x


def warns(x: Tensor) -> Tensor:
    warnings.warn(f"rows: {x.shape[0]}", stacklevel=2)
    return x


@pytest.mark.parametrize("function", [asserts, logs, warns])
def test_text_that_only_tells_people_is_nothing(function: object) -> None:
    assert not missing(function)


def looks_up(x: Tensor) -> Tensor:
    return x * table[f"{x.shape[0]}"]


def asserts_by_text(x: Tensor) -> Tensor:
    _assert(f"{x.shape[0]}" == "7", "seven")
    return x


def logs_what_it_keeps(x: Tensor) -> Tensor:
    logger.info(text := f"{x.shape[0]}")
    return x * len(text)


def logs_a_part(x: Tensor) -> Tensor:
    logger.info(f"{x.shape[0]}".zfill(3))
    return x


@pytest.mark.parametrize("function", [looks_up, asserts_by_text, logs_what_it_keeps, logs_a_part])
def test_other_text_may_decide(function: object) -> None:
    assert "a size becomes text" in missing(function)
