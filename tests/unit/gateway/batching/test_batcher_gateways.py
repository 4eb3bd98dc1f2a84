"""Several gateways that send calls to the same servers: simulated time, random arrivals."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from gateway.batching.batcher import Batcher
from gateway.batching.entries import BatchLimits, Entry, Gateways
from gateway.batching.pressure import Pressure
from gateway.errors import Overloaded
from tests.simulated import MAX_ROWS, Merging, Price, Row, Server, SimulatedLoop, begin, simulate

LARGE = Price("large", 20e-3, 1.5e-3, 0.0)
CAPACITY = MAX_ROWS / LARGE.seconds(MAX_ROWS, 0)
STEP_S, SECONDS = 5.0, 20.0


def answered(gateways: int, times: float, *, is_merging: bool = False, skip: float = 0.0) -> list[float]:
    """Return the times of the answers, in seconds, after the load has risen from three quarters of the capacity.

    ``is_merging``: the server puts calls together, and the gateways are told how many they are. The first ``skip``
    seconds after the step are left out.
    """

    async def main(loop: SimulatedLoop) -> list[float]:
        chance = random.Random(1)
        if is_merging:
            loop.work = lambda seconds: None  # type: ignore[method-assign]  # each gateway has its own CPU
        server = (Merging if is_merging else Server)(loop, LARGE, chance)
        batchers: list[Batcher[Row]] = [
            Batcher(
                server,
                limits=BatchLimits(
                    max_rows=MAX_ROWS, pressure=Pressure("auto"), gateways=Gateways(gateways), merges_calls=is_merging
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
                begin(batcher, [Row(12)], sent + 60, done)

        loop.call_soon(arrive)
        await asyncio.sleep(STEP_S + SECONDS + 2)
        for batcher in batchers:
            await batcher.close()
        return sorted(took)

    return simulate(main)  # type: ignore[no-any-return]


@pytest.mark.parametrize("times", [2.0, 5.0])
def test_two_gateways_that_do_not_know_of_each_other_keep_the_goodput(times: float) -> None:
    """Each has two full calls in hand, and answers take at most as long as callers wait."""
    took = answered(2, times)
    assert len(took) >= 0.94 * CAPACITY * SECONDS
    assert took[int(0.99 * len(took))] <= 1.5
    assert took[-1] <= 2.0


@pytest.mark.parametrize(("gateways", "times"), [(1, 0.8), (2, 0.8), (8, 0.8), (2, 0.9), (2, 2.0), (8, 2.0), (2, 10.0)])
def test_small_calls_that_a_server_merges_wait_as_one_gateways_calls_do(gateways: int, times: float) -> None:
    """At any load, they join the next batch of the server, and each gateway holds its share of what keeps it busy."""
    skip = 5.0 if times > 1 else 0.0
    alone = answered(1, times, skip=skip)
    found = answered(gateways, times, is_merging=True, skip=skip)
    assert len(found) >= min(times, 0.96) * 0.97 * CAPACITY * (SECONDS - skip)
    assert found[int(0.5 * len(found))] <= (1.2 if times <= 1 else 1.5) * alone[int(0.5 * len(alone))]
    assert found[int(0.99 * len(found))] <= 1.4 * alone[int(0.99 * len(alone))]
