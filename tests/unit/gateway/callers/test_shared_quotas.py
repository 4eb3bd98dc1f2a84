"""Quotas leased from a store in memory, in simulated time: workers together keep a tenant's limit and use it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import random
import time
from collections.abc import Iterator, Sequence

import pytest

from gateway.callers import shared_quotas
from gateway.callers.quotas import Limits, Quota, Quotas
from gateway.callers.shared_quotas import STEP_S, Grant, Report, SharedQuotas
from gateway.errors import QuotaExceeded
from gateway.testing import FakeQuotaStore
from tests.waiting import soon


class Workers:
    """Workers that share one store and one clock."""

    def __init__(self, number: int, **limits: float) -> None:
        self.now = 0.0
        self.store = FakeQuotaStore(lambda: self.now)
        self.quotas: list[Quotas] = []
        self.shared: list[SharedQuotas] = []
        self.seen: list[bool] = []
        for name in range(number):
            quotas = Quotas()
            quotas.configure({"t": Limits(**limits)}, 1 / number, 0.0)  # type: ignore[arg-type]
            self.quotas.append(quotas)
            self.shared.append(SharedQuotas(quotas, self.store, f"w{name}", lambda _at, good: self.seen.append(good)))

    def quota(self, worker: int) -> Quota:
        found = self.quotas[worker].of("t", self.now)
        assert found is not None
        return found

    def ask(self, worker: int, size: int = 0, tokens: int | None = 1) -> int | None:
        """Make a request; return its charge if it was admitted. ``tokens``: it ends at once with so many."""
        quota = self.quota(worker)
        try:
            charged = quota.admit_and_charge(size, self.now)
        except QuotaExceeded:
            return None
        if tokens is not None:
            quota.settle(charged, tokens)
        return charged

    async def step(self, *workers: int, seconds: float = STEP_S) -> None:
        self.now += seconds
        for worker in workers or range(len(self.shared)):
            await self.shared[worker].step(self.now)

    async def flood(self, seconds: float, weights: list[float], per_step: int = 60) -> int:
        """Ask far more than the limit; return how many requests were admitted."""
        source = random.Random(7)
        passed = 0
        for _ in range(round(seconds / STEP_S)):
            for worker in source.choices(range(len(weights)), weights, k=per_step):
                passed += self.ask(worker) is not None
            await self.step()
        return passed


@pytest.mark.parametrize("weights", [[1, 1, 1], [8, 1, 1], [1, 0, 0]], ids=["even", "uneven", "one"])
async def test_workers_together_admit_the_whole_limit_and_no_more(weights: list[float]) -> None:
    """However the requests are spread: at least 95 % of what the limit allows in a minute."""
    workers = Workers(3, requests_per_minute=600)
    passed = await workers.flood(60, weights)
    assert 0.95 * 1200 <= passed <= 1200


async def test_a_small_limit_over_many_workers_is_used_and_kept() -> None:
    """Eight a minute, for 16 workers: each of them would admit one by its share."""
    workers = Workers(16, requests_per_minute=8)
    passed = await workers.flood(120, [1] * 16)
    # The first requests of so many workers are twice the limit. They owe them, but never more than a minute's worth.
    assert 0.95 * 24 <= passed <= 24 + 8


async def test_a_request_that_needs_most_of_a_minutes_tokens_gets_them_from_the_other_workers() -> None:
    """It is refused once, and admitted when it comes back."""
    workers = Workers(3, tokens_per_minute=3000)
    for worker in range(3):
        workers.ask(worker)
    await workers.step()
    assert None is workers.ask(0, 4 * 2500)
    for _ in range(4):
        for worker in range(3):  # the others stay busy
            workers.ask(worker, 4)
        await workers.step()
    assert None is not workers.ask(0, 4 * 2500)


async def test_no_request_waits_for_the_store() -> None:
    """The first of a tenant is admitted from the share, and told at the next step."""
    workers = Workers(2, requests_per_minute=60)
    assert 30 == sum(workers.ask(0) is not None for _ in range(60))
    assert 0 == workers.store.steps
    await workers.step()
    assert b"remaining-requests: 30\r" in workers.quota(0).head()
    workers.ask(1)
    await workers.step()
    assert b"remaining-requests: 29\r" in workers.quota(1).head()


async def test_headers_tell_what_is_left_over_all_workers() -> None:
    """Not only what this worker leases."""
    workers = Workers(3, requests_per_minute=600)
    for _ in range(60):
        workers.ask(0)
    await workers.step()
    workers.ask(1)
    await workers.step()
    head = workers.quota(1).head()
    assert b"limit-requests: 600\r" in head
    assert b"remaining-requests: 540\r" in head  # one has come back
    assert b"reset-requests: 6.000s" in head or b"reset-requests: 5.9" in head


async def test_a_tenant_that_nobody_asks_for_is_not_reported_any_more() -> None:
    """After a second; its lease is returned. With the next request it is back."""
    workers = Workers(2, requests_per_minute=600)
    workers.ask(0)
    for _ in range(12):
        await workers.step()
    assert not workers.quota(0).is_active
    assert None is not workers.ask(0)
    assert workers.quota(0).is_active
    await workers.step()
    assert b"remaining-requests: 599\r" in workers.quota(0).head()


async def test_while_the_store_is_away_each_worker_admits_its_share() -> None:
    """And what it admitted counts when the store is back, with all it knew."""
    workers = Workers(2, requests_per_minute=600)
    before = await workers.flood(30, [1, 1])
    workers.store.is_away = True
    meanwhile = await workers.flood(30, [1, 1])
    assert 0.95 * 300 <= meanwhile <= 300 + 2
    assert not workers.seen[-1]
    workers.store.is_away = False
    after = await workers.flood(30, [1, 1])
    assert 0.95 * 1500 <= before + meanwhile + after <= 1500 + 2
    assert workers.seen[-1]


async def test_nobody_owes_for_a_long_absence_of_the_store() -> None:
    """After five minutes at the limit a tenant gets its requests as before."""
    workers = Workers(2, requests_per_minute=600)
    await workers.flood(5, [1, 1])
    workers.store.is_away = True
    await workers.flood(300, [1, 1])
    workers.store.is_away = False
    assert 0.95 * 50 <= await workers.flood(5, [1, 1]) <= 50 + 2
    workers.store.is_away = True
    await workers.step(seconds=1)
    await workers.step(seconds=600)
    workers.store.is_away = False
    assert 0.95 * 650 <= await workers.flood(5, [1, 1]) <= 650


async def test_a_store_that_lost_its_data_gives_no_second_quota() -> None:
    """The workers know about how much was left."""
    workers = Workers(3, requests_per_minute=600)
    before = await workers.flood(30, [8, 1, 1])
    workers.store.lose_everything()
    after = await workers.flood(30, [8, 1, 1])
    assert 0.95 * 1200 <= before + after <= 1200 + 30


async def test_a_worker_that_is_gone_keeps_neither_lease_nor_concurrent_tokens() -> None:
    """They are free again ten seconds after its last report."""
    workers = Workers(2, concurrent_tokens=100, requests_per_minute=1000)
    for _ in range(3):
        workers.ask(0, 4 * 25, None)
        await workers.step(0)
    assert 50 < workers.quota(0).held
    workers.ask(1)
    await workers.step(1)
    assert None is workers.ask(1, 4 * 70, None) or workers.quota(1).held <= 50
    for _ in range(11):
        workers.ask(1)
        await workers.step(1, seconds=1.0)
    held = 0
    for _ in range(8):
        held += workers.ask(1, 4 * 10, None) or 0
        await workers.step(1)
    assert 80 <= held <= 100


@pytest.mark.parametrize("weights", [[1, 1, 1], [1, 0, 0]])
async def test_concurrent_tokens_are_shared(weights: list[float]) -> None:
    """The workers together hold all that the limit allows, but for a request (10 tokens) in each."""
    workers = Workers(3, concurrent_tokens=300)
    for worker in range(3):
        workers.ask(worker)
    await workers.step()
    source = random.Random(7)
    for _ in range(30):
        for worker in source.choices(range(3), weights, k=20):
            workers.ask(worker, 4 * 9, None)
        await workers.step()
    held = sum(workers.quota(worker).held for worker in range(3))
    assert 300 - 3 * 10 <= held <= 300 + 3 * 10


async def test_limits_that_change_take_over_what_was_used() -> None:
    """Nothing that was spent is forgotten, in either direction."""
    workers = Workers(2, requests_per_minute=600)
    for _ in range(300):
        workers.ask(0)
    await workers.step()
    for quotas in workers.quotas:
        quotas.configure({"t": Limits(requests_per_minute=60)}, None, workers.now)
    await workers.step()
    passed = await workers.flood(60, [1, 1])
    assert passed <= 60 + 60


async def test_a_report_that_comes_late_changes_nothing() -> None:
    """A server that stood still applies what it had received before; newer reports have been there already."""
    workers = Workers(1, requests_per_minute=600)
    reports = []
    step = workers.store.step

    async def noting(asked: object) -> object:
        reports.append(asked)
        return await step(asked)  # type: ignore[arg-type]

    workers.store.step = noting  # type: ignore[assignment,method-assign]
    workers.ask(0)
    await workers.step()
    workers.ask(0)
    await workers.step()
    assert [None] == await step(reports[0])
    [grant] = await step([dataclasses.replace(reports[1][0], number=9)])
    assert grant is not None
    assert pytest.approx(599, abs=1.1) == grant.left[0]


async def test_a_tenant_that_begins_costs_no_report_of_every_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps only those that are new are told."""
    told: list[list[str]] = []

    class Noting(FakeQuotaStore):
        async def step(self, reports: Sequence[Report]) -> list[Grant | None]:
            told.append([report.tenant for report in reports])
            return await super().step(reports)

    monkeypatch.setattr(shared_quotas, "STEP_S", 3600.0)
    quotas = Quotas()
    quotas.configure({"*": Limits(requests_per_minute=600)}, 1.0, time.monotonic())
    shared = SharedQuotas(quotas, Noting(time.monotonic), "w")
    running = asyncio.create_task(shared.run())
    for tenant in ("first", "second", "third"):
        quota = quotas.of(tenant, time.monotonic())
        assert quota is not None
        quota.admit_and_charge(0, time.monotonic())
        await soon(lambda one=tenant: any(one in reports for reports in told))  # type: ignore[misc]
    assert [["first"], ["second"], ["third"]] == [reports for reports in told if reports]
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert ["first", "second", "third"] == told[-1]  # all leases are returned


async def test_tenants_without_a_limit_of_one_kind_are_told_nothing_of_it() -> None:
    """Only the limits that exist appear in headers, and infinite ones refuse nothing."""
    workers = Workers(2, tokens_per_minute=600)
    for _ in range(5):
        assert None is not workers.ask(0)
        await workers.step()
    assert b"requests" not in workers.quota(0).head()
    assert math.inf == workers.quota(0).requests.left


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No step may fail with anything but an absent store."""
    yield
    assert "leases of quotas" not in caplog.text


async def test_an_absent_store_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """In the log and in the status; its return too."""
    workers = Workers(1, requests_per_minute=60)
    caplog.set_level("INFO")
    await workers.step()
    workers.store.is_away = True
    for _ in range(3):
        await workers.step()
    status = workers.quotas[0].status()["store"]
    assert not status["in_use"]
    assert "told to be away" == status["problem"]
    assert 1 == caplog.text.count("each gateway admits its share until it is back")
    workers.store.is_away = False
    await workers.step()
    assert workers.quotas[0].status()["store"]["in_use"]
    assert 2 == caplog.text.count("shared by all gateways")
