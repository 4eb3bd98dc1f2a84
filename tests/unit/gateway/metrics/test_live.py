"""The last minute of a process: the same numbers as /metrics, as rates and quantiles."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from gateway.metrics import exposition
from gateway.metrics.observer import Observer
from gateway.trace import Trace


def finish(
    observer: Observer, *, ms: float = 2, route: str = "direct", version: str = "1", outcome: str = "ok"
) -> None:
    """One finished request."""
    trace = Trace("id")
    trace.endpoint, trace.version, trace.route, trace.outcome, trace.rows = "e", version, route, outcome, 1
    trace.total_ns = int(ms * 1e6)
    observer.started()
    observer.finished(trace)
    observer.flush()


def test_rates_failures_and_quantiles_of_the_window() -> None:
    """By version and route; shares add up within an endpoint."""
    observer = Observer(exposition.new_registry())
    observer.live.sample(100.0)
    for i in range(75):
        finish(observer, ms=2 if i < 60 else 40, route="stable")
    for outcome in ("ok",) * 20 + ("model_failed",) * 5:
        finish(observer, route="canary", version="2", outcome=outcome)
    stable, canary = observer.live.rows(150.0)
    assert ("1", "stable", 1.5, 0.75, 0.0) == tuple(stable[k] for k in ("version", "route", "rate", "share", "failed"))
    assert (0.25, 0.2) == (canary["share"], round(canary["failed"], 6))
    assert 0.001 < stable["p50"] <= 0.002
    assert 0.03 < stable["p95"] <= 0.05
    assert stable["rows_per_call"] is None


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    """An endpoint without requests has no row."""
    observer = Observer(exposition.new_registry())
    observer.live.sample(0.0)
    finish(observer)
    observer.batched("e", "1", 6, 60, 50)
    observer.flush()
    for now in range(5, 80, 5):
        if now == 30:
            assert 6 == observer.live.rows(30.0)[0]["rows_per_call"]
            assert math.isclose(1 / 30, observer.live.rows(30.0)[0]["rate"])
        observer.live.sample(float(now))
    assert [] == observer.live.rows(80.0)


async def test_page_and_status_show_the_last_minute(stack: Any) -> None:
    """Without scripts; names are escaped."""
    stack.deploy("t")
    await stack.served("t")
    await asyncio.sleep(0)
    for body in ({"text": "good"}, {"text": ""}):
        await stack.client.post("/serve/t", json=body)
    rows = (await stack.client.get("/v1/status")).json()["last_minute"]
    assert [("t", "direct", 0.5)] == [(r["endpoint"], r["route"], r["failed"]) for r in rows]
    page = (await stack.client.get("/")).text
    assert "Last minute" in page
    assert "50.00%" in page
    assert "<script" not in page
