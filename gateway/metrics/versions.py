"""Compares a canary with the stable version beside it: do they get the same requests, and do they answer alike?

Works on merged counters only, like ``judge``, and runs in the same worker. While a canary's weights split the requests
of an endpoint, each variable of the canary is compared with that of the stable version, counted in the same time.

The method is that of ``evidence``: bets that receive money at a fixed rate per day. The routing assigns values to the
canary at random: of ``t`` values in a bin, the canary's share is hypergeometric. Only this split is random, so values
may depend on each other, and the traffic may change from hour to hour. A step is taken when both sides have ``_LEAST``
new values, so with little traffic a comparison takes longer. Without a canary an endpoint's money waits, at most a
day's worth: over any number of rollouts an endpoint has at most one false finding in 30 days over all its variables
(per canary, if several run at a time). If callers are routed by a key, all requests of a caller go to one version; a
difference may then be one between callers.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from gateway.metrics import catalog, drift, variables
from gateway.metrics.accumulator import Floats, Snapshot
from gateway.metrics.drift import MISSING, OTHER, Bins, Evidence, Verdict
from gateway.metrics.evidence import DAY_S, Wealth, visible
from gateway.pace import unhurried
from gateway.trace import CANARY, STABLE

_NOT_COMPARED: Final = variables.LEARNED
"""Not compared: they depend on what each version learns by itself."""

_ODDS: Final = np.array([1 / 3, 2 / 3, 1.5, 3.0, 10.0])
_LEAST: Final = 20
_SAMPLE: Final = 200
"""Values of both sides together that are needed to make bins."""
_MAX_BINS: Final = 15
_LEAST_MONEY: Final = 0.001
"""Lowest start money of a bet, in days' worth, for computing what is visible."""
_OVER_S: Final = 3600.0
"""A canary without requests for this long is no longer compared."""


class Values(dict[str, float]):
    """The count of each value of a variable, or of each bucket of a number, keyed by its bound."""

    bounds: tuple[float, ...] = ()
    """The buckets' bounds, for a number."""


Counted = dict[str, Values]
"""By variable name."""


class Pair(NamedTuple):
    """A canary and the stable version beside it."""

    endpoint: str
    canary: str
    stable: str


