"""Versions side by side: the same traffic and the same model are no difference, whatever the traffic does; others are.

Time is simulated, chance is seeded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from deploy.controller.counters import Reading, grown, parse
from deploy.controller.drift.versions import Pair, Sentences, Versions
from gateway.metrics import catalog

LABELS = {"good": 0.5, "bad": 0.4, "mixed": 0.1}
LANGUAGES = {"en": 0.9, "de": 0.08, "none": 0.02}
PAIR = Pair("e", "2", "1")
ENUM, BUCKETS = catalog.VARIABLE_ENUM.name, "gateway_variable_scalar_bucket"


class Endpoint:
    """An endpoint whose requests are split between a stable version and a canary."""

    def __init__(self, seed: int = 1) -> None:
        self.random, self.now = np.random.default_rng(seed), 0.0
        self.versions = Versions()
        self.grown: dict[tuple[str, ...], float] = {}
        self.given = {"1": 0, "2": 0}

    def add(self, name: str, *labels: str, times: float = 1.0) -> None:
        """Count something."""
        self.grown[name, *labels] = self.grown.get((name, *labels), 0.0) + times

    def see(
        self, version: str, route: str, requests: int, *, labels: Mapping[str, float] = LABELS,
        languages: Mapping[str, float] = LANGUAGES, lower: float = 0.0,
    ) -> None:  # fmt: skip
        """Answer some requests."""
        self.given[version] += requests
        self.add(catalog.REQUESTS.name, "e", version, route, "ok", times=requests)
        for variable, shares in (("predicted_label", labels), ("language", languages)):
            found = self.random.multinomial(requests, list(shares.values())).tolist()
            for value, times in zip(shares, found, strict=True):
                self.add(ENUM, "e", version, variable, value, times=times)
        scores = np.clip(self.random.beta(5, 1.5, requests) - lower, 0, 1)
        self.numbers(version, "top_score", scores, catalog.RATIO_BUCKETS)

    def numbers(self, version: str, variable: str, values: Any, bounds: tuple[float, ...]) -> None:
        """Count numbers in a histogram."""
        for bound in (*bounds, math.inf):
            below = float((np.asarray(values) <= bound).sum())
            self.add(BUCKETS, "e", version, variable, "+Inf" if bound == math.inf else f"{bound:g}", times=below)

    def look(self, seconds: float = 5.0) -> Sentences | None:
        """Let time pass; return what is found of the pair."""
        self.now += seconds
        grown, self.grown = self.grown, {}
        return self.versions.update(self.now, grown).get(PAIR)

    def serve(self, looks: int, *, rate: float = 100, weight: float = 0.1, **canary: Any) -> Sentences:
        """Look up to ``looks`` times, with ``rate`` requests each, until a difference is found."""
        found: Sentences | None = None
        for _ in range(looks):
            to_canary = int(self.random.binomial(rate, weight))
            self.see("2", "canary", to_canary, **canary)
            self.see("1", "stable", int(rate) - to_canary)
            found = self.look()
            if found:
                break
        assert found is not None
        return found


@pytest.mark.parametrize("rollouts", [10, pytest.param(300, marks=pytest.mark.long)])
def test_equal_versions_are_found_to_differ_beside_one_canary_of_a_hundred_at_most(rollouts: int) -> None:
    """Two hours long each, while the canary's share grows and the traffic changes from German to English by the hour:
    over all looks together the canary has got other texts.
    """
    alarms = 0
    for seed in range(rollouts):
        endpoint = Endpoint(seed)
        for look in range(60):
            german = 0.1 + 0.6 * look / 60
            alike = {"labels": {"good": 0.9 - german, "bad": german, "mixed": 0.1},
                     "languages": {"en": 0.98 - german, "de": german, "none": 0.02}}  # fmt: skip
            requests = int(endpoint.random.poisson(80))
            to_canary = int(endpoint.random.binomial(requests, (0.05, 0.25, 0.5)[look // 20]))
            endpoint.see("2", "canary", to_canary, **alike)
            endpoint.see("1", "stable", requests - to_canary, **alike)
            found = endpoint.look(120.0)
            if found:
                alarms += 1
                break
    assert alarms <= rollouts / 100


def test_a_text_that_is_repeated_a_thousand_times_is_no_difference() -> None:
    """Chance splits the requests; they need not be independent, unlike those compared with a reference."""
    endpoint = Endpoint()
    for burst in range(100):
        name = ("good", "bad")[burst % 2]
        for version, route, requests in (("2", "canary", endpoint.random.binomial(500, 0.1)), ("1", "stable", 450)):
            endpoint.see(version, route, int(requests), labels={name: 1.0}, languages={"en": 1.0})
        found = endpoint.look()
    assert found is not None
    assert {} == found


@pytest.mark.parametrize(
    ("kind", "told", "most", "changed"),
    [
        ("answers", "predicted_label: mixed 5", 150, {"labels": {"good": 0.1, "bad": 0.4, "mixed": 0.5}}),
        ("answers", "predicted_label: bad 2", 1_500, {"labels": {"good": 0.65, "bad": 0.25, "mixed": 0.1}}),
        ("answers", "predicted_label: mixed 0.0%, stable 1", 400, {"labels": {"good": 0.6, "bad": 0.4, "mixed": 0.0}}),
        ("answers", "top_score: up to 0.", 300, {"lower": 0.1}),
        ("texts", "language: de 2", 600, {"languages": {"en": 0.78, "de": 0.2, "none": 0.02}}),
    ],
)
def test_differences_are_found_and_named(kind: str, told: str, most: int, changed: Mapping[str, Any]) -> None:
    """Swapped labels, a more frequent one, one that vanished, lower scores, other texts: after so many requests."""
    endpoint = Endpoint()
    found = endpoint.serve(400, **changed)
    assert {kind} == found.keys()
    assert told in found[kind]
    assert endpoint.given["2"] <= most


def test_other_answers_to_other_texts_are_attributed_to_the_texts() -> None:
    """Readers must not blame the model."""
    endpoint, found = Endpoint(), None
    for _ in range(30):
        endpoint.see("2", "canary", 20, labels={"good": 0.1, "bad": 0.9}, languages={"de": 1.0})
        endpoint.see("1", "stable", 80)
        found = endpoint.look()
    assert found is not None
    assert found["answers"].endswith("its texts may be the reason")


def test_a_value_that_comes_late_is_named() -> None:
    """The first values did not have it."""
    endpoint = Endpoint()
    endpoint.serve(30, languages={"en": 1.0})
    for _ in range(60):
        endpoint.see("2", "canary", 20, languages={"en": 0.8, "fr": 0.2})
        endpoint.see("1", "stable", 180, languages={"en": 1.0})
        found = endpoint.look()
    assert found is not None
    assert "language: fr" in found["texts"]


def test_with_a_response_cache_only_answers_are_compared() -> None:
    """Texts answered from a version's cache are not counted, and a canary's cache has fewer hits."""
    endpoint = Endpoint()
    endpoint.add(catalog.CACHE.name, "e", "1", "hit")
    found = endpoint.serve(30, languages={"de": 1.0}, lower=0.3)
    assert {"answers"} == found.keys()


def test_only_built_in_variables_that_do_not_depend_on_what_a_version_learned_are_compared() -> None:
    """A canary has other usual words, and its embeddings another mean; declared variables may be sampled."""
    endpoint = Endpoint()
    for _ in range(30):
        for version in "12":
            for name in ("unusual_word_ratio", "embedding_cosine", "mine"):
                endpoint.numbers(version, name, np.full(50, 0.4 * int(version)), (0.5, 1.0))
        found = endpoint.serve(1)
    assert {} == found


def test_a_version_is_compared_only_while_there_is_a_canary() -> None:
    """A canary without requests for an hour is dropped."""
    endpoint = Endpoint()
    endpoint.serve(30)
    endpoint.see("1", "stable", 100)
    assert endpoint.look(3_599.0) is not None
    endpoint.see("1", "stable", 100)
    assert endpoint.look(3_601.0) is None


def test_shares_are_told_of_all_values_also_of_those_that_are_none() -> None:
    """Half of the canary's answers have no score. Of differences as large as each other, the first by name is told."""
    endpoint, found = Endpoint(), None
    for _ in range(20):
        for version, route, scores in (("1", "stable", [0.9] * 30), ("2", "canary", [0.3] * 10)):
            endpoint.add(catalog.REQUESTS.name, "e", version, route, "ok", times=30)
            endpoint.numbers(version, "top_score", scores, (0.5, 1.0))
        for reason in ("missing", "not_finite"):
            endpoint.add(catalog.VARIABLE_IGNORED.name, "e", "2", "top_score", reason, times=5)
        found = endpoint.look()
    assert found is not None
    assert "(top_score: missing 50.0%, stable 0.0%)" in found["answers"]


def test_buckets_without_new_values_are_known_too() -> None:
    """A look has the bounds of every bucket, whatever came since the last one."""
    text = 'gateway_variable_scalar_bucket{{endpoint="e",version="1",variable="top_score",le="{}"}} {}\n'
    before, now = (Reading({"a": parse(text.format(1, 5) + text.format("+Inf", n))}) for n in (5, 6))
    assert {(BUCKETS, "e", "1", "top_score", "1"): 0, (BUCKETS, "e", "1", "top_score", "+Inf"): 1} == grown(before, now)


def test_names_of_any_form_are_read() -> None:
    """With quotes, braces, spaces and new lines, as Prometheus writes them; also when they are read again."""
    text = 'gateway_feedback_total{endpoint="a \\"b\\" }",label="x\\ny",predicted="1 2",version=""} 3.0\nother 1\n'
    known: dict[str, tuple[str, ...]] = {}
    for _ in range(2):
        assert {("gateway_feedback_total", 'a "b" }', "", "1 2", "x\ny"): 3.0} == parse(text, known)
