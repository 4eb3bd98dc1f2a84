"""The source of a rollout's counts: the gateways' own ``/metrics``.

Turns the counters of all gateways into counts between two looks. A gateway whose counter went back (its process
restarted) counts nothing for that interval. One that cannot be read is named, and its last reading is kept: what it
counts meanwhile is in the next interval. This file decides which outcomes count as a failure of a version: answers with
status 5xx, including a canary's for which stable answered instead, and mirrored requests that the version failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from deploy.controller.gateways import counters
from deploy.controller.rollouts.gate import Counts
from deploy.tools import exposition, http_client
from gateway import errors, metrics

FAILURES: Final = frozenset(kind for kind, status in errors.STATUS.items() if status >= 500) - {"draining"}
"""Outcomes that count as failures of the version; callers' mistakes and overloaded gateways do not."""
LATENCY_BUCKETS: Final = metrics.catalog.LATENCY_BUCKETS
REFUSED: Final = errors.Overloaded.kind
"""The outcome of requests for which a version had no capacity."""

_LINE: Final = re.compile(rf"^(?P<name>[a-zA-Z_:][\w:]*){exposition.LABELS}\s+(?P<value>\S+)", re.M)

_REQUESTS: Final = metrics.catalog.REQUESTS.name
_FALLBACKS: Final = metrics.catalog.FALLBACKS.name
_VARIABLE: Final = metrics.catalog.VARIABLE_ENUM.name
_SHADOWS: Final = metrics.catalog.SHADOWS.name
_GROUPS: Final = metrics.catalog.SHADOW_GROUPS.name
_WANTED: Final = (
    _REQUESTS, f"{metrics.catalog.REQUEST_SECONDS.name}_bucket", _FALLBACKS, _VARIABLE, _SHADOWS, _GROUPS,
)  # fmt: skip
_LABELS: Final = frozenset({"endpoint", "version", "route", "outcome", "le", "variable", "value", "by", "group"})

Series = tuple[str, tuple[tuple[str, str], ...]]
Scrape = Mapping[str, Mapping[Series, float]]
"""Instance → series → value."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version by its metric labels."""

    endpoint: str
    version: str


@dataclass(frozen=True, slots=True)
class Look:
    """One reading: the instances that could be read, and the names of those that could not."""

    instances: Scrape = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def over(self, before: Look) -> Look:
        """Return this reading, with the last good one of every instance that could not be read now."""
        return replace(self, instances={**before.instances, **self.instances})


class GatewaySource:
    """Reads the gateways' ``/metrics``; ``fetch(url)`` returns the text or None. Blocking; never raises.

    ``gateways`` are their addresses, or return them at each look.
    """

    def __init__(
        self, gateways: Sequence[str] | Callable[[], Sequence[str]], *,
        fetch: Callable[[str], str | None] = http_client.fetch_from_gateway,
    ) -> None:  # fmt: skip
        self._gateways = gateways if callable(gateways) else lambda: gateways
        self._fetch = fetch

    def look(self, endpoint: str) -> Look:
        """Return all counters of an endpoint now."""
        texts = counters(self._gateways(), self._fetch)
        found = {gateway: parse(text, endpoint) for gateway, text in texts.items() if text is not None}
        return Look(found, tuple(gateway for gateway, text in texts.items() if text is None))


def parse(text: str, endpoint: str) -> dict[Series, float]:
    """Return the series of ``endpoint`` that a rollout needs, from ``text`` in Prometheus' text format."""
    found = {}
    for line in _LINE.finditer(text):
        if line["name"] in _WANTED:
            labels = exposition.labels(line["labels"])
            if labels.get("endpoint") == endpoint:
                found[_series(line["name"], labels)] = float(line["value"])
    return found


def differences(statuses: Iterable[Mapping[str, Any] | None], canary: Version, stable: Version) -> dict[str, str]:
    """Return the differences between two versions that the controller has found, one sentence for each kind."""
    return {
        kind: how
        for status in statuses if status is not None
        for one in status.get("compared", ())
        if (one["endpoint"], one["version"], one["beside"]) == (canary.endpoint, canary.version, stable.version)
        for kind, how in one["sentences"].items()
    }  # fmt: skip


def label_names(variable: str, stable: Sequence[str], canary: Sequence[str]) -> dict[str, str]:
    """Return the canary's values of ``variable`` that mean another one of stable, if they are labels (``mirrored``)."""
    return metrics.mirrored.renamed(stable, canary) if variable == metrics.variables.LABEL else {}


def between(
    before: Look,
    now: Look,
    version: Version,
    route: str,
    variable: str = "",
    names: Mapping[str, str] = MappingProxyType({}),
) -> Counts:
    """Return the counts of ``version`` on ``route`` between two looks, with the values of ``variable`` that it gave.

    Values and mirrored requests are counted per version, on all routes. ``names``: values → what they mean.
    """
    requests = failures = refused = 0.0
    slower: dict[float, float] = {}
    values: dict[str, float] = {}
    timed = 0.0
    mirrored = {"agreed": 0.0, "differed": 0.0, "failed": 0.0}
    groups: dict[str, dict[str, float]] = {}
    for instance, series in now.instances.items():
        old = before.instances.get(instance)
        if old is None or any(series.get(key, 0.0) < value for key, value in old.items()):
            continue  # new or restarted: it counts from the next look on
        for key, value in series.items():
            grown = value - old.get(key, 0.0)
            name, pairs = key
            labels = dict(pairs)
            if labels.get("version") != version.version or labels.get("endpoint") != version.endpoint:
                continue
            if name == _FALLBACKS:
                # The canary failed and stable answered: in the totals it is a request of stable.
                if route == "canary" and labels.get("outcome") in FAILURES:
                    requests, failures = requests + grown, failures + grown
                elif route == "canary" and labels.get("outcome") == REFUSED:
                    refused += grown
                continue
            if name == _VARIABLE:
                if labels.get("variable") == variable:
                    value_name = labels.get("value", "")
                    value_name = names.get(value_name, value_name)
                    values[value_name] = values.get(value_name, 0.0) + grown
                continue
            if name == _SHADOWS:
                if labels.get("outcome") in mirrored:
                    mirrored[labels["outcome"]] += grown
                continue
            if name == _GROUPS:
                counted = groups.setdefault(f"{labels.get('by')} {labels.get('group')}", {})
                counted[labels["outcome"]] = counted.get(labels["outcome"], 0.0) + grown
                continue
            if labels.get("route") != route:
                continue
            if name == _REQUESTS:
                outcome = labels.get("outcome", "")
                if outcome == "ok" or outcome in FAILURES:
                    requests += grown
                failures += grown if outcome in FAILURES else 0.0
                refused += grown if outcome == REFUSED else 0.0
            elif labels.get("le") == "+Inf":
                timed += grown
            else:
                bound = float(labels["le"])
                slower[bound] = slower.get(bound, 0.0) + grown
    return Counts(
        int(requests), int(failures), int(timed), {bound: int(timed - count) for bound, count in slower.items()},
        {value: round(count) for value, count in values.items() if count > 0},
        (int(mirrored["agreed"]), int(mirrored["differed"] + mirrored["failed"])), int(refused),
        int(mirrored["failed"]),
        {
            group: (int(one.get("agreed", 0)), int(one.get("differed", 0)))
            for group, one in groups.items() if any(one.values())
        },
    )  # fmt: skip


def _series(name: str, labels: Mapping[str, str]) -> Series:
    kept = {key: value for key, value in labels.items() if key in _LABELS}
    return name, tuple(sorted(kept.items()))
