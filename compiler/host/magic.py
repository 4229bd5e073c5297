"""Division by a number known only at launch, without dividing: the host turns a divisor into a multiplier and
a shift, and the kernel computes `(multiply_high(n, multiplier) + n) >> shift`, which equals `n // divisor`
for 0 <= n < 2^(bits - 1).
"""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=65536)
def magic(divisor: int, bits: int = 32) -> tuple[int, int]:
    """Multiplier (below 2^bits) and shift of a divisor from 1 to 2^(bits - 1) - 1, for `bits` 32 or 64.
    ValueError outside."""
    if not 1 <= divisor < 1 << (bits - 1):
        raise ValueError(f"a divisor must lie in 1 to {(1 << (bits - 1)) - 1}, found {divisor}")
    shift = (divisor - 1).bit_length()  # the least with 2^shift >= divisor
    multiplier = (((1 << shift) - divisor) << bits) // divisor + 1
    return multiplier & ((1 << bits) - 1), shift


def divide(n: int, multiplier: int, shift: int, bits: int = 32) -> int:
    """What the kernel computes."""
    return ((n * multiplier >> bits) + n) >> shift
