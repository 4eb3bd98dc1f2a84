"""Gateways that know nothing of each other before one server: in simulated time, arrivals at random."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from benchmarks.shared.simulated import MAX_ROWS, Merging, Price, Row, Server, SimulatedLoop, simulate
from gateway.admission import Pressure
from gateway.endpoints.batcher import Batcher
from gateway.endpoints.entries import BatchLimits, Entry
from gateway.errors import Overloaded

LARGE = Price("large", 20e-3, 1.5e-3, 0.0)
CAPACITY = MAX_ROWS / LARGE.seconds(MAX_ROWS, 0)
STEP_S, SECONDS = 5.0, 20.0


def answered(gateways: int, times: float, *, is_merging: bool = False) -> list[float]:
    """Return the times of the answers, in seconds, after the load has risen from three quarters of the capacity.

    ``is_merging``: the server puts calls together, and the gateways are told how many they are.
    """

    async def main(loop: SimulatedLoop) -> list[float]:
        chance = random.Random(1)
        server = (Merging if is_merging else Server)(loop, LARGE, chance)
        batchers: list[Batcher[Row]] = [
            Batcher(
                server,
                limits=BatchLimits(
                    max_rows=MAX_ROWS, pressure=Pressure("auto"), gateways=gateways if is_merging else 1
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
                if error is None and sent >= STEP_S:
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
def test_two_gateways_keep_the_goodput_without_knowing_of_each_other(times: float) -> None:
    """Each finds its own limit against the other's; nobody waits for longer than callers do."""
    took = answered(2, times)
    assert len(took) >= 0.94 * CAPACITY * SECONDS
    assert took[int(0.99 * len(took))] <= 1.0
    assert took[-1] <= 2.0


@pytest.mark.parametrize("times", [2.0, 5.0, 10.0])
def test_two_gateways_that_know_of_each_other_share_the_servers_calls(times: float) -> None:
    """Each makes half of a call, which the server puts together: nobody waits for two calls of the other gateway."""
    calm, hard = answered(2, 0.75, is_merging=True), answered(2, times, is_merging=True)
    assert len(hard) >= 0.95 * CAPACITY * SECONDS
    assert hard[int(0.5 * len(hard))] <= 1.2 * calm[int(0.9 * len(calm))]
    assert hard[int(0.95 * len(hard))] <= 2.0 * calm[int(0.99 * len(calm))]
