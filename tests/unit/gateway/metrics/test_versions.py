"""Versions side by side: the same traffic and the same model are no difference, whatever the traffic does; others are.

Time is simulated, chance is seeded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gateway.metrics import catalog, drift, versions
from gateway.metrics.accumulator import Accumulator
from gateway.metrics.evidence import DAY_S
from gateway.metrics.observer import Observer
from gateway.metrics.versions import Versions

LABELS = {"good": 0.5, "bad": 0.4, "mixed": 0.1}
LANGUAGES = {"en": 0.9, "de": 0.08, "none": 0.02}


class Endpoint:
    """An endpoint whose requests are split between a stable version and a canary."""

    def __init__(self, seed: int = 1, alarm_days: float = drift.ALARM_DAYS, idle_s: float = DAY_S) -> None:
        self.random, self.numbers, self.now = np.random.default_rng(seed), Accumulator(), 0.0
        self.versions = Versions(alarm_days)
        self.frequencies: dict[tuple[str, str, str], float] = {}
        self.look()
        self.now = idle_s
        for version, route in (("1", "stable"), ("2", "canary")):
            self.see(version, route, 1)
        self.look()

    def see(
        self, version: str, route: str, requests: int, *, labels: Mapping[str, float] = LABELS,
        languages: Mapping[str, float] = LANGUAGES, lower: float = 0.0,
    ) -> None:  # fmt: skip
        """Answer some requests."""
        count = self.numbers.count
        count(catalog.REQUESTS, "e", version, route, "ok").value += requests
        for variable, shares in (("predicted_label", labels), ("language", languages)):
            found = self.random.multinomial(requests, list(shares.values())).tolist()
            for value, times in zip(shares, found, strict=True):
                count(catalog.VARIABLE_ENUM, "e", version, variable, value).value += times
        scores = self.numbers.distribution(catalog.VARIABLE_SCALAR, "e", version, "top_score")
        scores.observe_all(np.clip(self.random.beta(5, 1.5, requests) - lower, 0, 1))

    def look(self, seconds: float = 5.0) -> dict[str, dict[str, Any]]:
        """Let time pass; return the standing of each variable."""
        self.now += seconds
        found = self.versions.update(self.now, self.numbers.snapshot(), self.frequencies)
        return {one["variable"]: one for one in found}

    def serve(self, looks: int, *, rate: float = 100, weight: float = 0.1, **canary: Any) -> dict[str, dict[str, Any]]:
        """Look up to ``looks`` times, with ``rate`` requests each, until a difference is found."""
        found: dict[str, dict[str, Any]] = {}
        for _ in range(looks):
            to_canary = int(self.random.binomial(rate, weight))
            self.see("2", "canary", to_canary, **canary)
            self.see("1", "stable", int(rate) - to_canary)
            found = self.look()
            if differing(found):
                break
        return found


def differing(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the variables that certainly differ."""
    return [name for name, one in found.items() if one["state"] == "drift"]


