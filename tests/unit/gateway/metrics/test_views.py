"""The last minute and hour of a gateway: the numbers of /metrics as rates and quantiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.metrics import catalog, drift
from gateway.metrics.accumulator import Accumulator, Snapshot
from gateway.metrics.observer import Observer
from gateway.metrics.views import STEP_S, Judged, Views
from gateway.metrics.watch import Served
from gateway.spec import MetricSpec, MetricVariable
from gateway.trace import Trace

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


class Shown(Views):
    """Views at a time that a test sets."""

    now = 0.0

    def __init__(self) -> None:
        super().__init__(FAILURES, clock=lambda: self.now)

    def at(self, now: float, snapshot: Snapshot) -> None:
        """Take a sample."""
        self.now = now
        self.sample(snapshot)

    def rows(self, now: float, snapshot: Snapshot) -> list[dict[str, Any]]:
        """Return the rows of the last minute."""
        self.now = now
        found: list[dict[str, Any]] = self.lately(snapshot, {}, ())["last_minute"]
        return found

    def curves(self, endpoint: str) -> list[dict[str, Any]]:
        """Return an endpoint's curves."""
        found: list[dict[str, Any]] = self.lately({}, {}, [endpoint])["curves"][endpoint]
        return found

    def drift(self, snapshot: Snapshot, judged: Judged) -> list[dict[str, Any]]:
        """Return the variables that have a reference."""
        found: list[dict[str, Any]] = self.lately(snapshot, judged, ())["drift"]
        return found


def test_rates_failures_and_quantiles_of_the_last_minute() -> None:
    """By version and route; shares add up within an endpoint. What fell back is a failure of the canary."""
    observer, recent = Observer(), Shown()
    recent.at(100.0, observer.snapshot())
    for i in range(70):
        finish(observer, ms=2 if i < 60 else 40, route="stable")
    for outcome in ("ok",) * 15 + ("model_failed",) * 4 + ("hook_failed",):
        finish(observer, route="canary", version="2", outcome=outcome)
    for _ in range(10):
        finish(observer, route="fallback")
        observer.count(catalog.FALLBACKS, "e", "2", "model_failed")
    fallback, stable, canary = recent.rows(150.0, observer.snapshot())
    assert ("1", "stable", 1.4, 0.7, 0.0) == tuple(stable[k] for k in ("version", "route", "rate", "share", "failed"))
    assert (0.0, 0.0) == (fallback["share"], fallback["failed"])
    assert (0.3, 0.5) == (round(canary["share"], 6), round(canary["failed"], 6))
    assert [("model_failed", 0.466667), ("hook_failed", 0.033333)] == [
        (k, round(v, 6)) for k, v in canary["failures"].items()
    ]
    assert {} == stable["failures"]
    assert 0.001 < stable["p50"] <= 0.002
    assert 0.03 < stable["p95"] <= 0.05
    assert stable["rows_per_call"] is None


def test_a_failed_canary_is_shown_before_stable_has_answered() -> None:
    """Also if the endpoint had no other request in this minute."""
    observer, recent = Observer(), Shown()
    recent.at(0.0, observer.snapshot())
    observer.count(catalog.FALLBACKS, "e", "2", "model_failed")
    [row] = recent.rows(30.0, observer.snapshot())
    assert ("canary", 1.0, 1.0) == (row["route"], row["failed"], row["share"])


def test_counts_older_than_a_minute_are_dropped() -> None:
    """An endpoint without requests has no row."""
    observer, recent = Observer(), Shown()
    recent.at(0.0, observer.snapshot())
    finish(observer, ms=60_000)
    observer.called("e", "1", 6, 60, 50)
    [row] = recent.rows(30.0, observer.snapshot())
    assert (6, 1 / 30) == (row["rows_per_call"], row["rate"])
    assert 10.0 == row["p50"], "the last bound: it took longer"
    for now in range(15, 80, 15):
        recent.at(float(now), observer.snapshot())
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


def test_drift_of_the_last_hour_is_shown_by_variable() -> None:
    """The current bins, the reference, and what the controller has found."""
    observer, recent = Observer(), Shown()
    declared = MetricSpec("e/1", None, (MetricVariable("animal", "enum", ("cat", "dog")),))
    reference = {"animal": drift.reference_of({"cat": 500, "dog": 500})}
    observer.watch.configure({"e/1": Served("e", "1", reference=drift.Reference(reference))}, {"e/1": declared}, 1.0)
    recent.at(0.0, observer.snapshot())
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


def test_the_last_hour_is_compared_with_the_reference_that_there_is_now() -> None:
    """What was counted before a variable had one is not shown, nor what was counted in other bins."""
    observer, recent = Observer(), Shown()

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
    recent.at(0.0, observer.snapshot())
    assert [] == see(70, 70)
    animals, numbers = drift.reference_of({"cat": 5, "dog": 5}), {"5": 9.0, "+Inf": 0.0, "missing": 0.0}
    accept(5.0, animal=animals, x=numbers)
    recent.at(300.0, observer.snapshot())
    assert [[90, 10, 0, 0], [100, 0, 0]] == see(90, 10)
    accept(2.0, animal=drift.reference_of({"dog": 9}), x={"2": 9.0, "+Inf": 0.0, "missing": 0.0})
    assert [[11, 90, 0, 0], [1, 0, 0]] == see(0, 1)
    accept(5.0, x=numbers)
    assert [[1, 0, 0]] == see(0, 1)


def asked(numbers: Accumulator, times: int, *, seconds: float = 0.02, outcome: str = "ok", endpoint: str = "e") -> None:
    """Count requests as a gateway does."""
    numbers.count(catalog.REQUESTS, endpoint, "1", "direct", outcome).value += times
    if outcome == "ok":
        for _ in range(times):
            numbers.distribution(catalog.REQUEST_SECONDS, endpoint, "1", "direct").observe((seconds,))
            numbers.distribution(catalog.STAGE_SECONDS, endpoint, "1", "direct", "infer").observe((seconds / 2,))


def test_a_point_is_the_difference_between_two_looks() -> None:
    """What was counted before the first look is in no point, and a quiet point has a rate and nothing else."""
    numbers, recent = Accumulator(), Shown()
    asked(numbers, 7, seconds=9.0)
    recent.at(0.0, numbers.snapshot())
    asked(numbers, 30)
    asked(numbers, 15, outcome="model_failed")
    recent.at(STEP_S, numbers.snapshot())
    recent.at(2 * STEP_S, numbers.snapshot())
    (of,) = recent.curves("e")
    assert ("1", [15.0, 0.0], [3.0, 0.0]) == (of["version"], of["ago"], of["rate"])
    assert 0.3333 == of["failed"][0]
    assert 0.01 < of["p50"][0] <= of["p99"][0] < 0.05, "the requests before the first look are not among them"
    assert 0.01 == of["infer"][0]
    assert [None] * 4 == [of[name][1] for name in ("failed", "p50", "infer", "queue")]
    assert [] == recent.curves("nobody")


def test_an_hour_is_kept() -> None:
    """240 points; a version without a request in them has no curve."""
    numbers, recent = Accumulator(), Shown()
    for look in range(300):
        asked(numbers, 1, endpoint="early" if look < 20 else "late")
        recent.at(look * STEP_S, numbers.snapshot())
    assert 240 == len(recent.curves("late")[0]["rate"])
    assert [] == recent.curves("early")
