"""The publisher reads and formats numbers in a thread beside the request loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator

import pytest

from gateway.metrics import catalog, exposition
from gateway.metrics.observer import Observer
from gateway.metrics.publisher import Publisher
from gateway.metrics.views import Views
from gateway.metrics.workers import Parent, Totals
from gateway.trace import Trace
from tests import expositions
from tests.waiting import LIMIT_S


def busy() -> Observer:
    """Return an observer that has counted a build and six answers."""
    observer = Observer()
    observer.count(catalog.BUILDS, "ok")
    for _ in range(6):
        trace = Trace("id")
        trace.endpoint, trace.version, trace.url, trace.outcome, trace.rows = "t", "1", "t/1", "ok", 1
        observer.started()
        observer.finished(trace)
    return observer


@contextlib.asynccontextmanager
async def siblings(*observers: Observer) -> AsyncIterator[list[Publisher]]:
    """Workers of one parent that run; the parent listens in this loop."""
    totals, loop, made = Totals(Views(())), asyncio.get_running_loop(), []
    for observer in observers:
        parents, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        totals.add(parents)
        loop.add_reader(parents, totals.hear, parents)
        publisher = Publisher(observer, Parent(link))
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


async def test_metrics_are_made_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread, so that a long text delays no request."""
    respond, threads = exposition.respond, set[int]()

    def seen(accept: str, numbers: exposition.Numbers) -> tuple[bytes, str]:
        threads.add(threading.get_ident())
        return respond(accept, numbers)

    monkeypatch.setattr(exposition, "respond", seen)
    publisher = Publisher(busy())
    await publisher.ask(Views.metrics, "")
    publisher.close()
    assert threads
    assert threading.get_ident() not in threads


async def test_every_worker_shows_the_sum_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics, statistics and the page; also if they ask at the same time."""
    monkeypatch.setattr("gateway.metrics.workers.WAIT_S", LIMIT_S)
    async with siblings(*(busy() for _ in range(3))) as publishers:
        for _ in range(3):
            for text, _ in await asyncio.gather(*(publisher.ask(Views.metrics, "") for publisher in publishers)):
                found = {(n, *at.values()): v for n, at, v in expositions.parse(text.decode())}
                assert 3.0 == found["gateway_endpoint_builds_total", "ok"]
        rows = {(row["name"], row["version"]): row for row in await publishers[1].ask(Views.statistics)}
        assert 3 * 6 == rows["t", "1"]["inference_stats"]["success"]["count"]
        found = await publishers[0].ask(Views.lately, {}, ["t"])
        assert ({"last_minute", "drift", "curves"}, {"t": []}) == (found.keys(), found["curves"])