@pytest.mark.long
def test_equal_versions_are_found_to_differ_no_more_often_than_the_budget_allows() -> None:
    """A hundred rollouts, each after a quiet day and two hours long, whose share grows and whose traffic changes by
    the hour: a fifth of them may alarm at a budget of five days, and chance at most is what alarms.
    """
    alarms, rollouts, alarm_days = 0, 100, 5.0
    for seed in range(rollouts):
        endpoint = Endpoint(seed, alarm_days)
        for look in range(60):
            german = 0.1 + 0.3 * (look % 20) / 20
            alike = {"labels": {"good": 0.9 - german, "bad": german, "mixed": 0.1},
                     "languages": {"en": 0.98 - german, "de": german, "none": 0.02}}  # fmt: skip
            requests = int(endpoint.random.poisson(80))
            to_canary = int(endpoint.random.binomial(requests, (0.05, 0.25, 0.5)[look // 20]))
            endpoint.see("2", "canary", to_canary, **alike)
            endpoint.see("1", "stable", requests - to_canary, **alike)
            if differing(endpoint.look(120.0)):
                alarms += 1
                break
    assert alarms <= rollouts * (1 + 2 / 24) / alarm_days


def test_a_text_that_is_repeated_a_thousand_times_is_no_difference() -> None:
    """Chance splits the requests; they need not be independent, unlike those compared with a reference."""
    endpoint = Endpoint()
    for burst in range(100):
        name = ("good", "bad")[burst % 2]
        for version, route, requests in (("2", "canary", endpoint.random.binomial(500, 0.1)), ("1", "stable", 450)):
            endpoint.see(version, route, int(requests), labels={name: 1.0}, languages={"en": 1.0})
        found = endpoint.look()
    assert [] == differing(found)
    assert "steady" == found["predicted_label"]["state"]


@pytest.mark.parametrize(
    ("variable", "most", "changed"),
    [
        ("predicted_label", 150, {"labels": {"good": 0.1, "bad": 0.4, "mixed": 0.5}}),
        ("predicted_label", 1_500, {"labels": {"good": 0.6, "bad": 0.3, "mixed": 0.1}}),
        ("top_score", 300, {"lower": 0.1}),
        ("language", 600, {"languages": {"en": 0.78, "de": 0.2, "none": 0.02}}),
    ],
)
def test_differences_are_found_and_named(variable: str, most: int, changed: Mapping[str, Any]) -> None:
    """Swapped labels, a more frequent one, lower scores, other texts: after at most so many of the canary's values."""
    found = Endpoint().serve(400, **changed)
    assert [variable] == differing(found)
    assert found[variable]["n"] <= most
    assert ("e", "2", "1") == tuple(found[variable][name] for name in ("endpoint", "version", "beside"))
    assert {"predicted_label": "answers", "top_score": "answers", "language": "texts"}[variable] == found[variable][
        "kind"
    ]


def test_a_value_that_comes_late_is_named() -> None:
    """At first it is bet on as `other`, because none of the first values was it."""
    endpoint = Endpoint()
    endpoint.serve(30, languages={"en": 1.0})
    for _ in range(60):
        endpoint.see("2", "canary", 20, languages={"en": 0.8, "fr": 0.2})
        endpoint.see("1", "stable", 180, languages={"en": 1.0})
        found = endpoint.look()
    assert "language" in differing(found)
    assert "fr" in found["language"]["moved"]
    assert "fr" in found["language"]["bins"]


def test_without_a_quiet_time_before_more_requests_are_needed() -> None:
    """The budget is one of time: many rollouts have no more false findings together than one a month."""
    change = {"labels": {"good": 0.6, "bad": 0.3, "mixed": 0.1}}
    late, soon = (Endpoint(idle_s=idle).serve(400, **change)["predicted_label"]["n"] for idle in (DAY_S, 60.0))
    assert late < soon < 3 * late


def test_sampled_values_count_once() -> None:
    """A variable with a frequency of 0.01 is counted 100 times per value, which is no more evidence."""
    endpoint = Endpoint()
    endpoint.frequencies = {("e", version, "declared"): 0.01 for version in "12"}

    def say(version: str, value: str) -> None:
        endpoint.numbers.count(catalog.VARIABLE_ENUM, "e", version, "declared", value).value += 100

    for _ in range(120):
        for version, route in (("1", "stable"), ("2", "canary")):
            say(version, "yes" if endpoint.random.random() < 0.5 else "no")
            endpoint.see(version, route, 1)
        found = endpoint.look()
    assert "declared" == found["declared"]["kind"]
    assert 120 >= found["declared"]["n"] >= 80
    assert found["declared"]["days"] < 5


def test_with_a_response_cache_only_answers_are_compared() -> None:
    """Texts answered from a version's cache are not counted, and a canary's cache has fewer hits."""
    endpoint = Endpoint()
    endpoint.numbers.count(catalog.CACHE, "e", "1", "hit").value += 1
    assert {"predicted_label", "top_score"} == set(endpoint.serve(30))


def test_variables_that_depend_on_what_a_version_has_learned_are_not_compared() -> None:
    """A canary has other usual words, and its embeddings another mean."""
    endpoint = Endpoint()
    for version in "12":
        for name in ("unusual_word_ratio", "embedding_cosine"):
            numbers = endpoint.numbers.distribution(catalog.VARIABLE_SCALAR, "e", version, name, bounds=(0.5, 1.0))
            numbers.observe_all(np.ones(500))
    assert {"predicted_label", "top_score", "language"} == set(endpoint.serve(30))


def test_numbers_declared_with_other_bounds_are_not_compared() -> None:
    """Their buckets differ; categories that look like numbers are categories."""
    endpoint = Endpoint()
    for _ in range(20):
        for version, bounds in (("1", (1.0, 2.0)), ("2", (1.0, 3.0))):
            numbers = endpoint.numbers.distribution(catalog.VARIABLE_SCALAR, "e", version, "x", bounds=bounds)
            numbers.observe_all(np.ones(30))
            endpoint.numbers.count(catalog.VARIABLE_ENUM, "e", version, "stars", "5").value += 20
            endpoint.numbers.count(catalog.VARIABLE_ENUM, "e", version, "stars", "1").value += 10
        found = endpoint.serve(1)
    assert "x" not in found
    assert ("5", "1", "other", "missing") == tuple(found["stars"]["bins"])


def test_a_version_is_compared_only_while_there_is_a_canary() -> None:
    """Counts from before the first look are of unknown age; a canary without requests for an hour is dropped."""
    endpoint = Endpoint()
    assert endpoint.serve(30)
    endpoint.see("1", "stable", 100)
    assert endpoint.look(3_599.0)
    endpoint.see("1", "stable", 100)
    assert {} == endpoint.look(3_601.0)


def test_evidence_is_published_by_kind_and_removed() -> None:
    """The parts add up to the pair's evidence; an endpoint without a canary has no series."""
    endpoint, observer = Endpoint(), Observer()
    observer.compared(versions.evidence([]))
    assert catalog.COMPARED_EVIDENCE.name not in {series.metric for series, _ in observer.snapshot().shown()}
    told = list(endpoint.serve(200, languages={"en": 0.5, "de": 0.48, "none": 0.02}).values())
    assert "drift" in {one["state"] for one in told}

    def shown() -> dict[tuple[str, ...], float]:
        every = observer.snapshot().shown()
        return {series.labels: value for series, value in every if series.metric == catalog.COMPARED_EVIDENCE.name}

    observer.compared(versions.evidence(told))
    assert {("e", "2", "1", "texts"), ("e", "2", "1", "answers")} == shown().keys()
    assert shown()["e", "2", "1", "texts"] > drift.ALARM_DAYS > shown()["e", "2", "1", "answers"]
    assert sum(shown().values()) == pytest.approx(told[0]["endpoint_days"])
    observer.compared(versions.evidence([]))
    assert all(math.isnan(days) for days in shown().values())


def test_counters_that_fall_are_not_counted_again() -> None:
    """The numbers of a lost worker are missing."""
    endpoint = Endpoint()
    endpoint.serve(30)
    before = endpoint.look()["predicted_label"]["n"]
    for name in LABELS:
        endpoint.numbers.count(catalog.VARIABLE_ENUM, "e", "2", "predicted_label", name).value = 0
    assert before == endpoint.look()["predicted_label"]["n"]
