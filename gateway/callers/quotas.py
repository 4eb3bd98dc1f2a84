"""Quotas of tenants: requests and tokens per minute, and concurrent tokens. Pure: callers pass the time.

Each worker sees only its own requests and admits its share of a limit (``share``: 1 / number of workers of all
gateways). Together they admit about the whole limit if requests are spread evenly. A bucket
holds at most a minute's worth and at least one request, so that a small limit shared by many workers still admits some.
With a shared store (``shared_quotas``) the workers lease from one bucket instead; the share then counts for a tenant's
first requests, and whenever the store is away.

The tokens of a request are known when it is answered. Until then they are estimated from its bytes. The answer settles
the difference, so a bucket may become negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.errors import QuotaExceeded

BYTES_PER_TOKEN: Final = 4
"""Bytes of text per token, about."""
EVERYBODY: Final = "*"
"""The name whose limits apply to every tenant without limits of its own."""
REQUESTS, TOKENS, CONCURRENT = "requests_per_minute", "tokens_per_minute", "concurrent_tokens"
_MINUTE_S: Final = 60.0
_MAX_TENANTS: Final = 10_000
_FRESH_S: Final = _MINUTE_S / 1000
"""Seconds between two refills. A refill in between would change the reported numbers by less than their precision."""
_LINES: Final = b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %%d\r\nx-ratelimit-reset-%b: %%.3fs\r\n"
"""Header lines; the values that change are filled in later."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one tenant over all gateways; infinite for none. ``is_shadow``: requests over them are only counted."""

    requests_per_minute: float = math.inf
    tokens_per_minute: float = math.inf
    concurrent_tokens: float = math.inf
    is_shadow: bool = False


def limits_of(item: object) -> Limits:
    """Return the limits in an entry of the key file. Raises ``ValueError``."""
    if not isinstance(item, dict) or not set(item) <= {REQUESTS, TOKENS, CONCURRENT, "shadow"}:
        raise ValueError(f"a quota is an object with {REQUESTS}, {TOKENS}, {CONCURRENT} and shadow")
    found: dict[str, float] = {}
    for name in (REQUESTS, TOKENS, CONCURRENT):
        value = item.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a number of at least 0")
        found[name] = float(value)
    if item.get("shadow", False) not in (True, False):
        raise ValueError("shadow must be true or false")
    return Limits(**found, is_shadow=bool(item.get("shadow", False)))


class Bucket:
    """A token bucket that refills by ``per_minute`` and holds a minute's worth, at least ``least``.

    ``name``: its name in headers. ``limit``: the tenant's whole limit, of which this is a share; infinite for none.
    """

    __slots__ = ("_at", "_lines", "_scale", "capacity", "left", "per_second")

    def __init__(self, per_minute: float, least: float, now: float, name: bytes = b"", limit: float = 0.0) -> None:
        self.capacity = max(per_minute, least)
        self.per_second = per_minute / _MINUTE_S
        self.left = self.capacity
        """What was left at the last refill; negative if more was taken than there was."""
        self._at = now
        self._scale = limit / self.capacity if 0 < self.capacity < math.inf else 0.0
        self._lines = _LINES % (name, limit, name, name) if limit < math.inf else b""

    def level(self, now: float) -> float:
        """Refill the bucket and return what is left."""
        if now > self._at:
            left = self.left + (now - self._at) * self.per_second
            self.left = left if left < self.capacity else self.capacity
            self._at = now
        return self.left

    def take(self, amount: float) -> None:
        """Take ``amount``, or give it back if it is negative; the bucket may become negative."""
        left = self.left - amount
        self.left = left if left < self.capacity else self.capacity

    def wait(self, amount: float, now: float) -> float:
        """Return the seconds until ``amount`` is left; at most an hour, also if it never will be."""
        lacking = amount - self.level(now)
        if lacking <= 0:
            return 0.0
        return min(lacking / self.per_second, 3600.0) if self.per_second else 3600.0

    def header_lines(self) -> bytes:
        """Return header lines: what was left at the last refill, scaled to the whole limit, and the seconds until the
        bucket is full. Empty without a limit.
        """
        if not self._lines:
            return b""
        left = self.left
        missing, wait = self.capacity - left, 3600.0
        if missing < wait * self.per_second or not missing:
            wait = missing / self.per_second if missing else 0.0
        return self._lines % (left * self._scale if left > 0 else 0, wait)

    def unchanged_range(self) -> tuple[float, float]:
        """Return the range of ``left`` in which ``header_lines`` stay true: ± 0.1 % of the bucket, and above 0."""
        if self.capacity == math.inf:
            return 0.0, math.inf
        slack = self.capacity / 1000
        return max(self.left - slack, 0.0), self.left + slack

    def resized(self, made: Bucket, now: float) -> Bucket:
        """Return ``made``, a bucket of another size, filled to the same fraction as this one."""
        if self.capacity < math.inf and made.capacity < math.inf:
            made.take(made.capacity * (1 - self.level(now) / self.capacity) if self.capacity else 0.0)
        return made