class Versions:
    """Follows all canaries. Not thread-safe. ``alarm_days``: see ``drift.ALARM_DAYS``."""

    def __init__(self, alarm_days: float = drift.ALARM_DAYS) -> None:
        self._alarm_days = alarm_days
        self._requests: dict[tuple[str, ...], float] | None = None
        self._pairs: dict[Pair, _Compared] = {}
        self._idle_since: dict[str, float] = {}
        """Since when each endpoint has no canary (Unix time)."""
        self._began: float | None = None

    def update(
        self, now: float, snapshot: Snapshot, frequencies: Mapping[tuple[str, str, str], float] | None = None,
        pause: Callable[[], None] = unhurried,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Compare what was counted since the last time (``now`` is Unix time); return the evidence of every pair.

        ``frequencies`` are the sampling rates of declared variables; a sampled value counts ``1 / rate`` times.
        """
        if self._began is None:
            self._began = now
        asked = self._asked(snapshot)
        for pair in asked:
            if pair not in self._pairs:
                idle = now - self._idle_since.get(pair.endpoint, self._began)
                self._pairs[pair] = _Compared(pair, min(1.0, max(0.0, idle) / DAY_S), self._alarm_days)
            self._pairs[pair].asked_at = now
        self._pairs = {pair: one for pair, one in self._pairs.items() if now - one.asked_at < _OVER_S}
        self._idle_since |= {pair.endpoint: now for pair in self._pairs}
        if not self._pairs:
            return []
        counted = _counts(snapshot, {one for p in self._pairs for one in ((p[0], p[1]), (p[0], p[2]))}, pause)
        for compared in self._pairs.values():
            compared.update(now, counted, frequencies or {}, pause)
        return [one for compared in self._pairs.values() for one in compared.described()]

    def _asked(self, snapshot: Snapshot) -> list[Pair]:
        """Return the canaries with requests since the last time, each with the stable version with most requests."""
        grown: dict[tuple[str, str], dict[str, float]] = {}
        requests: dict[tuple[str, ...], float] = {}
        for (name, labels, _), value in snapshot.counted():
            if name == catalog.REQUESTS.name and labels[2] in (CANARY, STABLE):
                requests[labels] = value
                if self._requests is not None and (news := value - self._requests.get(labels, 0.0)) > 0:
                    of = grown.setdefault((labels[0], labels[2]), {})
                    of[labels[1]] = of.get(labels[1], 0.0) + news
        self._requests = requests
        return [
            Pair(endpoint, canary, max(stables, key=lambda one: stables[one]))
            for (endpoint, route), canaries in grown.items() if route == CANARY
            for stables in [grown.get((endpoint, STABLE))] if stables
            for canary in canaries if canary not in stables
        ]  # fmt: skip


def evidence(compared: Iterable[Mapping[str, Any]]) -> dict[tuple[str, ...], float]:
    """Return the part of each kind of variable in a pair's evidence, by endpoint, canary, stable version and kind.

    A pair's evidence is the mean over its variables; the parts add up to it.
    """
    of: dict[tuple[str, ...], float] = {}
    variables_of = Counter[tuple[str, ...]]()
    for one in compared:
        pair = one["endpoint"], one["version"], one["beside"]
        of[*pair, one["kind"]] = of.get((*pair, one["kind"]), 0.0) + one["days"]
        variables_of[pair] += 1
    return {key: days / variables_of[key[:3]] for key, days in of.items()}


class _Compared:
    """The state of one pair."""

    def __init__(self, pair: Pair, days: float, alarm_days: float) -> None:
        self._pair, self._days, self._alarm_days = pair, days, alarm_days
        self._before: tuple[Counted, Counted] | None = None
        self._variables: dict[str, _Variable] = {}
        self.asked_at = 0.0

    def update(
        self, now: float, counted: Mapping[tuple[str, str], Counted],
        frequencies: Mapping[tuple[str, str, str], float], pause: Callable[[], None],
    ) -> None:  # fmt: skip
        endpoint, *both = self._pair
        sides = (counted.get((endpoint, both[0]), {}), counted.get((endpoint, both[1]), {}))
        before, self._before = self._before, sides
        if before is None:
            return
        for name in sides[0].keys() & sides[1].keys():
            pause()
            if sides[0][name].bounds != sides[1][name].bounds:
                continue  # declared with other buckets in the two versions
            variable = self._variables.get(name)
            if variable is None:
                variable = self._variables[name] = _Variable(self._days, self._alarm_days, sides[0][name].bounds)
            for side, version in enumerate(both):
                share = frequencies.get((endpoint, version, name), 1.0)
                variable.take(side, sides[side][name], before[side].get(name, {}), share)
            variable.step(now)

    def described(self) -> Iterable[dict[str, Any]]:
        """Yield the evidence of each variable, as in ``drift.Verdict``; ``kind`` says what a difference means."""
        endpoint, canary, stable = self._pair
        known = {name: one for name, one in sorted(self._variables.items()) if one.is_compared}
        whole = sum(one.days for one in known.values()) / max(len(known), 1)
        for name, one in known.items():
            bins, (ours, theirs) = one.seen()
            found = Evidence(one.days, whole, one.visible(len(known)), one.since, self._alarm_days)
            verdict = Verdict(
                endpoint, canary, name, bins.names, (*drift.shares(theirs).tolist(),), (*ours.tolist(),),
                float(theirs.sum()), found,
            )  # fmt: skip
            yield {**verdict.described(), "beside": stable, "kind": variables.KINDS.get(name, "declared")}


class _Variable:
    """One variable of a pair. Of two sides, the first is the canary, the second the stable version."""

    def __init__(self, days: float, alarm_days: float, bounds: tuple[float, ...]) -> None:
        self._began_with, self._alarm_days, self._bounds = days, alarm_days, bounds
        self._waiting = Counter[str](), Counter[str]()
        self._seen = Counter[str](), Counter[str]()
        self._bins: Bins | None = None
        """The bins that are bet on; None until there are enough values."""
        self._groups: list[Floats] = []
        self._money = Wealth(0, alarm_days)
        self._at: float | None = None
        self.days, self.since = 0.0, math.nan

    def take(self, side: int, now: Mapping[str, float], before: Mapping[str, float], share: float) -> None:
        """Collect new counts of one side; the counters count each value ``1 / share`` times."""
        waiting = self._waiting[side]
        for name, value in now.items():
            news = round((value - before.get(name, 0.0)) * share)
            if news > 0:  # counters fall if a worker's numbers are lost
                waiting[name] += news

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
            drift.likelier(numbers[0], int(ours @ group), numbers[1], int(theirs @ group), _ODDS)
            for group in self._groups
        ]
        for seen, side in zip(self._seen, self._waiting, strict=True):
            seen.update(side)
            side.clear()
        days, self._at = max(0.0, now - self._at) / DAY_S, now
        self.days, self.since = self._money.step(np.concatenate(gains), numbers[0], days, math.inf, now)

    @property
    def is_compared(self) -> bool:
        """Whether enough values came to compare."""
        return self._bins is not None

    def seen(self) -> tuple[Bins, tuple[Floats, Floats]]:
        """Return what was compared in newly made bins, so that late values have bins too; canary's counts first."""
        bins = _bins(self._seen, self._bounds)
        ours, theirs = (_folded(side, bins) for side in self._seen)
        return bins, (ours, theirs)

    def visible(self, of: int) -> float:
        """Return the smallest difference in a share of one half that can be found; ``of``: variables of the pair."""
        n, m = (side.total() for side in self._seen)
        bets = len(self._groups) * len(_ODDS) * of
        return visible(n * m / (n + m), bets * self._alarm_days / max(self._began_with, _LEAST_MONEY))


def _counts(snapshot: Snapshot, of: set[tuple[str, str]], pause: Callable[[], None]) -> dict[tuple[str, str], Counted]:
    """Return the counts of each version's comparable variables."""
    found: dict[tuple[str, str], Counted] = {}
    cached = set()
    for (name, labels, _), value in snapshot.counted():
        pause()
        version = (labels[0], labels[1]) if len(labels) > 1 else ("", "")
        if version not in of:
            continue
        if name in (catalog.VARIABLE_ENUM.name, catalog.VARIABLE_IGNORED.name):
            values = found.setdefault(version, {}).setdefault(labels[2], Values())
            value_name = labels[3] if name == catalog.VARIABLE_ENUM.name else MISSING
            values[value_name] = values.get(value_name, 0.0) + value
        elif name == catalog.CACHE.name and labels[2] == "hit" and value:
            cached.add(labels[0])
    for (name, labels, bounds), numbers in snapshot.distributed():
        pause()
        if name == catalog.VARIABLE_SCALAR.name and (version := (labels[0], labels[1])) in of:
            values = found.setdefault(version, {}).setdefault(labels[2], Values())
            values.bounds = (*bounds, math.inf)
            values.update(zip(map(str, values.bounds), numbers[:-1].tolist(), strict=True))
    for version, counted in found.items():
        # For an answer from the response cache only the answer's variables are counted, and each version has a cache.
        left_out = _NOT_COMPARED | {name for name, kind in variables.KINDS.items() if kind != "answers"}
        for name in left_out if version[0] in cached else _NOT_COMPARED:
            counted.pop(name, None)
    return found


def _bins(sides: Iterable[Mapping[str, float]], bounds: tuple[float, ...]) -> Bins:
    """Return bins of about equal frequency for a number with ``bounds``, or the most frequent categories."""
    together = Counter[str]()
    for side in sides:
        together.update(side)
    missing = together.pop(MISSING, 0.0)
    if bounds and together:
        return drift.bucket_bins(bounds, [together[str(bound)] for bound in bounds], missing=missing)
    rest = together.pop(OTHER, 0.0)
    frequent = dict(together.most_common(_MAX_BINS))
    rest += together.total() - sum(frequent.values())
    return Bins("enum", (), (*frequent,), (*frequent.values(), rest, missing))


def _folded(counted: Mapping[str, float], bins: Bins) -> Floats:
    """Return counts of values or buckets as counts per bin, an array (bins,)."""
    found = np.zeros(len(bins.names))
    for name, value in counted.items():
        if name == MISSING:
            found[-1] += value
        elif bins.kind == "scalar":
            found[bisect_left(bins.edges, float(name))] += value
        else:
            found[bins.index(name)] += value
    return found


def _groups(bins: Bins) -> list[Floats]:
    """Return the sets of bins to bet on: each prefix of ordered bins, or each single bin; masks (bins,)."""
    width = len(bins.names)
    single = np.eye(width)
    if bins.kind == "enum":
        return list(single)
    below = [single[: i + 1].sum(axis=0) for i in range(width - 2)]
    return [*below, single[-1]]
