"""The last minute and hour of a gateway: the numbers of /metrics as rates and quantiles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gateway.metrics import catalog, drift
from gateway.metrics.accumulator import Accumulator
from gateway.metrics.observer import Observer
from gateway.metrics.recent import STEP_S, Recent
from gateway.metrics.watch import Served
from gateway.spec import MetricSpec, MetricVariable
from gateway.trace import Trace
from tests.unit.gateway.metrics.summed import summed

FAILURES = ("model_failed", "hook_failed")


def finish(
    observer: Observer, *, ms: float = 2, route: str = "direct", version: str = "1", outcome: str = "ok"
) -> None:
    """One finished request."""
    trace = Trace("id")
    trace.endpoint, trace.version, trace.route, trace.outcome, trace.rows = "e", version, route, outcome, 1
    trace.total_ns = int(ms * 1e6)
    observer.started()
    observer.finished(trace)


def test_rates_failures_and_quantiles_of_the_window() -> None:
    """By version and route; shares add up within an endpoint."""
    observer, recent = Observer(), Recent(FAILURES)
    recent.sample(100.0, observer.snapshot())
    for i in range(75):
        finish(observer, ms=2 if i < 60 else 40, route="stable")
    for outcome in ("ok",) * 20 + ("model_failed",) * 4 + ("hook_failed",):
        finish(observer, route="canary", version="2", outcome=outcome)
    stable, canary = recent.rows(150.0, observer.snapshot())
    assert ("1", "stable", 1.5, 0.75, 0.0) == tuple(stable[k] for k in ("version", "route", "rate", "share", "failed"))
    assert (0.25, 0.2) == (canary["share"], round(canary["failed"], 6))
    assert {"model_failed": 0.16, "hook_failed": 0.04} == {k: round(v, 6) for k, v in canary["failures"].items()}
    assert ["model_failed", "hook_failed"] == [*canary["failures"]]
    assert {} == stable["failures"]
    assert 0.001 < stable["p50"] <= 0.002
    assert 0.03 < stable["p95"] <= 0.05
    assert stable["rows_per_call"] is None


def test_a_failed_canary_is_shown_before_stable_has_answered() -> None:
    """Also if the endpoint had no other request in this minute."""
    observer, recent = Observer(), Recent(FAILURES)
    recent.sample(0.0, observer.snapshot())
    observer.count(catalog.FALLBACKS, "e", "2", "model_failed")
    [row] = recent.rows(30.0, observer.snapshot())
    assert ("canary", 1.0, 1.0) == (row["route"], row["failed"], row["share"])
    assert {"model_failed": 1.0} == row["failures"]


def test_counts_older_than_a_minute_are_dropped() -> None:
    """An endpoint without requests has no row."""
    observer, recent = Observer(), Recent(FAILURES)
    recent.sample(0.0, observer.snapshot())
    finish(observer)
    observer.text_calls("e", "1").called(6, 60, 50)
    for now in range(15, 80, 15):
        if now == 30:
            assert 6 == recent.rows(30.0, observer.snapshot())[0]["rows_per_call"]
            assert math.isclose(1 / 30, recent.rows(30.0, observer.snapshot())[0]["rate"])
        recent.sample(float(now), observer.snapshot())
    assert [] == recent.rows(80.0, observer.snapshot())


async def test_status_shows_the_last_minute(stack: Any) -> None:
    """Also in a browser without scripts."""
    stack.deploy("t")
    await stack.served("t")

    async def last_minute() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await stack.client.get("/v1/status")).json()["last_minute"]
        return found

    while not await last_minute():  # counting begins with the first look at the numbers
        await stack.client.post("/serve/t", json={"text": "good"})
    await stack.client.post("/serve/t", json={"text": ""})
    (row,) = await last_minute()
    assert ("t", "direct", 0.0) == (row["endpoint"], row["route"], row["failed"])
    assert 0 < row["refused"] <= 0.5


def test_other_workers_counts_are_added() -> None:
    """Rates and quantiles of all workers, including one that has ended meanwhile."""
    recent, first, second = Recent(FAILURES), Observer(), Observer()
    recent.sample(100.0, first.snapshot())
    for observer, ms, count in ((first, 2, 60), (second, 40, 30)):
        for _ in range(count):
            finish(observer, ms=ms)
        observer.text_calls("e", "1").called(count, 1, 1)
    both = summed(first.snapshot(), ended=[second.snapshot()])
    recent.sample(100.0 + STEP_S, both)
    (row,) = recent.rows(110.0, both)
    assert (9.0, 45.0) == (row["rate"], row["rows_per_call"])
    assert 0.001 < row["p50"] <= 0.002 < 0.03 < row["p95"] <= 0.05


def test_drift_of_the_last_hour_is_shown_by_variable() -> None:
    """The current bins, the reference, and what the controller has found."""
    observer, recent = Observer(later=lambda drain, _: None), Recent(FAILURES)
    declared = MetricSpec("e/1", None, (MetricVariable("animal", "enum", ("cat", "dog")),))
    reference = {"animal": drift.reference_of({"cat": 500, "dog": 500})}
    observer.watch.configure({"e/1": Served("e", "1", reference=drift.Reference(reference))}, {"e/1": declared}, 1.0)
    recent.sample(0.0, observer.snapshot())
    for i in range(400):
        trace = Trace("id")
        trace.url, trace.body, trace.total_ns = "e/1", {"animal": "cat" if i % 10 else "dog"}, 1
        observer.started()
        observer.finished(trace)
    told = {"days": 1_000.0, "visible": 0.05, "since": 7.0, "alarm_days": 30.0, "state": "drift"}
    (alone,) = recent.drift(observer.snapshot(), {})
    assert ("not judged", None) == (alone["state"], alone["days"])
    (found,) = recent.drift(observer.snapshot(), {("e", "1", "animal"): told})
    assert (1_000.0, 0.05, 7.0, 30.0) == tuple(found[k] for k in ("days", "visible", "since", "alarm_days"))
    assert ("e", "1", "animal", "drift", 400) == tuple(
        found[k] for k in ("endpoint", "version", "variable", "state", "n")
    )
    assert [360, 40, 0, 0] == list(found["counts"])
    assert {"cat": 0.4, "dog": -0.4} == {name: round(by, 2) for name, by in found["moved"].items()}


def test_the_last_hour_is_compared_with_the_reference_that_there_is_now() -> None:
    """What was counted before a variable had one is not shown, nor what was counted in other bins."""
    observer, recent = Observer(later=lambda drain, _: None), Recent(FAILURES)

    def accept(bound: float, **reference: Mapping[str, float]) -> None:
        variables = (MetricVariable("animal", "enum", ("cat", "dog")), MetricVariable("x", "scalar", (bound,)))
        served = {"e/1": Served("e", "1", reference=drift.Reference(reference))}
        observer.watch.configure(served, {"e/1": MetricSpec("e/1", None, variables)}, 1)

    def see(cats: int, dogs: int) -> list[list[float]]:
        for i in range(cats + dogs):
            trace = Trace("id")
            trace.url, trace.body, trace.total_ns = "e/1", {"animal": "cat" if i < cats else "dog", "x": 1}, 1
            observer.started()
            observer.finished(trace)
        return [found["counts"] for found in recent.drift(observer.snapshot(), {})]

    accept(5.0)
    recent.sample(0.0, observer.snapshot())
    assert [] == see(70, 70)
    animals, numbers = drift.reference_of({"cat": 5, "dog": 5}), {"5": 9.0, "+Inf": 0.0, "missing": 0.0}
    accept(5.0, animal=animals, x=numbers)
    recent.sample(300.0, observer.snapshot())
    assert [[90, 10, 0, 0], [100, 0, 0]] == see(90, 10)
    accept(2.0, animal=drift.reference_of({"dog": 9}), x={"2": 9.0, "+Inf": 0.0, "missing": 0.0})
    assert [[11, 90, 0, 0], [1, 0, 0]] == see(0, 1)
    accept(5.0, x=numbers)
    assert [[1, 0, 0]] == see(0, 1)


def test_requests_that_fell_back_are_failures_of_the_canary() -> None:
    """Stable answered instead, so callers saw no failure, but the canary failed."""
    observer, recent = Observer(), Recent(FAILURES)
    recent.sample(100.0, observer.snapshot())
    for _ in range(70):
        finish(observer, route="stable")
    for _ in range(20):
        finish(observer, route="canary", version="2")
    for _ in range(10):
        finish(observer, route="fallback")
        observer.count(catalog.FALLBACKS, "e", "2", "model_failed")
    rows = {(row["version"], row["route"]): row for row in recent.rows(150.0, observer.snapshot())}
    canary, fallback = rows["2", "canary"], rows["1", "fallback"]
    assert (0.3, 0.333333) == (round(canary["share"], 6), round(canary["failed"], 6))
    assert (0.0, 0.0) == (fallback["share"], fallback["failed"])
    assert math.isclose(1.0, sum(row["share"] for row in rows.values()))


def asked(numbers: Accumulator, times: int, *, seconds: float = 0.02, outcome: str = "ok", endpoint: str = "e") -> None:
    """Count requests as a gateway does."""
    numbers.count(catalog.REQUESTS, endpoint, "1", "direct", outcome).value += times
    if outcome == "ok":
        for _ in range(times):
            numbers.distribution(catalog.REQUEST_SECONDS, endpoint, "1", "direct").observe((seconds,))
            numbers.distribution(catalog.STAGE_SECONDS, endpoint, "1", "direct", "infer").observe((seconds / 2,))


def test_a_point_is_the_difference_between_two_looks() -> None:
    """What was counted before the first look is in no point, and a quiet point has a rate and nothing else."""
    numbers, recent = Accumulator(), Recent({"timeout"})
    asked(numbers, 7, seconds=9.0)
    recent.sample(0.0, numbers.snapshot())
    asked(numbers, 30)
    asked(numbers, 15, outcome="timeout")
    recent.sample(STEP_S, numbers.snapshot())
    recent.sample(2 * STEP_S, numbers.snapshot())
    (of,) = recent.curves("e", 2 * STEP_S)
    assert ("1", [15.0, 0.0], [3.0, 0.0]) == (of["version"], of["ago"], of["rate"])
    assert 0.3333 == of["failed"][0]
    assert 0.01 < of["p50"][0] <= of["p99"][0] < 0.05, "the requests before the first look are not among them"
    assert 0.01 == of["infer"][0]
    assert [None] * 4 == [of[name][1] for name in ("failed", "p50", "infer", "queue")]
    assert [] == recent.curves("nobody", 2 * STEP_S)


def test_an_hour_is_kept() -> None:
    """240 points; a version without a request in them has no curve."""
    numbers, recent = Accumulator(), Recent(())
    for look in range(300):
        asked(numbers, 1, endpoint="early" if look < 20 else "late")
        recent.sample(look * STEP_S, numbers.snapshot())
    assert 240 == len(recent.curves("late", 300 * STEP_S)[0]["rate"])
    assert [] == recent.curves("early", 300 * STEP_S)