class LeasedBucket(Bucket):
    """A bucket that may be leased from the bucket of all workers together, in the shared store.

    While it is leased, ``left`` is this worker's lease, which does not refill by itself. Otherwise it is the worker's
    share, like any bucket. ``spent`` counts in both states, so the store learns of everything that was admitted.
    """

    __slots__ = ("_free", "_limit", "_own", "elsewhere", "given", "is_leased", "needed")

    def __init__(self, limit: float, share: float, least: float, now: float, name: bytes) -> None:
        super().__init__(limit * share, least, now, name, limit)
        self._limit = limit
        self._own = self.capacity
        """The capacity of this worker's share."""
        self.given = self.left
        """All that was ever put into this bucket."""
        self._free = 0.0
        self.elsewhere = 0.0
        """If leased: what the tenant had left besides this lease when it was granted."""
        self.is_leased = False
        self.needed = 0.0
        """The largest amount that was refused; whoever leases resets it."""

    @property
    def limit(self) -> float:
        """The tenant's whole limit; infinite for none."""
        return self._limit

    @property
    def spent(self) -> float:
        """All that was ever taken; 0 without a limit."""
        return self.given - self.left if self._limit < math.inf else 0.0

    @property
    def total(self) -> float:
        """About what the tenant has left over all workers, as far as this worker knows."""
        if self.is_leased:
            return self.left + self.elsewhere
        return self.left / self._own * self._limit if 0 < self._own < math.inf else self._limit

    def lease(self, spent: float, amount: float, total: float, free: float) -> None:
        """Hold a lease of ``amount``, granted when ``spent`` had been taken and the tenant had ``total`` left, ``free``
        of it leased by nobody.
        """
        if self._limit == math.inf:
            return
        left = amount - (self.spent - spent)
        self.given += left - self.left
        self.left, self.elsewhere, self._free = left, total - amount, free
        self.capacity, self.is_leased = self._limit, True

    def end_lease(self, share: float, now: float, *, is_told: bool) -> None:
        """Hold this worker's share of what the tenant has left, until the next lease.

        ``is_told``: the store has taken the lease back. Otherwise the other workers may have used up theirs, so this
        one counts on its own lease and its share of what was free, and on no more than its share of the whole.
        """
        if not self.is_leased:
            return
        total = self.total
        # Of little, one request at once: nobody would be admitted otherwise.
        left = max(total * share, min(total, 1.0)) if is_told else min(self.left + self._free * share, total * share)
        left = min(left, self._own)
        self.given += left - self.left
        self.left, self.elsewhere = left, 0.0
        self.capacity, self.is_leased, self._at = self._own, False, now

    def told(self, told: float, now: float) -> float:
        """Return how much of ``spent`` the store need not be told: it knows of ``told``, and what was taken from this
        worker's share so long ago that the share has refilled since is forgotten in the store's bucket too.
        """
        if self.is_leased or self._limit == math.inf:
            return told
        return max(told, self.spent - max(0.0, self._own - self.level(now)))

    def level(self, now: float) -> float:
        """See ``Bucket``; a lease does not refill."""
        if self.is_leased:
            return self.left
        before = self.left
        self.given += super().level(now) - before if before < math.inf else 0.0
        return self.left

    def take(self, amount: float) -> None:
        """See ``Bucket``."""
        left, capacity = self.left - amount, self.capacity
        if left > capacity:
            self.given -= left - capacity  # what did not fit was not spent either
            left = capacity
        self.left = left

    def wait(self, amount: float, now: float) -> float:
        """See ``Bucket``. A leased bucket asks for the amount with its next lease."""
        if amount > self.needed:
            self.needed = amount
        if not self.is_leased:
            return super().wait(amount, now)
        lacking = amount - self.total
        if lacking <= 0:
            return 0.0
        return min(lacking * _MINUTE_S / self._limit, 3600.0) if self._limit else 3600.0

    def header_lines(self) -> bytes:
        """See ``Bucket``; a lease counts with what is left elsewhere."""
        if not self.is_leased or not self._lines:
            return super().header_lines()
        left = min(self.left + self.elsewhere, self._limit)
        wait = min((self._limit - left) * _MINUTE_S / self._limit, 3600.0) if self._limit else 0.0
        return self._lines % (left if left > 0 else 0, wait)

    def resized(self, made: Bucket, now: float) -> Bucket:
        """See ``Bucket``. What was spent is still to be told to the store."""
        assert isinstance(made, LeasedBucket)  # noqa: S101 - one kind of bucket in one process
        spent = self.spent
        if self._limit < math.inf and made.capacity < math.inf:
            self.level(now)
            part = self.total / self._limit if self._limit else 1.0
            made.left = min(made.capacity * part, made.capacity)
        made.given = made.left + spent if made.capacity < math.inf else made.given
        return made


