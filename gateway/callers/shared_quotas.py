"""Leases quotas from a store that all gateways share, beside the requests: no request waits for the store.

Requests are admitted from this worker's buckets (``quotas``). Ten times a second one task tells the store what each
active tenant has used here, and gets a new lease: some of what the tenant has left. What was used counts in any case,
so a worker that admitted requests without a lease owes them. The first requests of a tenant, and all of them while the
store does not answer, are admitted from this worker's share, as without a store.

Pure, except for ``SharedQuotas``; what talks to the server is ``redis_store``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from gateway.callers.quotas import LeasedBucket, Quota, Quotas

_log = logging.getLogger("triton_gateway.callers")

STEP_S: Final = 0.1
"""Seconds between two steps."""
GATHER_S: Final = 0.005
"""Seconds between a tenant's first request and its first report, so that many tenants share one call."""
ASK_S: Final = 5.0
"""Seconds between two questions whether the store is there while no tenant is active."""
RETRY_S: Final = 1.0
"""Seconds between two questions while it is away."""
HOLD_S: Final = 10.0
"""Seconds after which the lease and the concurrent tokens of a worker that has not been heard of are free again."""
KEEP_S: Final = 300.0
"""Seconds for which the store keeps what it knows of a tenant that nobody asks about; by then its buckets are full."""
BATCH: Final = 200
"""The most tenants in one call to the store."""
_IDLE_STEPS: Final = 10
_RETRY_STEPS: Final = 20
"""How long a lease is asked for what was refused: callers come back after a second or later."""
_FADE: Final = 0.7
Pair = tuple[float, float]
"""A number for requests and one for tokens."""


class StoreAway(Exception):
    """The store does not answer, or not as it should; the message says why and holds no secret."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker tells the store about one tenant. Limits are infinite for none.

    ``worker``: who reports; ``number``: rises with each report. ``known``: the ``Grant.bucket`` of its last grant, 0
    for none. ``spent``: all it ever took; ``told``: of that, what the store knows or need not. ``estimate``: what the
    tenant has left as far as it knows, if the store does not. ``wanted``: the lease it would like; ``least``: a smaller
    one is of no use. ``held`` and ``wanted_held``: concurrent tokens. ``leaves``: it needs no lease any more.
    """

    tenant: str
    worker: str
    number: int
    known: int
    limits: Pair
    concurrent: float
    spent: Pair
    told: Pair
    estimate: Pair
    wanted: Pair
    least: Pair
    held: float
    wanted_held: float
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """The store's reply to a ``Report``.

    ``bucket``: names the tenant's buckets; another number means that the store had lost them. ``left``: what the tenant
    has left over all workers. ``lease``: of that, what this worker may take. ``free``: of that, what no worker leases.
    ``held``: how many concurrent tokens it may hold.
    """

    bucket: int
    left: Pair
    lease: Pair
    free: Pair
    held: float


class QuotaStore(Protocol):
    """The buckets of all tenants, shared by all workers."""

    @property
    def address(self) -> str:
        """Where the store is, without credentials."""
        ...

    async def step(self, reports: Sequence[Report]) -> list[Grant | None]:
        """Apply reports, each atomically, and return the grant for each; None for one that came too late to count.

        Without reports it only asks whether the store is there. Bounded in time. Raises ``StoreAway``.
        """
        ...

    async def close(self) -> None:
        """Close connections. Raises nothing."""
        ...


