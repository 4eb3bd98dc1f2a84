"""Compares a canary with the stable version beside it: do they get the same requests, and do they answer alike?

While a canary's weights split the requests of an endpoint, each built-in variable of the canary is compared with that
of the stable version, counted in the same time over all gateways.

The method is that of ``evidence``: bets that receive money at a fixed rate per day. The routing assigns values to the
canary at random: of ``t`` values in a bin, the canary's share is hypergeometric. Only this split is random, so values
may depend on each other, and the traffic may change from hour to hour. A step is taken when both sides have ``_LEAST``
new values, so with little traffic a comparison takes longer. Without a canary an endpoint's money waits, at most a
day's worth: over any number of rollouts an endpoint has at most one false finding in 30 days over all its variables
(per canary, if several run at a time). If callers are routed by a key, all requests of a caller go to one version; a
difference may then be one between callers.

It informs and decides nothing: a version may be meant to answer differently, and callers may be meant to stay with one
version. Readers of a verdict must know the difference.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from deploy.controller.counters import BUCKETS, Numbers
from deploy.controller.drift.evidence import DAY_S, Floats, Wealth, likelier
from deploy.controller.registry import metrics

catalog = metrics.catalog
drift = metrics.drift
variables = metrics.variables

_MEANINGS: Final = {
    "texts": "it gets other texts than stable ({}): the traffic is split unevenly, and errors, latency and labels "
    "cannot be compared fairly",
    "tokens": "its texts have other tokens than stable's ({}): it gets other texts, or its tokenizer differs",
    "answers": "it answers differently from stable ({})",
}
_MAX_NAMED: Final = 3
_ODDS: Final = np.array([0.05, 1 / 3, 2 / 3, 1.5, 3.0, 10.0])
"""By how much a bet multiplies the odds of a bin; the first is for what the canary never gives."""
_LEAST: Final = 20
_SAMPLE: Final = 200
"""Values of both sides together that are needed to make bins."""
_MAX_BINS: Final = 15
_OVER_S: Final = 3600.0
"""A canary without requests for this long is no longer compared."""
_ROUTES: Final = ("canary", "stable")


class Values(dict[str, float]):
    """How often each value of a variable came, or each bucket of a number, keyed by its bound."""

    bounds: tuple[float, ...] = ()
    """The buckets' bounds, for a number."""


Counted = dict[str, Values]
"""By variable name."""


class Pair(NamedTuple):
    """A canary and the stable version beside it."""

    endpoint: str
    canary: str
    stable: str


@dataclass(frozen=True, slots=True)
class Compared:
    """What is found of a pair."""

    days: Mapping[str, float]
    """The evidence by what differs (``texts``, ``tokens``, ``answers``); their sum is that of the pair."""
    sentences: Mapping[str, str] = field(default_factory=dict)
    """A sentence for each kind of difference that is certain."""
    alike: tuple[str, ...] = ()
    """The variables that do not differ so far."""


class Versions:
    """Follows all canaries. Not thread-safe. ``alarm_days``: see ``drift.ALARM_DAYS``."""

    def __init__(self, alarm_days: float = drift.ALARM_DAYS) -> None:
        self._alarm_days = alarm_days
        self._pairs: dict[Pair, _Compared] = {}
        self._idle_since: dict[str, float] = {}
        """Since when each endpoint has no canary (Unix time)."""
        self._cached: set[str] = set()
        """The endpoints that have answered from a response cache."""
        self._began: float | None = None

    def update(self, now: float, grown: Numbers) -> dict[Pair, Compared]:
        """Compare what was counted since the last time (``now`` is Unix time)."""
        if self._began is None:
            self._began = now
        for pair in _asked(grown):
            if pair not in self._pairs:
                idle = now - self._idle_since.get(pair.endpoint, self._began)
                self._pairs[pair] = _Compared(min(1.0, max(0.0, idle) / DAY_S), self._alarm_days)
            self._pairs[pair].asked_at = now
        self._pairs = {pair: one for pair, one in self._pairs.items() if now - one.asked_at < _OVER_S}
        self._idle_since |= {pair.endpoint: now for pair in self._pairs}
        self._cached |= {key[1] for key in grown if key[0] == catalog.CACHE.name and key[3] == "hit"}
        if not self._pairs:
            return {}
        counted = _counts(grown, {(p.endpoint, version) for p in self._pairs for version in p[1:]})
        for pair, compared in self._pairs.items():
            # For an answer from the response cache only the answer's variables are counted, and each version has one.
            only = ("answers",) if pair.endpoint in self._cached else tuple(_MEANINGS)
            sides = [counted.get((pair.endpoint, version), {}) for version in (pair.canary, pair.stable)]
            compared.update(now, sides, [name for name, kind in variables.KINDS.items() if kind in only])
        return {pair: compared.found() for pair, compared in self._pairs.items()}


