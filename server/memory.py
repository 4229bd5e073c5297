"""The memory of a batch before it exists: its inputs, its outputs and what the compiler says a run needs
between them, as a function of sizes; and how much there is on this machine.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Callable, Mapping
from pathlib import Path

from dlcb.compiler import BatchAxes, Dim, Signature
from dlcb.compiler.signature import compile_expression
from dlcb.server.datatypes import BY_DTYPE
from dlcb.server.errors import BadRequest, TooLarge

ADDRESSABLE = 2**63 - 1  # bytes, and the largest number that a message carries
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
PAGE = os.sysconf("SC_PAGE_SIZE")

Footprint = Callable[[Mapping[str, int]], int]


def footprint_of(signature: Signature) -> Footprint | None:
    """Bytes of a run by its sizes, beside the parameters and the libraries' own workspaces; None where only
    the run tells (models of unknown rank)."""
    if not signature.memory:
        return None
    terms = [signature.memory]
    for spec in signature.inputs:
        sizes = [dim.symbol if isinstance(dim, Dim) else str(dim) for dim in spec.dims or ()]
        terms.append(" * ".join([str(BY_DTYPE[spec.dtype].size), *sizes]))
    for spec in signature.outputs:
        texts = signature.output_dims.get(spec.name) or ()
        known = [f"({text})" for text in texts if text is not None]
        if known and len(known) == len(texts):
            terms.append(" * ".join([str(BY_DTYPE[spec.dtype].size), *known]))
    return compile_expression(" + ".join(terms))


def check_memory(
    model: str,
    footprint: Footprint | None,
    sizes: Mapping[str, int],
    limit: int | None,
    batch: BatchAxes | None = None,
) -> None:
    """TooLarge, with the number, for a request that could not run even alone; where its rows are independent,
    also with how many of them could. BadRequest where a size of 0 hides others that no tensor can have."""
    if footprint is None:
        return
    if 0 in sizes.values():
        most = footprint({symbol: size or 1 for symbol, size in sizes.items()})
        if most > ADDRESSABLE:
            raise BadRequest(
                f"model '{model}' at {_words_of(sizes)}: at 1 in place of 0 that is {most} bytes, and "
                f"{ADDRESSABLE} can be addressed"
            )
    if limit is None:
        return
    bytes_at: Footprint = footprint
    needed = bytes_at(sizes)
    if needed <= limit:
        return
    message = (
        f"model '{model}' at {_words_of(sizes)} needs {needed} bytes of memory, and a run may take {limit}"
    )
    rows = 0 if batch is None else sizes[batch.symbol]
    if batch is not None and rows > 1:
        symbol = batch.symbol
        fit = bisect_right(range(1, rows), limit, key=lambda count: bytes_at({**sizes, symbol: count}))
        message += f"; at {symbol} {fit} it would fit" if fit else f"; it would not fit at {symbol} 1 either"
    raise TooLarge(message)


def _words_of(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{symbol} {size}" for symbol, size in sizes.items())


def available_on_host(workers: int) -> int:
    """Bytes that one of so many workers may take: a share of the container's limit, or of the machine."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # no such file, or it says "max"
        total = min(total, int(CGROUP_LIMIT.read_text()))
    return total // workers


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, IndexError, ValueError):
        return 0
