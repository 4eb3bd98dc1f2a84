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
    calls it, and the whole of which this is a share.
    """

    __slots__ = ("_at", "_lines", "_scale", "_text", "_told", "left", "most", "per_second")

    def __init__(self, per_minute: float, least: float, now: float, name: bytes = b"", limit: float = 0.0) -> None:
        self.most = max(per_minute, least)
        self.per_second = per_minute / _MINUTE_S
        self.left = self.most
        """What was left at the last look; below nothing after more was taken than there was."""
        self._at = now
        self._scale = limit / self.most if self.most else 0.0
        self._lines = _LINES % (name, limit, name, name)
        self._text, self._told = b"", math.nan

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
        of a head; as it was told last as long as it differs by less than a thousandth of a minute's worth.
        """
        left = self.left
        if not abs(left - self._told) * 1000 < self.most:  # it is nan at first
            missing, wait = self.most - left, 3600.0
            if missing < wait * self.per_second or not missing:
                wait = missing / self.per_second if missing else 0.0
            self._told = left
            self._text = self._lines % (left * self._scale if left > 0 else 0, wait)
        return self._text

    def resized(self, made: Bucket, now: float) -> Bucket:
        """Return ``made``, a bucket of another size, as full as this one."""
        made.take(made.most * (1 - self.level(now) / self.most) if self.most else 0.0)
        return made


class Quota:
    """What one tenant has used here."""

    __slots__ = ("_over", "held", "limits", "requests", "share", "tenant", "tokens")

    def __init__(self, tenant: str, limits: Limits, share: float, now: float, over: Callable[[str, str], None]) -> None:
        self.tenant = tenant
        self.limits = limits
        self.share = share
        self.requests = _bucket(b"requests", limits.requests_per_minute, share, now)
        self.tokens = _bucket(b"tokens", limits.tokens_per_minute, share, now)
        self.held = 0.0
        """Tokens of requests that are under way, as estimated."""
        self._over = over

    def admit(self, now: float) -> Hold:
        """Let in a request whose size is not known yet. Raises ``QuotaExceeded``, unless the limits are a shadow's."""
        requests = self.requests
        if requests is not None:
            if requests.level(now) < 1.0:
                self.refuse("requests per minute", "quota_requests", requests.wait(1.0, now))
            requests.left -= 1.0
        return Hold(self)

    def refuse(self, what: str, because: str, wait: float) -> None:
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
        requests, tokens = self.requests, self.tokens
        if requests is None:
            return b"" if tokens is None else tokens.told()
        return requests.told() if tokens is None else requests.told() + tokens.told()


class Hold:
    """What a request was let in with, until it has ended; nothing yet for one that was not."""

    __slots__ = ("_estimate", "quota")

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self._estimate = 0

    def charge(self, size: int, now: float) -> None:
        """Hold what ``size`` bytes are estimated at. Raises ``QuotaExceeded``, unless the limits are a shadow's; the
        request is then one that was not made.
        """
        quota = self.quota
        tokens, limits = quota.tokens, quota.limits
        estimate = 1 + size // BYTES_PER_TOKEN
        try:
            if tokens is not None:
                # A request larger than a minute's worth gets in when the bucket is full, and pays for it later.
                needed = estimate if estimate < tokens.most else tokens.most
                if tokens.level(now) < needed or not needed:
                    quota.refuse("tokens per minute", "quota_tokens", tokens.wait(max(1.0, needed), now))
            if limits.concurrent_tokens != math.inf:
                most = limits.concurrent_tokens * quota.share
                if quota.held + estimate > most and (quota.held or not most):
                    quota.refuse("tokens at a time", "quota_concurrent_tokens", 1.0)
        except QuotaExceeded:
            if quota.requests is not None:
                quota.requests.take(-1.0)
            raise
        if tokens is not None:
            tokens.left -= estimate
        quota.held += estimate
        self._estimate = estimate

    def settle(self, tokens: int, now: float) -> None:
        """Take what was used instead of what was estimated; a second call does nothing."""
        estimate = self._estimate
        if not estimate:
            return
        self._estimate = 0
        quota = self.quota
        held = quota.held - estimate
        quota.held = held if held > 0 else 0.0
        bucket = quota.tokens
        if bucket is not None:
            bucket.level(now)
            bucket.take(tokens - estimate)


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
            made = Quota(tenant, wanted, self._share, now, self._over)
            if quota.requests is not None and made.requests is not None:
                made.requests = quota.requests.resized(made.requests, now)
            if quota.tokens is not None and made.tokens is not None:
                made.tokens = quota.tokens.resized(made.tokens, now)
            # The same object goes on: requests under way settle with it.
            quota.limits, quota.share, quota.requests, quota.tokens = wanted, self._share, made.requests, made.tokens

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


def _bucket(name: bytes, per_minute: float, share: float, now: float) -> Bucket | None:
    if per_minute == math.inf:
        return None
    return Bucket(per_minute * share, 1.0 if per_minute else 0.0, now, name, per_minute)
