"""Gateways that send calls to the same server: simulated time, random arrivals."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from gateway.batching.batcher import Batcher
from gateway.batching.entries import BatchLimits, Entry
from gateway.batching.pressure import Pressure
from gateway.errors import Overloaded
from tests.simulated import MAX_ROWS, Price, Row, Server, SimulatedLoop, begin, simulate

LARGE = Price("large", 20e-3, 1.5e-3, 0.0)
CAPACITY = MAX_ROWS / LARGE.seconds(MAX_ROWS, 0)
GATEWAYS, STEP_S, SECONDS = 2, 5.0, 20.0


def answered(times: float) -> list[float]:
    """Return the times of the answers, in seconds, after the load has risen from three quarters of the capacity."""

    async def main(loop: SimulatedLoop) -> list[float]:
        chance = random.Random(1)
        server = Server(loop, LARGE, chance)
        batchers: list[Batcher[Row]] = [
            Batcher(
                server, limits=BatchLimits(max_rows=MAX_ROWS, pressure=Pressure("auto")), on_batch=lambda *_: None,
                clock=loop.time,
            )
            for _ in range(GATEWAYS)
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
    took = answered(times)
    assert len(took) >= 0.94 * CAPACITY * SECONDS
    assert took[int(0.99 * len(took))] <= 1.5
    assert took[-1] <= 2.0
