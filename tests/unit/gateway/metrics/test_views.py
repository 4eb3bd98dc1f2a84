"""The last minute and hour of a gateway: the numbers of /metrics as rates and quantiles."""

from __future__ import annotations

from typing import Any

from gateway.metrics import catalog
from gateway.metrics.accumulator import Accumulator
from gateway.metrics.views import STEP_S, Views


class Gateway:
    """The numbers of a gateway, and views of them at a time that a test sets."""

    def __init__(self) -> None:
        self.numbers, self.now = Accumulator(), 0.0
        self.views = Views(("model_failed", "hook_failed"), clock=lambda: self.now)
        self.at(0.0)

    def at(self, now: float) -> None:
        """Take a sample."""
        self.now = now
        self.views.sample(self.numbers.snapshot())

    def asked(
        self, times: int = 1, *, ms: float = 2, route: str = "direct", version: str = "1", outcome: str = "ok",
        endpoint: str = "e",
    ) -> None:  # fmt: skip
        """Count requests as a gateway does."""
        of = endpoint, version, route
        self.numbers.count(catalog.REQUESTS, *of, outcome, by=times)
        if outcome == "ok":
            self.numbers.distribution(catalog.REQUEST_SECONDS, *of).observe([ms / 1000] * times)
            self.numbers.distribution(catalog.STAGE_SECONDS, *of, "infer").observe([ms / 2000] * times)

    def lately(self) -> dict[str, Any]:
        """Return what is shown of the last minute and hour."""
        return self.views.lately(self.numbers.snapshot(), ("e", "late", "nobody"))

    def rows(self, now: float) -> list[dict[str, Any]]:
        """Return the rows of the last minute."""
        self.now = now
        found: list[dict[str, Any]] = self.lately()["last_minute"]
        return found


def test_rates_failures_and_quantiles_of_the_last_minute() -> None:
    """By version and route; shares add up within an endpoint. What fell back is a failure of the canary."""
    gateway = Gateway()
    gateway.asked(60, route="stable")
    gateway.asked(10, route="stable", ms=40)
    for outcome, times in (("ok", 12), ("model_failed", 4), ("hook_failed", 1), ("invalid_input", 3)):
        gateway.asked(times, route="canary", version="2", outcome=outcome)
    gateway.asked(10, route="fallback")
    gateway.numbers.count(catalog.FALLBACKS, "e", "2", "model_failed", by=10)
    fallback, stable, canary = gateway.rows(50.0)
    assert ("1", "stable", 1.4, 0.7, 0.0, {}) == tuple(
        stable[k] for k in ("version", "route", "rate", "share", "failed", "failures")
    )
    assert (0.0, 0.0) == (fallback["share"], fallback["failed"])
    assert [0.3, 0.5, 0.1] == [round(canary[of], 6) for of in ("share", "failed", "refused")]
    assert [("model_failed", 0.466667), ("hook_failed", 0.033333)] == [
        (k, round(v, 6)) for k, v in canary["failures"].items()
    ]
    assert [0.001583, 0.043] == [round(stable[of], 6) for of in ("p50", "p95")]
    assert stable["rows_per_call"] is None


def test_a_failed_canary_is_shown_before_stable_has_answered() -> None:
    """Also if the endpoint had no other request in this minute."""
    gateway = Gateway()
    gateway.numbers.count(catalog.FALLBACKS, "e", "2", "model_failed")
    [row] = gateway.rows(30.0)
    assert ("canary", 1.0, 1.0) == (row["route"], row["failed"], row["share"])
    assert [1] == [of["inference_stats"]["fail"]["count"] for of in Views(()).statistics(gateway.numbers.snapshot())]


def test_counts_older_than_a_minute_are_dropped() -> None:
    """An endpoint without requests has no row."""
    gateway = Gateway()
    gateway.asked(ms=60_000)
    gateway.numbers.distribution(catalog.BATCH_ROWS, "e", "1").observe((6,))
    [row] = gateway.rows(30.0)
    assert (6, 1 / 30) == (row["rows_per_call"], row["rate"])
    assert 10.0 == row["p50"], "the last bound: it took longer"
    for now in range(15, 80, 15):
        gateway.at(float(now))
    assert [] == gateway.rows(80.0)


def test_a_point_is_the_difference_between_two_looks() -> None:
    """A quiet point has a rate and nothing else."""
    gateway = Gateway()
    gateway.asked(7, ms=9_000)
    gateway.at(STEP_S)
    gateway.at(STEP_S + 1)  # another worker's question
    gateway.asked(30, ms=20)
    gateway.asked(15, outcome="model_failed")
    for step in (2, 3):
        gateway.at(step * STEP_S)
    curves = gateway.lately()["curves"]
    (of,) = curves["e"]
    assert ("1", [30.0, 15.0, 0.0], [0.4667, 3.0, 0.0]) == (of["version"], of["ago"], of["rate"])
    assert 0.3333 == of["failed"][1]
    assert 0.01 < of["p50"][1] <= of["p99"][1] < 0.05, "the requests before the last look are not among them"
    assert 0.01 == of["infer"][1]
    assert [None] * 4 == [of[name][2] for name in ("failed", "p50", "infer", "queue")]
    assert [] == curves["nobody"]


def test_an_hour_is_kept() -> None:
    """240 points; a version without a request in them has no curve."""
    gateway = Gateway()
    for look in range(1, 300):
        gateway.asked(endpoint="e" if look < 20 else "late")
        gateway.at(look * STEP_S)
    curves = gateway.lately()["curves"]
    assert (240, []) == (len(curves["late"][0]["rate"]), curves["e"])
