"""Who may run which model, and how often: API keys in groups, and token buckets that bound a rate. Keys are
compared in constant time, and all of them each time.
"""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Mapping

from dlcb.server.errors import Forbidden, RateExceeded, Unauthorized
from dlcb.server.settings import Keys

Headers = Mapping[bytes, bytes]


class TokenBucket:
    """Lets `rate` requests a second through, and up to `burst` at once after a quiet time."""

    __slots__ = ("_burst", "_level", "_rate", "_when")

    def __init__(self, rate: float, burst: int | None = None) -> None:
        self._rate = rate
        self._burst = float(burst if burst is not None else max(1, math.ceil(rate)))
        self._level = self._burst
        self._when = -math.inf

    def take(self, now: float) -> float:
        """0 when the request may pass; else the seconds until the next one may."""
        if now > self._when:
            self._level = min(self._burst, self._level + (now - self._when) * self._rate)
            self._when = now
        if self._level >= 1.0:
            self._level -= 1.0
            return 0.0
        return (1.0 - self._level) / self._rate

    def check(self, whose: str) -> None:
        """RateExceeded, with when to try again, where the rate is used up."""
        seconds = self.take(time.monotonic())
        if seconds:
            raise RateExceeded(f"the rate of {whose} is {self._rate:g} requests a second", math.ceil(seconds))


class Access:
    """The groups of the configuration. Without any key inference is open to all."""

    def __init__(self, keys: Keys) -> None:
        self._admin = [key.encode() for key in keys.admin]
        self._keys: list[tuple[bytes, int]] = [(key.encode(), -1) for key in keys.infer]
        self._groups = keys.groups
        self._buckets: list[TokenBucket | None] = []
        for number, group in enumerate(keys.groups):
            self._keys += [(key.encode(), number) for key in group.keys]
            rate = group.requests_per_second
            self._buckets.append(None if rate is None else TokenBucket(rate, group.burst))

    def __bool__(self) -> bool:
        return bool(self._keys)

    def check(self, headers: Headers, model: str) -> None:
        """Unauthorized without one of the keys, Forbidden where its group may not run this model,
        RateExceeded where the group has used its rate."""
        given = key_of(headers)
        found = [number for key, number in self._keys if hmac.compare_digest(given, key)]
        if not found:
            raise Unauthorized(NEEDED)
        if found[0] < 0:
            return
        group, bucket = self._groups[found[0]], self._buckets[found[0]]
        if group.models is not None and model not in group.models:
            raise Forbidden(f"keys of group '{group.name}' do not run model '{model[:60]}'")
        if bucket is not None:
            bucket.check(f"group '{group.name}'")

    def check_admin(self, headers: Headers) -> None:
        """Unauthorized without a key that is known here, Forbidden with one that only runs models."""
        given = key_of(headers)
        admin = [hmac.compare_digest(given, key) for key in self._admin]
        known = [hmac.compare_digest(given, key) for key, _number in self._keys]
        if any(admin):
            return
        if any(known):
            raise Forbidden("this key runs models; loading and unloading need one of the 'admin' keys")
        raise Unauthorized(NEEDED)


NEEDED = "a valid key is needed, as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"


def key_of(headers: Headers) -> bytes:
    """The key that a request carries; empty without one."""
    given = headers.get(b"x-api-key", b"")
    if given:
        return given
    scheme, _space, rest = headers.get(b"authorization", b"").partition(b" ")
    return rest.strip() if scheme.lower() == b"bearer" else b""
