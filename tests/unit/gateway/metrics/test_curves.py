"""Curves of the page: differences between looks, by version, for an hour."""

from __future__ import annotations

from gateway.metrics import catalog
from gateway.metrics.accumulator import Accumulator
from gateway.metrics.curves import POINT_S, Curves


def asked(numbers: Accumulator, times: int, *, seconds: float = 0.02, outcome: str = "ok", endpoint: str = "e") -> None:
    """Count requests as a gateway does."""
    numbers.count(catalog.REQUESTS, endpoint, "1", "direct", outcome).value += times
    if outcome == "ok":
        for _ in range(times):
            numbers.distribution(catalog.REQUEST_SECONDS, endpoint, "1", "direct").observe((seconds,))
            numbers.distribution(catalog.STAGE_SECONDS, endpoint, "1", "direct", "infer").observe((seconds / 2,))


def test_a_point_is_the_difference_between_two_looks() -> None:
    """What was counted before the first look is in no point, and a quiet point has a rate and nothing else."""
    numbers, curves = Accumulator(), Curves({"timeout"})
    asked(numbers, 7, seconds=9.0)
    curves.sample(0.0, numbers.snapshot())
    asked(numbers, 30)
    asked(numbers, 15, outcome="timeout")
    curves.sample(POINT_S - 1, numbers.snapshot())  # too early
    curves.sample(POINT_S, numbers.snapshot())
    curves.sample(2 * POINT_S, numbers.snapshot())
    (of,) = curves.of("e", 2 * POINT_S)
    assert ("1", [15.0, 0.0], [3.0, 0.0]) == (of["version"], of["ago"], of["rate"])
    assert 0.3333 == of["failed"][0]
    assert 0.01 < of["p50"][0] <= of["p99"][0] < 0.05, "the requests before the first look are not among them"
    assert 0.01 == of["infer"][0]
    assert [None] * 4 == [of[name][1] for name in ("failed", "p50", "infer", "queue")]
    assert [] == curves.of("nobody", 2 * POINT_S)


def test_an_hour_is_kept() -> None:
    """240 points; a version without a request in them has no curve."""
    numbers, curves = Accumulator(), Curves(())
    for look in range(300):
        asked(numbers, 1, endpoint="early" if look < 20 else "late")
        curves.sample(look * POINT_S, numbers.snapshot())
    assert 240 == len(curves.of("late", 300 * POINT_S)[0]["rate"])
    assert [] == curves.of("early", 300 * POINT_S)