class Quota:
    """The quota of one tenant in this worker.

    For most requests enough is left and the rendered headers are still true to 0.1 %. Then ``admit_and_charge`` only
    subtracts, and ``head`` returns rendered bytes.
    """

    __slots__ = (
        "_began", "_fresh_until", "_head", "_max_held", "_over", "_requests_from", "_requests_to", "_tokens_from",
        "_tokens_to", "held", "is_active", "leases", "limits", "refused_held", "requests", "share", "tenant", "tokens",
    )  # fmt: skip

    def __init__(
        self, tenant: str, limits: Limits, share: float, now: float, over: Callable[[str, str], None],
        began: Callable[[Quota], None] | None = None,
    ) -> None:  # fmt: skip
        self.tenant = tenant
        self.held = 0.0
        """Estimated tokens of requests that are being answered."""
        self.refused_held = 0.0
        """Estimated tokens that would have been held with a request that was refused; whoever leases them resets it."""
        self.leases: object = None
        """Kept here for whoever leases."""
        self._over = over
        self._began = began
        self.is_active = began is None
        """Whether requests came lately: set before ``began`` is called, reset by whoever leases."""
        self._take_over(limits, share, *_buckets(limits, share, now, leased=began is not None))

    def change(self, limits: Limits, share: float, now: float) -> None:
        """Apply other limits, or another share of them; what was used stays used."""
        requests, tokens = _buckets(limits, share, now, leased=self._began is not None)
        self._take_over(limits, share, self.requests.resized(requests, now), self.tokens.resized(tokens, now))

    def _take_over(self, limits: Limits, share: float, requests: Bucket, tokens: Bucket) -> None:
        self.limits, self.share, self.requests, self.tokens = limits, share, requests, tokens
        self._max_held = limits.concurrent_tokens * share
        self._fresh_until = -math.inf
        self._render()

    def leased(self, max_held: float | None) -> None:
        """Use what the buckets hold since their leases changed, and ``max_held`` concurrent tokens; None: the share."""
        self._max_held = self.limits.concurrent_tokens * self.share if max_held is None else max_held
        self._fresh_until = -math.inf
        self._render()

    def admit_and_charge(self, size: int, now: float) -> int:
        """Admit a request of ``size`` bytes; return its estimated tokens. Raises ``QuotaExceeded``."""
        estimate = 1 + size // BYTES_PER_TOKEN
        requests, tokens = self.requests.left - 1.0, self.tokens.left - estimate
        held = self.held + estimate
        if (
            requests > self._requests_from and tokens > self._tokens_from
            and now < self._fresh_until and held <= self._max_held
        ):  # fmt: skip
            self.requests.left, self.tokens.left, self.held = requests, tokens, held
            return estimate
        self.admit(now)
        estimate = self.charge(size, now)
        self._fresh_until = now + _FRESH_S
        self._render()
        return estimate

    def admit(self, now: float) -> None:
        """Admit a request whose size is not known yet. Raises ``QuotaExceeded``, unless ``is_shadow``."""
        if not self.is_active and self._began is not None:
            self.is_active = True
            self._began(self)
        requests = self.requests
        if requests.level(now) >= 1.0:
            requests.left -= 1.0
        else:
            self._refuse("requests per minute", "quota_requests", requests.wait(1.0, now))

    def charge(self, size: int, now: float) -> int:
        """Charge the estimated tokens of ``size`` bytes, and return them.

        Raises ``QuotaExceeded`` if the request is over a limit; it then counts as not made. If ``is_shadow``, returns 0
        instead: a request over a shadow limit uses nothing up, so enforcing the limit later does not begin with a debt.
        """
        tokens, max_held = self.tokens, self._max_held
        estimate = 1 + size // BYTES_PER_TOKEN
        # A request larger than the bucket is admitted when the bucket is full, which then becomes negative.
        needed = estimate if estimate < tokens.capacity else tokens.capacity
        if tokens.level(now) < needed or not needed:
            self.requests.take(-1.0)
            self._refuse("tokens per minute", "quota_tokens", tokens.wait(max(1.0, needed), now))
            return 0
        if self.held + estimate > max_held and (self.held or not max_held):
            self.requests.take(-1.0)
            self.refused_held = self.held + estimate
            self._refuse("tokens at a time", "quota_concurrent_tokens", 1.0)
            return 0
        tokens.left -= estimate
        self.held += estimate
        return estimate

    def settle(self, estimate: int, tokens: int) -> None:
        """Replace a request's estimated tokens by those it has used."""
        held = self.held - estimate
        self.held = held if held > 0 else 0.0
        self.tokens.take(tokens - estimate)

    def _refuse(self, what: str, because: str, wait: float) -> None:
        """Count a request over a limit. Raises ``QuotaExceeded``, unless ``is_shadow``."""
        self._over(self.tenant, because)
        if not self.limits.is_shadow:
            raise QuotaExceeded(
                f"tenant {self.tenant} has used up its {what}", because=because, retry_after=max(1.0, math.ceil(wait)),
                hint="wait for the seconds in retry-after",
            )  # fmt: skip

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return OpenAI's ``x-ratelimit`` headers: what is left of this worker's share, scaled to the whole limit."""
        lines = self.head().split(b"\r\n")[:-1]
        return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]

    def head(self) -> bytes:
        """Return ``headers`` as header lines."""
        if not (
            self._requests_from < self.requests.left <= self._requests_to
            and self._tokens_from < self.tokens.left <= self._tokens_to
        ):
            self._render()
        return self._head

    def _render(self) -> None:
        requests, tokens = self.requests, self.tokens
        self._head = requests.header_lines() + tokens.header_lines()
        self._requests_from, self._requests_to = requests.unchanged_range()
        self._tokens_from, self._tokens_to = tokens.unchanged_range()


class Quotas:
    """The quotas of all tenants. ``over(tenant, reason)`` is called for each request over a limit."""

    def __init__(self, over: Callable[[str, str], None] = lambda _tenant, _reason: None) -> None:
        self._over = over
        self._limits: Mapping[str, Limits] = {}
        self._share = 1.0
        self._quotas: dict[str, Quota] = {}
        self._began: Callable[[Quota], None] | None = None
        self.store_status: Callable[[], Mapping[str, Any]] | None = None
        """What the status says of the shared store; None without one."""

    def lease(self, began: Callable[[Quota], None], status: Callable[[], Mapping[str, Any]]) -> None:
        """Use buckets that can be leased; ``began(quota)`` is called whenever one was idle and gets a request.

        Call it before the first request.
        """
        self._began, self.store_status = began, status

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
            quota.change(wanted, self._share, now)  # the same object: requests in flight settle with it

    def of(self, tenant: str, now: float) -> Quota | None:
        """Return the quota of ``tenant`` in this worker; None if it has no limits."""
        found = self._quotas.get(tenant)
        if found is None:
            limits = self._limits_of(tenant)
            if limits is None:
                return None
            if len(self._quotas) >= _MAX_TENANTS:  # tokens may name any number of tenants: drop the oldest
                del self._quotas[next(iter(self._quotas))]
            found = self._quotas[tenant] = Quota(
                tenant, limits, self._share, now, self._over, self._began
            )  # fmt: skip
        return found

    def status(self) -> dict[str, Any]:
        """Return the limits and this worker's share of them, for the status."""
        found: dict[str, Any] = {"tenants": sorted(self._limits), "share": round(self._share, 6)}
        return found if self.store_status is None else {**found, "store": dict(self.store_status())}

    def _limits_of(self, tenant: str) -> Limits | None:
        return self._limits.get(tenant) or self._limits.get(EVERYBODY)


def _buckets(limits: Limits, share: float, now: float, *, leased: bool) -> tuple[Bucket, Bucket]:
    """Return the buckets of requests and of tokens."""
    asked = ((b"requests", limits.requests_per_minute), (b"tokens", limits.tokens_per_minute))
    requests, tokens = (
        LeasedBucket(per_minute, share, 1.0 if per_minute else 0.0, now, name) if leased
        else Bucket(per_minute * share, 1.0 if per_minute else 0.0, now, name, per_minute)
        for name, per_minute in asked
    )  # fmt: skip
    return requests, tokens
