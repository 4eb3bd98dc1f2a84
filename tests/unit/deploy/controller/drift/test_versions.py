"""Versions side by side: the same traffic and the same model are no difference, whatever the traffic does; others are.

Time is simulated, chance is seeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from deploy.controller.drift.versions import Pair, Sentences, Versions
from gateway.metrics import catalog

LABELS = {"good": 0.5, "bad": 0.4, "mixed": 0.1}
LANGUAGES = {"en": 0.9, "de": 0.08, "none": 0.02}
PAIR = Pair("e", "2", "1")


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
        languages: Mapping[str, float] = LANGUAGES, failed: float = 0.0,
    ) -> None:  # fmt: skip
        """Answer some requests."""
        self.given[version] += requests
        failures = int(self.random.binomial(requests, failed))
        for outcome, times in (("ok", requests - failures), ("model_failed", failures)):
            self.add(catalog.REQUESTS.name, "e", version, route, outcome, times=times)
        for variable, shares in (("predicted_label", labels), ("language", languages)):
            found = self.random.multinomial(requests, list(shares.values())).tolist()
            for value, times in zip(shares, found, strict=True):
                self.add(catalog.VARIABLE_ENUM.name, "e", version, variable, value, times=times)

    def look(self, seconds: float = 5.0) -> Sentences | None:
        """Let time pass; return what is found of the pair."""
        self.now += seconds
        grown, self.grown = self.grown, {}
        return self.versions.update(self.now, grown).get(PAIR)

    def serve(
        self, looks: int, *, rate: int = 100, weight: float = 0.1, both: Mapping[str, Any] = MappingProxyType({}),
        **canary: Any,
    ) -> Sentences:  # fmt: skip
        """Look up to ``looks`` times, with ``rate`` requests each, until a difference is found."""
        found: Sentences | None = None
        for _ in range(looks):
            to_canary = int(self.random.binomial(rate, weight))
            self.see("2", "canary", to_canary, **both, **canary)
            self.see("1", "stable", rate - to_canary, **both)
            found = self.look()
            if found:
                break
        assert found is not None
        return found


def test_equal_versions_do_not_differ_whatever_the_traffic_does() -> None:
    """While the canary's share grows, the traffic changes from English to German: over all looks together the canary
    has got other texts, and more of its labels are bad. How seldom chance alone differs is shown for the gate itself.
    """
    for seed in range(3):
        endpoint = Endpoint(seed)
        for look in range(30):
            german = 0.1 + 0.6 * look / 30
            alike = {"labels": {"good": 0.9 - german, "bad": german, "mixed": 0.1},
                     "languages": {"en": 0.98 - german, "de": german, "none": 0.02}}  # fmt: skip
            assert not endpoint.serve(1, rate=160, weight=(0.05, 0.25, 0.5)[look // 10], both=alike)


@pytest.mark.parametrize(
    ("kind", "told", "most", "changed"),
    [
        ("answers", "the shares of its labels are ", 150, {"labels": {"good": 0.1, "bad": 0.4, "mixed": 0.5}}),
        ("answers", "and not vanish", 800, {"labels": {"good": 0.6, "bad": 0.4, "mixed": 0.0}}),
        ("answers", "requests failed, compared with 0 of ", 200, {"failed": 0.1}),
        ("texts", "than stable (languages: ", 300, {"languages": {"en": 0.6, "de": 0.38, "none": 0.02}}),
    ],
)
def test_differences_are_found_and_named(kind: str, told: str, most: int, changed: Mapping[str, Any]) -> None:
    """Swapped labels, one that vanished, failures, other texts: after so many requests."""
    endpoint = Endpoint()
    found = endpoint.serve(400, **changed)
    assert {kind} == found.keys()
    assert told in found[kind]
    assert endpoint.given["2"] <= most


def test_other_answers_to_other_texts_are_attributed_to_the_texts() -> None:
    """Readers must not blame the model."""
    endpoint = Endpoint()
    for _ in range(60):
        found = endpoint.serve(1, labels={"good": 0.1, "bad": 0.8, "mixed": 0.1}, languages={"de": 1.0})
    assert found["answers"].endswith("its texts may be the reason")


def test_with_a_response_cache_only_answers_are_compared() -> None:
    """Texts answered from a version's cache are not counted, and a canary's cache has fewer hits."""
    endpoint = Endpoint()
    endpoint.add(catalog.CACHE.name, "e", "1", "hit")
    assert {"answers"} == endpoint.serve(30, languages={"de": 1.0}, failed=0.5).keys()


def test_a_version_is_compared_only_while_there_is_a_canary() -> None:
    """A canary without requests for an hour is dropped."""
    endpoint = Endpoint()
    endpoint.serve(30)
    endpoint.see("1", "stable", 100)
    assert endpoint.look(3_599.0) is not None
    endpoint.see("1", "stable", 100)
    assert endpoint.look(3_601.0) is None
