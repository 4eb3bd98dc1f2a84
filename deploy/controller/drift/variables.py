"""The evidence of drift of every variable that has a reference, from what all gateways together count."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from deploy.controller.counters import Numbers
from deploy.controller.drift.evidence import DAY_S, Floats, Judged, Variable
from deploy.controller.drift.references import Key, Reference, bins


class Variables:
    """Follows all variables. ``begun``: what an earlier controller has found. Not thread-safe."""

    def __init__(self, alarm_days: float, begun: Mapping[Key, Judged]) -> None:
        self._alarm_days = alarm_days
        self._begun = dict(begun)
        self._known: dict[Key, _Followed] = {}

    def update(
        self, now: float, grown: Numbers, references: Mapping[Key, Reference], *, is_whole: bool = True
    ) -> dict[Key, Judged]:
        """Judge what was counted since the last look (``now`` is Unix time); return the evidence of each variable.

        Unless ``is_whole``, references may be missing that are still in use.
        """
        known = {key: of for key, of in references.items() if math.isfinite(of.size)}
        if is_whole:
            self._known = {key: one for key, one in self._known.items() if key in known}
        for key, reference in known.items():
            if key not in self._known:
                self._known[key] = _Followed(reference, self._alarm_days, self._begun.pop(key, None), now)
            self._known[key].update(bins(grown, key, reference), now)
        return {key: one.last for key, one in self._known.items() if one.is_judged}


def once(counts: Floats, reference: Reference, alarm_days: float) -> Judged:
    """Return the evidence of one look at ``counts``: chance alone gives as much in one of so many looks at most."""
    variable = _variable(reference, alarm_days, None)
    if not variable.is_judged:
        return Judged(math.nan, math.nan, math.nan)
    variable.step(np.zeros_like(counts), 1.0, 0.0)  # a day's worth of money
    return variable.step(counts, 0.0, 0.0)


def of_endpoints(found: Mapping[Key, Judged]) -> dict[str, float]:
    """Return the evidence of each endpoint, which alarms: the mean over the variables of all its versions."""
    of: dict[str, list[float]] = {}
    for (endpoint, *_), judged in found.items():
        if not math.isnan(judged.days):
            of.setdefault(endpoint, []).append(judged.days)
    return {endpoint: math.fsum(days) / len(days) for endpoint, days in of.items()}


class _Followed:
    """One variable."""

    def __init__(self, reference: Reference, alarm_days: float, begun: Judged | None, now: float) -> None:
        self._variable = _variable(reference, alarm_days, begun)
        self._at = now
        self.last = begun or Judged(0.0, 1.0, now)

    @property
    def is_judged(self) -> bool:
        return self._variable.is_judged

    def update(self, counts: Floats, now: float) -> None:
        if self.is_judged and counts.any():
            self.last = self._variable.step(counts, max(0.0, now - self._at) / DAY_S, now)
            self._at = now


def _variable(reference: Reference, alarm_days: float, begun: Judged | None) -> Variable:
    p = np.array(list(reference.shares.values()))
    return Variable(p, reference.size, ordered=reference.is_ordered, alarm_days=alarm_days, begun=begun)
