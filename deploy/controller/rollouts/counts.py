"""A rollout's counts of its two versions, from what gateways have counted between two looks. Pure.

This file decides which outcomes count as a failure of a version: answers with status 5xx, including a canary's for
which stable answered instead, and mirrored requests that the version failed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeVar

from deploy.controller.counters import SECONDS, Numbers
from gateway import errors, metrics

T = TypeVar("T")

FAILURES: Final = frozenset(kind for kind, status in errors.STATUS.items() if status >= 500) - {"draining"}
"""Outcomes that count as failures of the version; callers' mistakes and overloaded gateways do not."""

_REQUESTS: Final = metrics.catalog.REQUESTS.name
_FALLBACKS: Final = metrics.catalog.FALLBACKS.name
_VARIABLE: Final = metrics.catalog.VARIABLE_ENUM.name
_SHADOWS: Final = metrics.catalog.SHADOWS.name
_GROUPS: Final = metrics.catalog.SHADOW_GROUPS.name


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters of one version in one interval, or in several: requests, failures, and answers by latency bucket.

    ``slower``: bucket bound in seconds → successful requests that took longer. ``timed``: successful requests.
    ``labels``: value → answers with this label. ``pairs``: mirrored requests with the same
    answer as stable, and with another one or none; ``mirror_failures``: those with none, because the version failed.
    ``agreed`` and ``differed``: group → the mirrored requests of the group.
    ``requests`` does not include mirrored ones, nor those that the version had no capacity for.
    """

    requests: int = 0
    failures: int = 0
    timed: int = 0
    slower: Mapping[float, int] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    pairs: tuple[int, int] = (0, 0)
    mirror_failures: int = 0
    agreed: Mapping[str, int] = field(default_factory=dict)
    differed: Mapping[str, int] = field(default_factory=dict)

    def plus(self, more: Counts) -> Counts:
        """Return the counts of both intervals."""
        return Counts(
            self.requests + more.requests, self.failures + more.failures, self.timed + more.timed,
            _added(self.slower, more.slower), _added(self.labels, more.labels),
            (self.pairs[0] + more.pairs[0], self.pairs[1] + more.pairs[1]),
            self.mirror_failures + more.mirror_failures, _added(self.agreed, more.agreed),
            _added(self.differed, more.differed),
        )  # fmt: skip


def _added(one: Mapping[T, int], other: Mapping[T, int]) -> dict[T, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


def between(
    grown: Numbers, version: tuple[str, str], route: str, names: Mapping[str, str] = MappingProxyType({})
) -> Counts:
    """Return the counts of ``version`` (its endpoint's name, its own) on ``route`` in what has ``grown``.

    Labels and mirrored requests are counted per version, on all routes. ``names``: labels → what they mean.
    """
    requests = failures = timed = 0.0
    faster: dict[float, float] = defaultdict(float)
    values: dict[str, float] = defaultdict(float)
    mirrored: dict[str, float] = defaultdict(float)
    groups: dict[str, dict[str, int]] = {"agreed": {}, "differed": {}}
    for (name, *labels), news in grown.items():
        if labels[:2] != [*version]:
            continue
        of = labels[2:]
        if name == _REQUESTS and of[0] == route:
            requests += news if of[1] == "ok" or of[1] in FAILURES else 0.0
            failures += news if of[1] in FAILURES else 0.0
        elif name == _FALLBACKS and route == "canary":
            # The canary failed and stable answered: in the totals it is a request of stable.
            requests += news if of[0] in FAILURES else 0.0
            failures += news if of[0] in FAILURES else 0.0
        elif name == SECONDS and of[0] == route:
            if of[1] == "+Inf":
                timed += news
            else:
                faster[float(of[1])] += news
        elif name == _VARIABLE and of[0] == metrics.variables.LABEL:
            values[names.get(of[1], of[1])] += news
        elif name == _SHADOWS:
            mirrored[of[0]] += news
        elif name == _GROUPS and of[1] in groups:
            groups[of[1]][of[0]] = groups[of[1]].get(of[0], 0) + int(news)
    return Counts(
        int(requests), int(failures), int(timed), {bound: int(timed - count) for bound, count in faster.items()},
        {value: round(count) for value, count in values.items() if count > 0},
        (int(mirrored["agreed"]), int(mirrored["differed"] + mirrored["failed"])),
        int(mirrored["failed"]), groups["agreed"], groups["differed"],
    )  # fmt: skip
