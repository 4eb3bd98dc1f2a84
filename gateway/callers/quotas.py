"""Quotas of tenants as token buckets: requests and tokens per minute. Pure: callers pass the time.

Each worker sees only its own requests and admits its share of a limit (``share``: 1 / number of workers of all
gateways). Together they admit about the whole limit if requests are spread evenly. A bucket holds at most a minute's
worth and at least one request, so that a small limit shared by many workers still admits some. With a store
(``shared_quotas``) all workers ask the same buckets instead.

The tokens of a request are known when it is answered. Until then they are estimated from its bytes. The answer settles
the difference, so a bucket may become negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from gateway.errors import QuotaExceeded

EVERYBODY: Final = "*"
"""The name whose limits apply to every tenant without limits of its own."""
REQUESTS, TOKENS = "requests_per_minute", "tokens_per_minute"
_BYTES_PER_TOKEN: Final = 4
"""Bytes of text per token, about."""
_MINUTE_S: Final = 60.0
_LONGEST_S: Final = 3600.0
"""The longest time that a caller is told to wait, also where it waits for ever."""
_MAX_TENANTS: Final = 10_000


_Limit = Annotated[float, Field(ge=0, lt=math.inf, strict=True)]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one tenant over all gateways; infinite for none."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    requests_per_minute: _Limit = math.inf
    tokens_per_minute: _Limit = math.inf


def estimate_of(size: int) -> int:
    """Return about how many tokens ``size`` bytes have."""
    return 1 + size // _BYTES_PER_TOKEN


def seconds_of(amount: float, per_minute: float) -> float:
    """Return the seconds in which ``amount`` comes in, at most an hour."""
    if not amount > 0:  # also if it is no number, without a limit
        return 0.0
    return min(amount * _MINUTE_S / per_minute, _LONGEST_S) if per_minute else _LONGEST_S


class Bucket:
    """A worker's share of a limit per minute. It holds a minute's worth, at least one, and refills steadily.

    ``limit``: the tenant's whole limit; infinite for none.
    """

    __slots__ = ("_at", "_per_minute", "capacity", "left")

    def __init__(self, limit: float, share: float, now: float) -> None:
        self.left = math.inf
        """What was left at the last refill; negative if more was taken than there was."""
        self._at = now
        self.resize(limit, share)

    def resize(self, limit: float, share: float) -> None:
        """Apply another limit, or another share of it; what is left stays, if there is room for it."""
        self._per_minute = limit * share
        self.capacity = max(self._per_minute, 1.0) if limit else 0.0
        self.left = min(self.left, self.capacity)

    def level(self, now: float) -> float:
        """Refill the bucket and return what is left."""
        if now > self._at:
            self.left = min(self.left + (now - self._at) * self._per_minute / _MINUTE_S, self.capacity)
            self._at = now
        return self.left

    def take(self, amount: float) -> None:
        """Take ``amount``, or give it back if it is negative; the bucket may become negative."""
        self.left = min(self.left - amount, self.capacity)

    def seconds_until(self, amount: float) -> float:
        """Return the seconds from the last refill until ``amount`` is left, at most an hour, also if it never will."""
        return seconds_of(amount - self.left, self._per_minute)


class Quota:
    """The quota of one tenant in this worker."""

    __slots__ = ("_over", "limits", "owed", "requests", "tenant", "tokens")

    def __init__(self, tenant: str, limits: Limits, share: float, now: float, over: Callable[[str, str], None]) -> None:
        self.tenant = tenant
        self.owed = 0.0
        """Tokens that were used beyond the estimates and of which a store has not been told."""
        self._over = over
        self.limits = limits
        self.requests = Bucket(limits.requests_per_minute, share, now)
        self.tokens = Bucket(limits.tokens_per_minute, share, now)

    def change(self, limits: Limits, share: float) -> None:
        """Apply other limits, or another share of them."""
        self.limits = limits
        self.requests.resize(limits.requests_per_minute, share)
        self.tokens.resize(limits.tokens_per_minute, share)

    def admit(self, size: int, now: float) -> int:
        """Admit a request of ``size`` bytes; return its estimated tokens, to be settled.

        Raises ``QuotaExceeded`` if it is over a limit. Such a request uses nothing up.
        """
        estimate, requests, tokens = estimate_of(size), self.requests, self.tokens
        # A request larger than the bucket is admitted when the bucket is full, which then becomes negative.
        needed = min(estimate, tokens.capacity)
        if requests.level(now) < 1.0:
            raise self.refusal(REQUESTS, requests.seconds_until(1.0))
        if tokens.level(now) < needed or not needed:
            raise self.refusal(TOKENS, tokens.seconds_until(max(1.0, needed)))
        requests.take(1.0)
        tokens.take(estimate)
        return estimate

    def grow(self, estimate: int, size: int) -> int:
        """Return the tokens of an admitted request that turned out to have ``size`` bytes, and count those."""
        grown = estimate_of(size)
        if grown != estimate:
            self.settle(estimate, grown)
        return grown

    def settle(self, estimate: int, tokens: int) -> None:
        """Replace a request's estimated tokens by those it has used."""
        self.tokens.take(tokens - estimate)
        self.owed += tokens - estimate

    def refusal(self, limit: str, wait: float) -> QuotaExceeded:
        """Count a request over a limit, and return its error."""
        what, because = _REFUSALS[limit]
        self._over(self.tenant, because)
        return QuotaExceeded(
            f"tenant {self.tenant} has used up its {what}", because=because, retry_after=max(1.0, math.ceil(wait)),
            hint="wait for the seconds in retry-after",
        )  # fmt: skip


_REFUSALS: Final = {
    REQUESTS: ("requests per minute", "quota_requests"),
    TOKENS: ("tokens per minute", "quota_tokens"),
}


class Quotas:
    """The quotas of all tenants. ``over(tenant, reason)`` is called for each request over a limit."""

    def __init__(self, over: Callable[[str, str], None] = lambda _tenant, _reason: None) -> None:
        self._over = over
        self._limits: Mapping[str, Limits] = {}
        self.share = 1.0
        """This worker's share of every limit."""
        self._quotas: dict[str, Quota] = {}

    def configure(self, limits: Mapping[str, Limits] | None = None, share: float | None = None) -> None:
        """Change limits or share; what was used stays used. None leaves one as it is."""
        self._limits = self._limits if limits is None else limits
        self.share = self.share if share is None else share
        for tenant, quota in list(self._quotas.items()):
            wanted = self._limits_of(tenant)
            if wanted is None:
                del self._quotas[tenant]
            else:
                quota.change(wanted, self.share)  # the same object: requests in flight settle with it

    def of(self, tenant: str, now: float) -> Quota | None:
        """Return the quota of ``tenant`` in this worker; None if it has no limits."""
        found = self._quotas.get(tenant)
        if found is None:
            limits = self._limits_of(tenant)
            if limits is None:
                return None
            if len(self._quotas) >= _MAX_TENANTS:  # tokens may name any number of tenants: drop the oldest
                del self._quotas[next(iter(self._quotas))]
            found = self._quotas[tenant] = Quota(tenant, limits, self.share, now, self._over)
        return found

    def _limits_of(self, tenant: str) -> Limits | None:
        return self._limits.get(tenant) or self._limits.get(EVERYBODY)
