"""Tenants of one endpoint, one of which sends far more than its share: simulated time, random arrivals."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping

import pytest

from gateway.batching.batcher import Batcher
from gateway.batching.entries import BatchLimits, Entry
from gateway.batching.pressure import Pressure
from gateway.errors import Overloaded
from gateway.trace import DEFAULT, Flow
from tests.simulated import MAX_ROWS, Price, Row, Server, SimulatedLoop, begin, simulate

CHEAP = Price("cheap rows", 22e-3, 0.5e-3, 0.0)
CAPACITY = MAX_ROWS / CHEAP.seconds(MAX_ROWS, 0)
WARM_S, SECONDS = 6.0, 12.0


class Tenant:
    """The outcomes of one tenant's requests."""

    def __init__(self) -> None:
        self.asked = 0
        self.took: list[float] = []

    @property
    def answered(self) -> float:
        """The share of its requests that were answered."""
        return len(self.took) / self.asked

    @property
    def p99(self) -> float:
        """The 99th percentile of the times of its answers, in seconds."""
        return sorted(self.took)[int(0.99 * len(self.took))]


def ask(rates: Mapping[str, float]) -> dict[str, Tenant]:
    """Let each tenant send requests at a rate per second, whatever their outcomes."""

    async def main(loop: SimulatedLoop) -> dict[str, Tenant]:
        chance = random.Random(1)
        batcher: Batcher[Row] = Batcher(
            Server(loop, CHEAP, chance), limits=BatchLimits(max_rows=MAX_ROWS, pressure=Pressure("always")),
            on_batch=lambda *_: None, clock=loop.time,
        )  # fmt: skip
        found = {name: Tenant() for name in rates}

        def arrive(name: str) -> None:
            now = loop.time()
            if now < WARM_S + SECONDS:
                loop.call_at(now + chance.expovariate(rates[name]), arrive, name)
            tenant, counts = found[name], WARM_S <= now < WARM_S + SECONDS

            def done(_entry: Entry[Row], _outputs: object, error: Exception | None) -> None:
                if error is None and counts:
                    tenant.took.append(loop.time() - now)

            tenant.asked += counts
            if not batcher.is_full(DEFAULT, name):
                with contextlib.suppress(Overloaded):
                    begin(batcher, [Row(12)], now + 60, done, flow=Flow(DEFAULT, name))

        for name in rates:
            loop.call_soon(arrive, name)
        await asyncio.sleep(WARM_S + SECONDS + 2)
        await batcher.close()
        return found

    return simulate(main)  # type: ignore[no-any-return]


@pytest.mark.parametrize("times", [5.0, 20.0])
def test_a_tenant_that_sends_many_times_its_share_takes_nothing_from_another_one(times: float) -> None:
    """The other tenant's requests wait for the running call and the one behind it at most."""
    calm = ask({"quiet": 0.3 * CAPACITY, "greedy": 0.3 * CAPACITY})
    hard = ask({"quiet": 0.3 * CAPACITY, "greedy": times * 0.3 * CAPACITY})
    assert hard["quiet"].answered >= 0.99
    assert hard["quiet"].p99 <= 1.6 * calm["quiet"].p99
    assert len(hard["greedy"].took) >= 0.6 * CAPACITY * SECONDS


def test_tenants_that_together_exceed_the_capacity_get_equal_shares() -> None:
    """Fifty tenants: waits stay short, and each gets about as many answers as the others."""
    found = ask({str(number): 0.04 * CAPACITY for number in range(50)})
    each = [len(tenant.took) for tenant in found.values()]
    assert sum(each) >= 0.95 * CAPACITY * SECONDS
    assert min(each) >= 0.7 * max(each)
    assert max(tenant.p99 for tenant in found.values()) <= 0.4