def _asked(grown: Numbers) -> list[Pair]:
    """Return the canaries with requests since the last time, each with the stable version with most requests."""
    asked: dict[tuple[str, str], dict[str, float]] = {}
    for (name, *labels), news in grown.items():
        if name == catalog.REQUESTS.name and labels[2] in _ROUTES:
            of = asked.setdefault((labels[0], labels[2]), {})
            of[labels[1]] = of.get(labels[1], 0.0) + news
    return [
        Pair(endpoint, canary, max(stables, key=lambda one: stables[one]))
        for (endpoint, route), canaries in asked.items() if route == "canary"
        for stables in [asked.get((endpoint, "stable"))] if stables
        for canary in canaries if canary not in stables
    ]  # fmt: skip


class _Compared:
    """The state of one pair."""

    def __init__(self, days: float, alarm_days: float) -> None:
        self._days, self._alarm_days = days, alarm_days
        self._variables: dict[str, _Variable] = {}
        self.asked_at = 0.0

    def update(self, now: float, sides: Sequence[Counted], names: Iterable[str]) -> None:
        for name in names:
            ours, theirs = (side.get(name, Values()) for side in sides)
            if ours and theirs and ours.bounds != theirs.bounds:
                continue  # declared with other buckets in the two versions
            if name not in self._variables:
                if not (ours or theirs):
                    continue
                self._variables[name] = _Variable(self._days, self._alarm_days, ours.bounds or theirs.bounds)
            self._variables[name].take(ours, theirs)
            self._variables[name].step(now)

    def found(self) -> Compared:
        known = {name: one for name, one in sorted(self._variables.items()) if one.is_compared}
        days = dict.fromkeys((variables.KINDS[name] for name in known), 0.0)
        for name, one in known.items():
            days[variables.KINDS[name]] += one.days / len(known)
        is_certain = sum(days.values()) >= self._alarm_days
        differ = {name: one for name, one in known.items() if is_certain and one.days >= self._alarm_days}
        sentences = {
            kind: meaning.format("; ".join([_how(name, one) for name, one in of.items()][:_MAX_NAMED]))
            for kind, meaning in _MEANINGS.items()
            if (of := {name: one for name, one in differ.items() if variables.KINDS[name] == kind})
        }
        if "texts" in sentences and "answers" in sentences:
            sentences["answers"] += "; its texts may be the reason"
        return Compared(days, sentences, tuple(name for name in known if name not in differ))


def _how(name: str, variable: _Variable) -> str:
    """Return in words how a variable differs: by a value that the canary never gives, else by one that it gives more
    often, else by the one that moved most.
    """
    shares = variable.seen()
    count = dict(zip(shares.bins, shares.counts, strict=True))
    was = dict(zip(shares.bins, shares.reference, strict=True))
    clearest = sorted(shares.moved, key=lambda one: (count[one[0]] > 0, one[1] < 0))[:1]
    told = [f"{shares.named(bin_)} {count[bin_] / shares.n:.1%}, stable {was[bin_]:.1%}" for bin_, _ in clearest]
    return ": ".join((name, *told))


