"""What a tenant may use in a minute and at a time: pure, times are given.

A gateway sees its own requests only. It lets its share of a limit through (``share``: one of so many workers of all
gateways), so that together they let about the whole through as long as requests are spread over them; no store is
asked. A bucket holds a minute's worth at most, and at least one request, so that a small limit shared by many still
lets somebody through.

Tokens are known when a request was answered. Until then they are estimated from its bytes; what was estimated
wrongly is settled with the answer, and a bucket may go below nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.errors import QuotaExceeded

BYTES_PER_TOKEN: Final = 4
"""About what a token of a text takes."""
EVERYBODY: Final = "*"
"""The tenant whose limits are those of each tenant that has none of its own."""
REQUESTS, TOKENS, CONCURRENT = "requests_per_minute", "tokens_per_minute", "concurrent_tokens"
_MINUTE_S: Final = 60.0
_MAX_TENANTS: Final = 10_000
_FRESH_S: Final = _MINUTE_S / 1000
"""So long what has come in since is not added up: no more than what is told is exact to."""
_LINES: Final = b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %%d\r\nx-ratelimit-reset-%b: %%.3fs\r\n"
"""All that does not change of what is told, and room for the rest."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one tenant over all gateways; infinite for none. ``is_shadow``: who is over them is only counted."""

    requests_per_minute: float = math.inf
    tokens_per_minute: float = math.inf
    concurrent_tokens: float = math.inf
    is_shadow: bool = False


def limits_of(item: object) -> Limits:
    """Return the limits that an entry of the file of keys is. Raises ``ValueError``."""
    if not isinstance(item, dict) or not set(item) <= {REQUESTS, TOKENS, CONCURRENT, "shadow"}:
        raise ValueError(f"a quota is an object with {REQUESTS}, {TOKENS}, {CONCURRENT} and shadow")
    found: dict[str, float] = {}
    for name in (REQUESTS, TOKENS, CONCURRENT):
        value = item.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"{name} is no number of at least 0")
        found[name] = float(value)
    if item.get("shadow", False) not in (True, False):
        raise ValueError("shadow is true or false")
    return Limits(**found, is_shadow=bool(item.get("shadow", False)))


class Bucket:
    """So much a minute: holds what has come in since, a minute's worth at most. ``name`` and ``limit``: what ``told``
    calls it, and the whole of which this is a share; infinite for none.
    """

    __slots__ = ("_at", "_lines", "_scale", "left", "most", "per_second")

    def __init__(self, per_minute: float, least: float, now: float, name: bytes = b"", limit: float = 0.0) -> None:
        self.most = max(per_minute, least)
        self.per_second = per_minute / _MINUTE_S
        self.left = self.most
        """What was left at the last look; below nothing after more was taken than there was."""
        self._at = now
        self._scale = limit / self.most if 0 < self.most < math.inf else 0.0
        self._lines = _LINES % (name, limit, name, name) if limit < math.inf else b""

    def level(self, now: float) -> float:
        """Return what is left."""
        if now > self._at:
            left = self.left + (now - self._at) * self.per_second
            self.left = left if left < self.most else self.most
            self._at = now
        return self.left

    def take(self, amount: float) -> None:
        """Take so much (or give it back), whatever is left."""
        left = self.left - amount
        self.left = left if left < self.most else self.most

    def wait(self, amount: float, now: float) -> float:
        """Return the seconds until so much is left: at most an hour, for what will never be."""
        lacking = amount - self.level(now)
        if lacking <= 0:
            return 0.0
        return min(lacking / self.per_second, 3600.0) if self.per_second else 3600.0

    def told(self) -> bytes:
        """Return what was left at the last look, in terms of the whole, and the seconds until it is all there, as lines
        of a head; nothing without a limit.
        """
        if not self._lines:
            return b""
        left = self.left
        missing, wait = self.most - left, 3600.0
        if missing < wait * self.per_second or not missing:
            wait = missing / self.per_second if missing else 0.0
        return self._lines % (left * self._scale if left > 0 else 0, wait)

    def near(self) -> tuple[float, float]:
        """Return between what the rest may be while ``told`` need not be told again: a thousandth of a minute's worth
        up and down, and something is left.
        """
        if self.most == math.inf:
            return 0.0, math.inf
        slack = self.most / 1000
        return max(self.left - slack, 0.0), self.left + slack

    def resized(self, made: Bucket, now: float) -> Bucket:
        """Return ``made``, a bucket of another size, as full as this one."""
        if self.most < math.inf and made.most < math.inf:
            made.take(made.most * (1 - self.level(now) / self.most) if self.most else 0.0)
        return made


