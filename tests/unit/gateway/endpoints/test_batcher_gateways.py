"""Several gateways that send calls to the same servers: simulated time, random arrivals."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from gateway.admission import Pressure
from gateway.endpoints.batcher import Batcher
from gateway.endpoints.capacity import Capacity
from gateway.endpoints.entries import BatchLimits, Entry, Gateways
from gateway.errors import Overloaded
from gateway.prices import Prices
from tests.simulated import MAX_ROWS, Merging, Price, Row, Server, Several, SimulatedLoop, short, simulate
from tests.unit.gateway.endpoints.units import Replicas

LARGE = Price("large", 20e-3, 1.5e-3, 0.0)
CAPACITY = MAX_ROWS / LARGE.seconds(MAX_ROWS, 0)
STEP_S, SECONDS = 5.0, 20.0
SEEDS = {2: (), 4: (), 8: (2, 3, 4, 5, 6, 7, 8)}
"""Further runs that tell the answers, by the number of gateways."""


def answered(
    gateways: int, times: float, *, is_merging: bool = False, merges_lengths: bool = False, skip: float = 0.0,
    seed: int = 1,
) -> list[float]:  # fmt: skip
    """Return the times of the answers, in seconds, after the load has risen from three quarters of the capacity.

    ``is_merging``: the server puts calls together, and the gateways are told how many they are. ``merges_lengths``: it
    is known that it does so whatever their lengths are. The first ``skip`` seconds after the step are left out.
    """

    async def main(loop: SimulatedLoop) -> list[float]:
        chance = random.Random(seed)
        if merges_lengths:
            loop.work = lambda seconds: None  # type: ignore[method-assign]  # each gateway has its own CPU
        server = (Merging if is_merging else Server)(loop, LARGE, chance)
        batchers: list[Batcher[Row]] = [
            Batcher(
                server,
                limits=BatchLimits(
                    max_rows=MAX_ROWS, pressure=Pressure("auto"), gateways=Gateways(gateways if is_merging else 1),
                    instances=int(is_merging), merges_lengths=merges_lengths,
                ),
                on_batch=lambda *_: None, clock=loop.time,
            )
            for _ in range(gateways)
        ]  # fmt: skip
        took: list[float] = []
        due = 0.0

        def arrive() -> None:
            nonlocal due
            sent = due
            if sent >= STEP_S + SECONDS:
                return
            due += chance.expovariate((times if sent >= STEP_S else 0.75) * CAPACITY)
            loop.call_at(due, arrive)
            batcher = chance.choice(batchers)
            batcher.pressure.look(loop.time())

            def done(_entry: Entry[Row], _outputs: object, error: Exception | None) -> None:
                if error is None and sent >= STEP_S + skip:
                    took.append(loop.time() - sent)

            if batcher.is_full():
                batcher.pressure.press(loop.time())
                return
            with contextlib.suppress(Overloaded):
                batcher.begin([Row(12)], sent + 60, done)

        loop.call_soon(arrive)
        await asyncio.sleep(STEP_S + SECONDS + 2)
        for batcher in batchers:
            await batcher.close()
        return sorted(took)

    return simulate(main)  # type: ignore[no-any-return]


@pytest.mark.parametrize("times", [2.0, 5.0])
def test_two_gateways_that_do_not_know_of_each_other_keep_the_goodput(times: float) -> None:
    """Each finds its own limit of work, and answers take at most as long as callers wait."""
    took = answered(2, times)
    assert len(took) >= 0.94 * CAPACITY * SECONDS
    assert took[int(0.99 * len(took))] <= 1.0
    assert took[-1] <= 2.0


@pytest.mark.parametrize(("gateways", "times"), [(1, 0.8), (2, 0.8), (8, 0.8), (2, 0.9), (2, 2.0), (8, 2.0), (2, 10.0)])
def test_small_calls_that_a_server_merges_wait_as_one_gateways_calls_do(gateways: int, times: float) -> None:
    """At any load, they join the next batch of the server, and each gateway holds its share of what keeps it busy."""
    skip = 5.0 if times > 1 else 0.0
    alone = answered(1, times, skip=skip)
    found = answered(gateways, times, is_merging=True, merges_lengths=True, skip=skip)
    assert len(found) >= min(times, 0.96) * 0.97 * CAPACITY * (SECONDS - skip)
    assert found[int(0.5 * len(found))] <= (1.1 if times <= 1 else 1.5) * alone[int(0.5 * len(alone))]
    assert found[int(0.99 * len(found))] <= 1.4 * alone[int(0.99 * len(alone))]


@pytest.mark.parametrize("times", [2.0, 5.0, 10.0])
def test_two_gateways_that_know_of_each_other_share_the_servers_calls(times: float) -> None:
    """Each makes half of a call, and the server merges the halves. No request waits for two calls of the other one."""
    calm, hard = answered(2, 0.75, is_merging=True), answered(2, times, is_merging=True)
    assert len(hard) >= 0.95 * CAPACITY * SECONDS
    assert hard[int(0.5 * len(hard))] <= 1.2 * calm[int(0.9 * len(calm))]
    assert hard[int(0.95 * len(hard))] <= 2.0 * calm[int(0.99 * len(calm))]


@pytest.mark.parametrize(("gateways", "times"), [(2, 1.2), (2, 10.0), (4, 2.0), (8, 1.2), (8, 2.0)])
def test_the_waits_of_gateways_that_share_a_server_stay_short(gateways: int, times: float) -> None:
    """Five seconds after the step and for as long as it lasts: their calls stay in step, and their limits do not rise
    against each other.
    """
    calm, hard = (answered(gateways, load, is_merging=True, skip=5.0) for load in (0.75, times))
    # With eight gateways a run answers 0.91 to 0.97 of the capacity, by chance.
    runs = [hard, *(answered(gateways, times, is_merging=True, skip=5.0, seed=seed) for seed in SEEDS[gateways])]
    assert sum(map(len, runs)) >= 0.94 * CAPACITY * (SECONDS - 5.0) * len(runs)
    assert hard[int(0.95 * len(hard))] <= 1.75 * calm[int(0.99 * len(calm))]
    assert hard[int(0.99 * len(hard))] <= 2.2 * calm[int(0.99 * len(calm))]


GPU = Price("a price per call", 22e-3, 0.5e-3, 0.0)
TOKENS = Price("a price per padded token", 0.0, 0.0, 10e-6)
SERVERS = 4
WARM_S = 1.5


def waits(price: Price, gateways: int, load: float, *, is_told: bool, seconds: float = 2.0) -> tuple[float, float]:
    """Return the p50 and p99 of answers, in seconds, of gateways before four servers that merge no calls.

    ``load``: share of what the servers can do with full calls. ``is_told``: the gateways know how many they are.
    """

    async def main(loop: SimulatedLoop) -> tuple[float, float]:
        chance = random.Random(1)
        loop.work = lambda seconds: None  # type: ignore[method-assign]  # each gateway has its own CPU
        servers = [Server(loop, price, chance) for _ in range(SERVERS)]
        limits = BatchLimits(max_rows=MAX_ROWS, gateways=Gateways(gateways if is_told else 1), merges_calls=False)
        batchers: list[Batcher[Row]] = []
        for _ in range(gateways):
            seen = Several(loop, servers)
            batchers.append(Batcher(seen, limits=limits, on_batch=lambda *_: None, clock=loop.time, servers=seen))
        rate = load * SERVERS * MAX_ROWS / price.seconds(MAX_ROWS, 24)
        took: list[float] = []
        due = 0.0

        def arrive() -> None:
            nonlocal due
            sent = due
            if sent >= WARM_S + seconds:
                return
            due += chance.expovariate(rate)
            loop.call_at(due, arrive)

            def done(_entry: Entry[Row], _outputs: object, error: Exception | None) -> None:
                if error is None and sent >= WARM_S:
                    took.append(loop.time() - sent)

            chance.choice(batchers).begin([Row(short(chance))], sent + 60, done)

        loop.call_soon(arrive)
        await asyncio.sleep(WARM_S + seconds + 3)
        for batcher in batchers:
            await batcher.close()
        took.sort()
        return took[len(took) // 2], took[int(0.99 * len(took))]

    return simulate(main)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("gateways", "load"), [(4, 0.1), (4, 0.4), (16, 0.1)])
def test_gateways_share_the_calls_in_flight_if_servers_do_not_merge_calls(gateways: int, load: float) -> None:
    """They make fewer and larger calls. No request waits behind many small calls of other gateways."""
    alone, told = waits(GPU, gateways, load, is_told=False), waits(GPU, gateways, load, is_told=True)
    assert told[0] <= 0.65 * alone[0]
    assert told[1] <= 0.8 * alone[1]


def test_sharing_the_calls_in_flight_costs_no_time_if_small_calls_are_cheap() -> None:
    """Every gateway keeps two calls in flight at least."""
    alone, told = (waits(TOKENS, 16, 0.4, is_told=told, seconds=0.3) for told in (False, True))
    assert told[0] <= 1.1 * alone[0]
    assert told[1] <= 2e-3


@pytest.mark.parametrize(
    ("gateways", "merges", "servers", "calls"),
    [
        (1, False, 4, 8),
        (1, True, 4, 8),
        (4, True, 4, 32),
        (2, False, 4, 6),
        (4, False, 4, 3),
        (16, False, 4, 2),
        (4, False, 1, 2),
    ],
)
def test_the_number_of_calls_in_flight_of_one_gateway(gateways: int, merges: bool, servers: int, calls: int) -> None:
    """Gateways share the calls only if they know of each other and no server merges calls. If one does, each gateway
    has more of them, because they are small.
    """
    limits = BatchLimits(max_in_flight=2, gateways=Gateways(gateways), merges_calls=merges)
    assert calls == Capacity(Prices(), limits, Replicas(servers)).max_calls


def test_a_change_in_the_number_of_gateways_takes_effect_with_the_next_update() -> None:
    """Gateways are added and removed while versions serve."""
    gateways = Gateways(1)
    capacity = Capacity(Prices(), BatchLimits(max_in_flight=2, gateways=gateways, merges_calls=False), Replicas(4))
    found = []
    for gateways.count in (1, 4, 2):
        capacity.update()
        found.append(capacity.max_calls)
    assert [8, 3, 6] == found