@dataclass(slots=True)
class _Leases:
    """The leases of one tenant."""

    quota: Quota
    worker: str
    number: int = 0
    known: int = 0
    told: Pair = (0.0, 0.0)
    seen: Pair = (0.0, 0.0)
    """What was spent at the last step, whether or not the store answered."""
    demand: Pair = (0.0, 0.0)
    """What is spent in a step; fades."""
    peak: float = 0.0
    """Concurrent tokens; fades."""
    refused: Pair = (0.0, 0.0)
    """The largest amounts that were refused in the last ``_RETRY_STEPS``."""
    refused_ago: int = 0
    idle: int = 0
    """Steps without a request."""

    @property
    def buckets(self) -> tuple[LeasedBucket, LeasedBucket]:
        requests, tokens = self.quota.requests, self.quota.tokens
        assert isinstance(requests, LeasedBucket)  # noqa: S101 - made so by `Quotas.lease`
        assert isinstance(tokens, LeasedBucket)  # noqa: S101
        return requests, tokens

    def report(self, now: float) -> Report:
        """Return what to tell the store now."""
        quota, (requests, tokens) = self.quota, self.buckets
        self.told = (requests.told(self.told[0], now), tokens.told(self.told[1], now))
        spent = (requests.spent, tokens.spent)
        refused = (requests.needed, tokens.needed)
        requests.needed = tokens.needed = 0.0
        self.refused_ago = 0 if any(refused) else self.refused_ago + 1
        self.refused = (
            (max(refused[0], self.refused[0]), max(refused[1], self.refused[1]))
            if self.refused_ago < _RETRY_STEPS else (0.0, 0.0)
        )  # fmt: skip
        self.idle = 0 if spent != self.seen or quota.held or any(self.refused) else self.idle + 1
        self.demand = (
            max(spent[0] - self.seen[0], _FADE * self.demand[0]), max(spent[1] - self.seen[1], _FADE * self.demand[1])
        )  # fmt: skip
        self.peak = max(quota.held, quota.refused_held, _FADE * self.peak)
        quota.refused_held = 0.0
        self.seen = spent
        self.number += 1
        estimate = (requests.total, tokens.total) if self.known else (
            requests.limit - spent[0], tokens.limit - spent[1]
        )  # fmt: skip
        return Report(
            quota.tenant, self.worker, self.number, self.known, (requests.limit, tokens.limit),
            quota.limits.concurrent_tokens, spent, self.told, estimate,
            wanted=(2 * self.demand[0] + self.refused[0], 2 * self.demand[1] + self.refused[1]),
            least=(1.0, max(1.0, self.refused[1])), held=quota.held, wanted_held=2 * self.peak,
            leaves=self.idle >= _IDLE_STEPS,
        )  # fmt: skip

    def take(self, report: Report, grant: Grant) -> None:
        """Use what the store has granted."""
        self.known, self.told = grant.bucket, report.spent
        for k, bucket in enumerate(self.buckets):
            bucket.lease(report.spent[k], grant.lease[k], grant.left[k], grant.free[k])
        self.quota.leased(grant.held)

    def let_go(self, now: float, *, is_told: bool = False) -> None:
        """Use this worker's share. ``is_told``: the store has taken the leases back."""
        for bucket in self.buckets:
            bucket.end_lease(self.quota.share, now, is_told=is_told)
        self.quota.leased(None)


@dataclass(slots=True)
class _State:
    is_good: bool | None = None
    problem: str = ""
    since: float = field(default_factory=time.time)