class Quota:
    """What one tenant has used here.

    Most requests come while nothing of note has changed: enough is left, and what is told of it is still so, to a
    thousandth. Then ``let_in`` only subtracts, and ``head`` is ready.
    """

    __slots__ = (
        "_fresh_until", "_head", "_most_held", "_over", "_requests_from", "_requests_to", "_tokens_from", "_tokens_to",
        "held", "limits", "requests", "share", "tenant", "tokens",
    )  # fmt: skip

    def __init__(self, tenant: str, limits: Limits, share: float, now: float, over: Callable[[str, str], None]) -> None:
        self.tenant = tenant
        self.held = 0.0
        """Tokens of requests that are under way, as estimated."""
        self._over = over
        self._take_over(limits, share, *_buckets(limits, share, now))

    def change(self, limits: Limits, share: float, now: float) -> None:
        """Go on with other limits, or another share of them; what was used stays used."""
        requests, tokens = _buckets(limits, share, now)
        self._take_over(limits, share, self.requests.resized(requests, now), self.tokens.resized(tokens, now))

    def _take_over(self, limits: Limits, share: float, requests: Bucket, tokens: Bucket) -> None:
        self.limits, self.share, self.requests, self.tokens = limits, share, requests, tokens
        self._most_held = limits.concurrent_tokens * share
        self._fresh_until = -math.inf
        self._tell()

    def let_in(self, size: int, now: float) -> int:
        """Let in a request of ``size`` bytes: ``admit`` and ``charge`` in one."""
        estimate = 1 + size // BYTES_PER_TOKEN
        requests, tokens = self.requests.left - 1.0, self.tokens.left - estimate
        held = self.held + estimate
        if (
            requests > self._requests_from and tokens > self._tokens_from
            and now < self._fresh_until and held <= self._most_held
        ):  # fmt: skip
            self.requests.left, self.tokens.left, self.held = requests, tokens, held
            return estimate
        self.admit(now)
        estimate = self.charge(size, now)
        self._fresh_until = now + _FRESH_S
        self._tell()
        return estimate

    def admit(self, now: float) -> None:
        """Let in a request whose size is not known yet. Raises ``QuotaExceeded``, unless the limits are a shadow's."""
        requests = self.requests
        if requests.level(now) >= 1.0:
            requests.left -= 1.0
        else:
            self._refuse("requests per minute", "quota_requests", requests.wait(1.0, now))

    def charge(self, size: int, now: float) -> int:
        """Hold what ``size`` bytes are estimated at, and return it.

        A request over a limit is one that was not made. Raises ``QuotaExceeded`` for it; if the limits are a shadow's,
        returns 0 instead: what a real limit would have refused uses nothing up, or enforcing the limit later would
        begin with a debt.
        """
        tokens, most = self.tokens, self._most_held
        estimate = 1 + size // BYTES_PER_TOKEN
        # A request larger than a minute's worth gets in when the bucket is full, and pays for it later.
        needed = estimate if estimate < tokens.most else tokens.most
        if tokens.level(now) < needed or not needed:
            self.requests.take(-1.0)
            self._refuse("tokens per minute", "quota_tokens", tokens.wait(max(1.0, needed), now))
            return 0
        if self.held + estimate > most and (self.held or not most):
            self.requests.take(-1.0)
            self._refuse("tokens at a time", "quota_concurrent_tokens", 1.0)
            return 0
        tokens.left -= estimate
        self.held += estimate
        return estimate

    def settle(self, estimate: int, tokens: int) -> None:
        """Take what a request has used instead of what it was charged."""
        held = self.held - estimate
        self.held = held if held > 0 else 0.0
        self.tokens.take(tokens - estimate)

    def _refuse(self, what: str, because: str, wait: float) -> None:
        """Count that the tenant is over a limit. Raises ``QuotaExceeded``, unless the limits are a shadow's."""
        self._over(self.tenant, because)
        if not self.limits.is_shadow:
            raise QuotaExceeded(
                f"tenant {self.tenant} has used its {what}", because=because, retry_after=max(1.0, math.ceil(wait)),
                hint="wait as long as retry-after says",
            )  # fmt: skip

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return what the newest request has left, as OpenAI's headers tell it: this gateway's part, in terms of the
        whole.
        """
        lines = self.head().split(b"\r\n")[:-1]
        return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]

    def head(self) -> bytes:
        """Return ``headers`` as lines of a head; for one who is told with every answer."""
        if not (
            self._requests_from < self.requests.left <= self._requests_to
            and self._tokens_from < self.tokens.left <= self._tokens_to
        ):
            self._tell()
        return self._head

    def _tell(self) -> None:
        requests, tokens = self.requests, self.tokens
        self._head = requests.told() + tokens.told()
        self._requests_from, self._requests_to = requests.near()
        self._tokens_from, self._tokens_to = tokens.near()


class Quotas:
    """Every tenant's. ``over`` is told tenant and reason whenever somebody is over a limit."""

    def __init__(self, over: Callable[[str, str], None] = lambda _tenant, _reason: None) -> None:
        self._over = over
        self._limits: Mapping[str, Limits] = {}
        self._share = 1.0
        self._quotas: dict[str, Quota] = {}

    def configure(self, limits: Mapping[str, Limits] | None, share: float | None, now: float) -> None:
        """Change limits or share; what was used stays used. None leaves one as it is."""
        before = (self._limits, self._share)
        self._limits = self._limits if limits is None else limits
        self._share = self._share if share is None else share
        if before == (self._limits, self._share):
            return
        for tenant, quota in list(self._quotas.items()):
            wanted = self._limits_of(tenant)
            if wanted is None:
                del self._quotas[tenant]
                continue
            quota.change(wanted, self._share, now)  # the same object goes on: requests under way settle with it

    def of(self, tenant: str, now: float) -> Quota | None:
        """Return what ``tenant`` has used here; None if it has no limits."""
        found = self._quotas.get(tenant)
        if found is None:
            limits = self._limits_of(tenant)
            if limits is None:
                return None
            if len(self._quotas) >= _MAX_TENANTS:  # made up by whoever signs tokens: the longest known goes
                del self._quotas[next(iter(self._quotas))]
            found = self._quotas[tenant] = Quota(tenant, limits, self._share, now, self._over)
        return found

    def told(self) -> dict[str, Any]:
        """Return the limits and this worker's share of them, for the status."""
        return {"tenants": sorted(self._limits), "share": round(self._share, 6)}

    def _limits_of(self, tenant: str) -> Limits | None:
        return self._limits.get(tenant) or self._limits.get(EVERYBODY)


def _buckets(limits: Limits, share: float, now: float) -> tuple[Bucket, Bucket]:
    """Return those of requests and of tokens."""
    requests, tokens = (
        Bucket(per_minute * share, 1.0 if per_minute else 0.0, now, name, per_minute)
        for name, per_minute in ((b"requests", limits.requests_per_minute), (b"tokens", limits.tokens_per_minute))
    )
    return requests, tokens
