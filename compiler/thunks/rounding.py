"""Weights to half types. Rounding each weight to its nearest value errs at random, so the errors of one
output channel add up to something, and the channel is off by that times the mean of its inputs, which after
a ReLU is never near 0. A few weights rounded to their second nearest value bring the sum to nearly nothing.
"""

from __future__ import annotations

import torch


def cast_evenly(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x`, float32 of rank 2 or more, in `dtype`, float16 or bfloat16. Each row (all axes but the first) is
    rounded to nearest; then those elements go to the neighbour on their other side that lose least by it, as
    long as that brings the row's sum nearer to the exact one. Zeros and what is not finite stay."""
    nearest = x.to(dtype)
    rows, exact = nearest.flatten(1), x.flatten(1)
    error = rows.float() - exact
    # to the other side of the exact value: one bit pattern away, toward 0 where the magnitude is too large
    inward = torch.where(rows < 0, -error, error) > 0
    bits = rows.view(torch.int16)
    other = torch.where(inward, bits - 1, bits + 1).view(dtype)
    step = (other.float() - rows.float()).abs()
    excess = torch.where(step.isfinite(), error, 0.0).sum(1, keepdim=True)
    movable = (error * excess > 0) & (rows != 0) & step.isfinite()
    loss = torch.where(movable, step - 2 * error.abs(), torch.inf)  # how much farther the other one lies
    order = loss.argsort(1)
    moved = torch.where(movable, step, 0.0).gather(1, order)
    wanted = (moved.cumsum(1) - moved / 2 <= excess.abs()) & movable.gather(1, order)
    chosen = torch.zeros_like(movable).scatter(1, order, wanted)
    return torch.where(chosen, other, rows).reshape(x.shape)
