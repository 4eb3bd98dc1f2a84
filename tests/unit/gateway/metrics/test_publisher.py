"""The publisher reads and formats numbers in a thread beside the request loop, in slices."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.metrics.observer import Observer
from gateway.metrics.publisher import Publisher
from gateway.metrics.workers import Parent, Totals
from tests import expositions
from tests.unit.gateway.metrics.events import FAILURES, happen


class Pauses:
    """Counts pauses by thread."""

    def __init__(self) -> None:
        self.by_thread: dict[int, int] = {}

    def __call__(self) -> None:
        self.by_thread[threading.get_ident()] = self.by_thread.get(threading.get_ident(), 0) + 1


def busy() -> Observer:
    """Return an observer that has counted everything that can happen."""
    observer = Observer(failures=FAILURES)
    happen(observer)
    return observer


@contextlib.asynccontextmanager
async def siblings(*observers: Observer, **how: Any) -> AsyncIterator[list[Publisher]]:
    """Workers of one parent that run; the parent listens in this loop."""
    totals, loop, made = Totals(), asyncio.get_running_loop(), []
    for observer in observers:
        parents, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        totals.add(parents)
        loop.add_reader(parents, totals.hear, parents)
        publisher = Publisher(observer, Parent(link), **how)
        made.append((publisher, asyncio.create_task(publisher.run()), parents, link))
    try:
        yield [publisher for publisher, *_ in made]
    finally:
        for publisher, running, parents, link in made:
            running.cancel()
            publisher.close()
            loop.remove_reader(parents)
            parents.close()
            link.close()


@pytest.mark.parametrize("others", [None, 2])
async def test_metrics_are_rendered_beside_the_loop_in_slices(others: int | None) -> None:
    """One pause for every line written, none of them in the loop's thread."""
    pauses = Pauses()

    async def check(publisher: Publisher) -> None:
        pauses.by_thread.clear()
        text, _ = await publisher.metrics("")
        assert threading.get_ident() not in pauses.by_thread
        assert max(pauses.by_thread.values()) >= sum(not line.startswith(b"#") for line in text.splitlines())

    if others is None:
        publisher = Publisher(busy(), new_pace=lambda: pauses)
        await check(publisher)
        publisher.close()
    else:
        async with siblings(*(busy() for _ in range(others)), new_pace=lambda: pauses) as (publisher, _):
            await check(publisher)


async def test_every_worker_shows_the_sum_of_all() -> None:
    """Metrics, statistics and the page; also if they ask at the same time."""
    async with siblings(*(busy() for _ in range(3))) as publishers:
        for _ in range(3):
            for text, _ in await asyncio.gather(*(publisher.metrics("") for publisher in publishers)):
                found = {(n, *at.values()): v for n, at, v in expositions.parse(text.decode())}
                assert 3.0 == found["gateway_endpoint_builds_total", "ok"]
        rows = {(row["name"], row["version"]): row for row in await publishers[1].statistics()}
        assert 3 * 6 == rows["t", "1"]["inference_stats"]["success"]["count"]
        found = await publishers[0].last_minute({})
        assert {"last_minute", "drift"} == found.keys()