class _Variable:
    """One variable of a pair. Of two sides, the first is the canary, the second the stable version."""

    def __init__(self, days: float, alarm_days: float, bounds: tuple[float, ...]) -> None:
        self._began_with, self._alarm_days, self._bounds = days, alarm_days, bounds
        self._waiting = Counter[str](), Counter[str]()
        self._seen = Counter[str](), Counter[str]()
        self._bins: drift.Bins | None = None
        """The bins that are bet on; None until there are enough values."""
        self._groups: list[Floats] = []
        self._money = Wealth(0, alarm_days)
        self._at: float | None = None
        self.days = 0.0

    def take(self, *sides: Mapping[str, float]) -> None:
        """Collect new values of both sides."""
        for waiting, news in zip(self._waiting, sides, strict=True):
            waiting.update({name: round(value) for name, value in news.items()})

    def step(self, now: float) -> None:
        """Compare the collected values if there are enough."""
        if self._at is None:
            self._at = now
        numbers = [side.total() for side in self._waiting]
        if min(numbers) < _LEAST or (self._bins is None and sum(numbers) < _SAMPLE):
            return
        if self._bins is None:
            # Made from both sides together, so the bins do not depend on the split that is tested.
            self._bins = _bins(self._waiting, self._bounds)
            self._groups = _groups(self._bins)
            self._money = Wealth(len(self._groups) * len(_ODDS), self._alarm_days, self._began_with)
        ours, theirs = (_folded(side, self._bins) for side in self._waiting)
        gains = [
            likelier(numbers[0], int(ours @ group), numbers[1], int(theirs @ group), _ODDS) for group in self._groups
        ]
        for seen, side in zip(self._seen, self._waiting, strict=True):
            seen.update(side)
            side.clear()
        days, self._at = max(0.0, now - self._at) / DAY_S, now
        self.days, _ = self._money.step(np.concatenate(gains), numbers[0], days, math.inf, now)

    @property
    def is_compared(self) -> bool:
        """Whether enough values came to compare."""
        return self._bins is not None

    def seen(self) -> drift.Shares:
        """Return what was compared, stable's as the reference, in newly made bins: so late values have bins, too."""
        bins = _bins(self._seen, self._bounds)
        ours, theirs = (_folded(side, bins) for side in self._seen)
        reference = tuple(drift.shares(theirs).tolist())
        return drift.Shares(bins.names, reference, float(theirs.sum()), tuple(ours.tolist()))


def _counts(grown: Numbers, of: set[tuple[str, str]]) -> dict[tuple[str, str], Counted]:
    """Return the new values of each version's built-in variables."""
    found: dict[tuple[str, str], Counted] = {}
    buckets: dict[tuple[str, str, str], dict[float, float]] = {}
    for (name, *labels), news in grown.items():
        if name not in (catalog.VARIABLE_ENUM.name, catalog.VARIABLE_IGNORED.name, BUCKETS):
            continue
        endpoint, version, variable, value = labels
        if (endpoint, version) not in of or variable not in variables.KINDS:
            continue
        if name == BUCKETS:
            buckets.setdefault((endpoint, version, variable), {})[float(value)] = news
        else:
            values = found.setdefault((endpoint, version), {}).setdefault(variable, Values())
            values[value if name == catalog.VARIABLE_ENUM.name else drift.MISSING] = news
    for (endpoint, version, variable), cumulative in buckets.items():
        values = found.setdefault((endpoint, version), {}).setdefault(variable, Values())
        values.bounds = tuple(sorted(cumulative))
        ordered = [0.0, *(cumulative[bound] for bound in values.bounds)]
        values.update({str(bound): b - a for bound, (a, b) in zip(values.bounds, pairwise(ordered), strict=True)})
    return found


def _bins(sides: Iterable[Mapping[str, float]], bounds: tuple[float, ...]) -> drift.Bins:
    """Return bins of about equal frequency for a number with ``bounds``, or the most frequent categories."""
    together = Counter[str]()
    for side in sides:
        together.update(side)
    missing = together.pop(drift.MISSING, 0.0)
    if bounds and together:
        return drift.bucket_bins(bounds, [together[str(bound)] for bound in bounds], missing=missing)
    rest = together.pop(drift.OTHER, 0.0)
    frequent = dict(together.most_common(_MAX_BINS))
    rest += together.total() - sum(frequent.values())
    return drift.Bins("enum", (), (*frequent,), (*frequent.values(), rest, missing))


def _folded(counted: Mapping[str, float], bins: drift.Bins) -> Floats:
    """Return counts of values or buckets as counts per bin, an array (bins,)."""
    found = np.zeros(len(bins.names))
    for name, value in counted.items():
        if name == drift.MISSING:
            found[-1] += value
        elif bins.kind == "scalar":
            found[bisect_left(bins.edges, float(name))] += value
        else:
            found[bins.index(name)] += value
    return found


def _groups(bins: drift.Bins) -> list[Floats]:
    """Return the sets of bins to bet on: each prefix of ordered bins, or each single bin; masks (bins,)."""
    width = len(bins.names)
    single = np.eye(width)
    if bins.kind == "enum":
        return list(single)
    below = [single[: i + 1].sum(axis=0) for i in range(width - 2)]
    return [*below, single[-1]]
