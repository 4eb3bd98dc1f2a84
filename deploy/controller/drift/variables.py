"""The evidence of drift of every variable that has a reference, from what all gateways together count."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Final

import numpy as np

from deploy.controller.counters import Numbers
from deploy.controller.drift import references
from deploy.controller.drift.evidence import DAY_S, Judged, Variable
from deploy.controller.drift.references import Key
from gateway import metrics

drift = metrics.drift
Begun = Mapping[tuple[Key, str], Judged]
"""What an earlier controller has found, by variable and the id of its reference."""

_SHOWN_S: Final = 3600.0
_STEP_S: Final = 300.0


class Variables:
    """Follows all variables. ``begun``: what an earlier controller has found. Not thread-safe."""

    def __init__(self, alarm_days: float, begun: Begun) -> None:
        self._alarm_days = alarm_days
        self._begun = dict(begun)
        self._known: dict[Key, Followed] = {}

    def update(
        self, now: float, grown: Numbers, known: Mapping[Key, drift.Bins], *, is_whole: bool = True
    ) -> dict[Key, Followed]:
        """Judge what was counted since the last look (``now`` is Unix time); return the variables that are judged.

        Unless ``is_whole``, references may be missing that are still in use. A variable whose reference is new begins
        with the next look: what was counted before came, in part, before that.
        """
        if is_whole:
            self._known = {key: one for key, one in self._known.items() if key in known}
        counts = references.variables(grown)
        for key, one in self._known.items():
            one.update(counts.get(key, {}), now)
        for key, bins in known.items():
            if key not in self._known or self._known[key].reference != bins:
                begun = self._begun.pop((key, references.name_of(bins)), None)
                self._known[key] = Followed(bins, self._alarm_days, begun, now)
        return {key: one for key, one in self._known.items() if one.is_judged}


def of_endpoints(found: Mapping[Key, Followed]) -> dict[str, float]:
    """Return the evidence of each endpoint, which alarms: the mean over the variables of all its versions."""
    of: dict[str, list[float]] = {}
    for (endpoint, *_), one in found.items():
        of.setdefault(endpoint, []).append(one.last.days)
    return {endpoint: sum(days) / len(days) for endpoint, days in of.items()}


class Followed:
    """One variable."""

    def __init__(self, bins: drift.Bins, alarm_days: float, begun: Judged | None, now: float) -> None:
        self.reference = bins
        self._variable = Variable(
            drift.shares([*bins.values()]), sum(bins.values()), ordered=drift.is_ordered(bins), alarm_days=alarm_days,
            begun=begun,
        )  # fmt: skip
        self._at = now
        self._steps = deque[tuple[float, Counter[str]]]()
        self.last = begun or Judged(0.0, 1.0, now)
        self.is_judged = self._variable.is_judged

    def update(self, counts: Mapping[str, float], now: float) -> None:
        """Judge what was counted since the last look."""
        while self._steps and self._steps[0][0] <= now - _SHOWN_S:
            self._steps.popleft()
        if not self.is_judged or not any(counts.values()):
            return
        seen = drift.folded(counts, self.reference)
        self.last = self._variable.step(np.array([*seen.values()]), max(0.0, now - self._at) / DAY_S, now)
        self._at = now
        if not self._steps or self._steps[-1][0] <= now - _STEP_S:
            self._steps.append((now, Counter()))
        self._steps[-1][1].update(counts)

    def shares(self) -> drift.Shares:
        """Return the shares of the last hour beside the reference's."""
        return drift.Shares(self.reference, sum((step for _, step in self._steps), Counter()))
