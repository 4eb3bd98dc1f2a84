"""Rare failures: their series appears with the first one, in a way that Prometheus sees it increase."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.edge.http.problems import FAILURES
from gateway.metrics.accumulator import Accumulator, Series
from gateway.metrics.births import EVERYDAY, HELD_S, Births
from gateway.metrics.catalog import ENDPOINT_READY, FALLBACKS, REQUESTS
from gateway.metrics.exposition import Numbers, parse, respond


class Clock:
    """A clock that is moved by hand."""

    at = 1000.0

    def __call__(self) -> float:
        """Return now."""
        return self.at


def failed(kind: str, route: str = "stable") -> Series:
    """Return the counter of one kind of failure."""
    return Series(REQUESTS.name, ("e", "1", route, kind))


RARE = [kind for kind in FAILURES if kind not in EVERYDAY]


@pytest.mark.parametrize("kind", [*EVERYDAY, "ok", "bad_request"])
def test_frequent_failures_have_a_series_from_the_start(kind: str) -> None:
    """Autoscalers read them within a minute; callers' faults appear when they happen."""
    births = Births(FAILURES)
    assert [0.0, 3.0] == [births.shown(failed(kind), value) for value in (0.0, 3.0)]


@pytest.mark.parametrize("kind", RARE)
def test_a_rare_failure_rises_from_0_before_every_scraper(kind: str) -> None:
    """Whatever is counted meanwhile; afterwards the count is shown."""
    clock = Clock()
    births = Births(FAILURES, now=clock)
    seen = []
    for value, step in ((0.0, 1.0), (4.0, 30.0), (9.0, HELD_S - 31), (9.0, 1.0), (12.0, 1.0)):
        seen.append(births.shown(failed(kind), value))
        clock.at += step
    assert [None, 0.0, 0.0, 0.0, 12.0] == seen


@pytest.mark.parametrize("every", [1.0, 15.0, 30.0, 60.0])
@pytest.mark.parametrize("phase", [0.0, 0.3, 0.9])
def test_increases_between_scrapes_add_up_to_all_failures(every: float, phase: float) -> None:
    """For any scrape interval, and for two scrapers that alternate."""
    happens = {100.0: 3.0, 101.0: 5.0, 130.0: 9.0, 400.0: 10.0}
    clock = Clock()
    births = Births(FAILURES, now=clock)
    grown, at = [0.0, 0.0], phase * every
    last: list[float | None] = [None, None]
    while at < 600:
        for scraper, later in enumerate((0.0, every / 3)):
            clock.at = at + later
            value = max((count for when, count in happens.items() if when <= clock.at), default=0.0)
            shown = births.shown(failed("internal"), value)
            before = last[scraper]
            if shown is not None and before is not None:
                assert shown >= before, "Prometheus would take it for a restart"
                grown[scraper] += shown - before
            last[scraper] = shown
        at += every
    assert [10.0, 10.0] == grown


def test_every_series_appears_on_its_own() -> None:
    """Another kind that comes later also rises from 0."""
    clock = Clock()
    births = Births(FAILURES, now=clock)
    births.shown(failed("internal"), 1.0)
    clock.at += HELD_S
    assert [1.0, 0.0] == [births.shown(failed(kind), 1.0) for kind in ("internal", "hook_failed")]


def test_failures_of_canaries_have_series_from_the_start() -> None:
    """Failures and fallbacks; and so have refusals before any version was chosen."""
    births = Births(FAILURES)
    for series in (
        failed("internal", "canary"), Series(FALLBACKS.name, ("e", "1", "internal")),
        Series(REQUESTS.name, ("", "", "", "draining")), Series(ENDPOINT_READY.name, ("e", "1")),
    ):  # fmt: skip
        assert [0.0, 1.0] == [births.shown(series, value) for value in (0.0, 1.0)]


def test_workers_agree_on_the_first_look(tmp_path: Path) -> None:
    """Whichever worker is scraped: a counter that falls would look like a restart."""
    clock = Clock()
    first, second = (Births(FAILURES, tmp_path, now=clock) for _ in range(2))
    assert 0.0 == first.shown(failed("internal"), 2.0)
    clock.at += HELD_S
    assert [2.0, 2.0] == [births.shown(failed("internal"), 2.0) for births in (first, second)]


def test_without_the_workers_folder_counts_are_shown_at_once(tmp_path: Path) -> None:
    """A full disk loses the first increase, not the count."""
    assert 2.0 == Births(FAILURES, tmp_path / "gone").shown(failed("internal"), 2.0)


def test_the_full_level_shows_counts_at_once() -> None:
    """The rollout's gate, `status` and `?detail=full` see every failure immediately."""
    numbers = Accumulator()
    numbers.count(REQUESTS, "e", "1", "stable", "internal").value = 2
    numbers.count(REQUESTS, "e", "1", "stable", "hook_failed")
    births = Births(FAILURES)
    shown = {
        is_full: {
            labels["outcome"]: value
            for name, labels, value in parse(respond("", Numbers(
                numbers.snapshot(), brief=None if is_full else frozenset(), births=births,
            ))[0].decode())
            if name == REQUESTS.name
        } for is_full in (False, True)
    }  # fmt: skip
    assert {False: {"internal": 0.0}, True: {"internal": 2.0, "hook_failed": 0.0}} == shown