class SharedQuotas:
    """Keeps the leases of ``quotas`` current, for one event loop.

    ``worker``: a name that no other worker has. ``report(address, is_good)`` is called after each step: whether
    the store answered.
    """

    def __init__(
        self, quotas: Quotas, store: QuotaStore, worker: str,
        report: Callable[[str, bool], None] = lambda _address, _is_good: None,
    ) -> None:  # fmt: skip
        self._store = store
        self._worker = worker
        self._report = report
        self._numbers = itertools.count(1)
        self._active: dict[int, _Leases] = {}
        self._new: list[_Leases] = []
        """Of the active ones, those that began after the last step."""
        self._begun = asyncio.Event()
        self._state = _State()
        quotas.lease(self._begin, self.status)

    def _begin(self, quota: Quota) -> None:
        """A tenant without a lease has a request."""
        leases = quota.leases
        if not isinstance(leases, _Leases):
            # Two quotas of one tenant may follow each other in this worker: the store must not take them for one.
            leases = quota.leases = _Leases(quota, f"{self._worker}.{next(self._numbers)}")
        leases.idle = 0
        self._active[id(quota)] = leases
        self._new.append(leases)
        self._begun.set()

    async def run(self) -> None:
        """Keep the leases current until cancelled; then return them."""
        try:
            while True:
                await self.step(time.monotonic())
                if not self._state.is_good:
                    await asyncio.sleep(RETRY_S)
                    continue
                ends = time.monotonic() + (STEP_S if self._active else ASK_S)
                while self._state.is_good and await self._tenant_begins(ends):
                    await self.step(time.monotonic(), only_new=True)
                    ends = min(ends, time.monotonic() + STEP_S)
        finally:
            await asyncio.shield(self._leave())

    async def _tenant_begins(self, ends: float) -> bool:
        """Return whether a tenant begins before ``ends``, in seconds of the monotonic clock."""
        seconds = ends - time.monotonic()
        if seconds <= 0:
            return False
        try:
            async with asyncio.timeout(seconds):
                await self._begun.wait()
        except TimeoutError:
            return False
        await asyncio.sleep(GATHER_S)
        return True

    async def step(self, now: float, *, only_new: bool = False) -> None:
        """Tell the store what was used, and take the leases that it grants; if it does not answer, use the share.

        ``only_new``: only for tenants that began after the last step. The others' steps stay ``STEP_S`` apart, so that
        many tenants that come and go do not cost a report of every tenant each time.
        """
        active = self._new if only_new else list(self._active.values())
        self._new = []
        self._begun.clear()
        try:
            if not active:
                await self._store.step(())
            for at in range(0, len(active), BATCH):
                await self._exchange(active[at : at + BATCH], now)
        except StoreAway as error:
            self._fall_back(str(error), now)
        except Exception as error:  # noqa: BLE001 - see below
            # Without its task the quota of a tenant would never be refilled: go on with the share.
            _log.exception("leases of quotas")
            self._fall_back(type(error).__name__, now)
        else:
            self._tell(is_good=True)

    def _fall_back(self, problem: str, now: float) -> None:
        for leases in self._active.values():
            leases.let_go(now)
        self._tell(is_good=False, problem=problem)

    async def _exchange(self, part: Sequence[_Leases], now: float) -> None:
        reports = [leases.report(now) for leases in part]
        for leases, report, grant in zip(part, reports, await self._store.step(reports), strict=True):
            if grant is None:
                continue
            leases.take(report, grant)
            if report.leaves:
                leases.let_go(now, is_told=True)
                if (leases.buckets[0].spent, leases.buckets[1].spent) == report.spent and not leases.quota.held:
                    leases.quota.is_active = False
                    self._active.pop(id(leases.quota), None)

    async def _leave(self) -> None:
        """Return all leases, so that nobody waits for their end."""
        reports = [leases.report(time.monotonic()) for leases in self._active.values()]
        try:
            if self._state.is_good:
                for at in range(0, len(reports), BATCH):
                    await self._store.step([replace(report, leaves=True) for report in reports[at : at + BATCH]])
        except StoreAway as error:
            _log.info("the leases of quotas end by themselves: %s", error)
        await self._store.close()

    def _tell(self, *, is_good: bool, problem: str = "") -> None:
        state = self._state
        if is_good != state.is_good:
            state.since = time.time()
            if is_good:
                _log.info("quotas are shared by all gateways through %s", self._store.address)
            else:
                _log.warning(
                    "the store of quotas at %s is away (%s): each gateway admits its share until it is back",
                    self._store.address, problem,
                )  # fmt: skip
        state.is_good, state.problem = is_good, problem
        self._report(self._store.address, is_good)

    def status(self) -> dict[str, Any]:
        """Return for the status where the store is, whether it is in use, since when, and its problem."""
        state = self._state
        return {
            "address": self._store.address, "in_use": bool(state.is_good),
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(state.since)), "problem": state.problem or None,
        }  # fmt: skip
