"""The publisher reads and formats numbers in a thread beside the request loop, in slices."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.metrics import drift, exposition, judge
from gateway.metrics.judge import Judge
from gateway.metrics.observer import Observer
from gateway.metrics.publisher import Publisher
from gateway.metrics.served import Served
from gateway.metrics.workers import Parent, Totals
from gateway.trace import Trace
from tests.unit.gateway.metrics.events import FAILURES, happen
from tests.waiting import LIMIT_S


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
            await publisher.close()
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
        await publisher.close()
    else:
        async with siblings(*(busy() for _ in range(others)), new_pace=lambda: pauses) as (publisher, _):
            await check(publisher)


async def test_every_worker_shows_the_sum_of_all() -> None:
    """Metrics, statistics and the page; also if they ask at the same time, and while one judges."""
    async with siblings(*(busy() for _ in range(3))) as publishers:
        for _ in range(3):
            for text, _ in await asyncio.gather(*(publisher.metrics("") for publisher in publishers)):
                found = {(n, *at.values()): v for n, at, v in exposition.parse(text.decode())}
                assert 3.0 == found["gateway_endpoint_builds_total", "ok"]
        rows = {(row["name"], row["version"]): row for row in await publishers[1].statistics()}
        assert 3 * 6 == rows["t", "1"]["inference_stats"]["success"]["count"]
        found = await publishers[0].last_minute()
        assert {"last_minute", "drift", "compared", "accuracy", "objectives"} == found.keys()


async def test_verdicts_are_published_for_the_page_and_prometheus(tmp_path: Path) -> None:
    """The gauge on `/metrics` equals the page's drift; the state is saved when the publisher ends."""
    observer = Observer(failures=FAILURES)
    bins = drift.enum_bins({"cat": 2_500, "dog": 2_500})
    observer.watch.configure({"e/1": Served("e", "1", True, ("cat", "dog"), {"predicted_label": bins})}, {}, 1.0)
    publisher = Publisher(observer, judge=Judge(tmp_path, 7.0))
    running = asyncio.create_task(publisher.run())
    try:
        async with asyncio.timeout(LIMIT_S):
            while b'gateway_drift_evidence_days{endpoint="e"' not in (await publisher.metrics(""))[0]:
                await asyncio.sleep(0.01)
        (told,) = (await publisher.last_minute())["drift"]
        assert (0.0, 0.0, 7.0, "too few") == tuple(
            told[name] for name in ("days", "endpoint_days", "alarm_days", "state")
        )
    finally:
        running.cancel()
        await publisher.close()
    assert (tmp_path / judge.FILE).exists()


async def test_every_worker_knows_how_versions_compare() -> None:
    """One of them compares, with the counts of all; the others' status shows the result."""
    observer = Observer(failures=FAILURES, later=lambda drain, _: None)
    served = {f"e/{version}": Served("e", version, True, ("good", "bad")) for version in "12"}
    observer.watch.configure(served, {}, 1.0)
    async with siblings(observer, Observer()) as (one, other):

        async def answer(requests: int) -> None:
            for number in range(requests):
                for version, route in (("1", "stable"), ("2", "canary")):
                    trace = Trace("id")
                    trace.endpoint, trace.version, trace.url, trace.route = "e", version, f"e/{version}", route
                    scores = {"good": 0.9, "bad": 0.1}
                    trace.answer = {"label": ("good", "bad")[number % 2], "score": 0.9, "scores": scores}
                    trace.outcome = "ok"
                    observer.started()
                    observer.finished(trace)
            await one._read(one._judged)

        for requests in (1, 1, 150):
            await answer(requests)
        told = [(await publisher.last_minute())["compared"] for publisher in (one, other)]
    assert told[0] == told[1]
    by_name = {each["variable"]: each for each in told[0]}
    assert {"predicted_label", "top_score"} == by_name.keys()
    assert (150, "2", "1") == tuple(by_name["predicted_label"][name] for name in ("n", "version", "beside"))
