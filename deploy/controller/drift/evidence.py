"""Measures the evidence that current values differ from the reference: one number per variable and version.

Pure: counts in, days out. The number is a time: *chance alone gives evidence this strong at most once in so many days*.
Page, board, alert and `drift report` show it, and nothing else decides.

The method is an e-detector (Shin, Ramdas and Rinaldo 2023). Each variable has a list of bets, such as "this bin has
become 1.5 times as likely" or "values above this bound have". Each text multiplies a bet's money by how much more
likely the text is under the bet than under the reference. While nothing has changed, this does not grow on average,
however often one looks. Every bet receives one unit of money a day. Wealth received since the bet began waits; once it
exceeds what is left of the stake, the bet restarts with it, so some bet began at about the time of any change. If
nothing has changed, all money together, over all bets of all variables, has received one day's worth per day on
average, so it reaches N days' worth at most once in N days. This holds if variables depend on each other, and for any
number of texts per day.

The reference is a sample, too. A reference of ``m`` values knows a share no better than ``m`` new texts do, so the
logarithm of the growth over ``n`` texts is multiplied by ``m / (m + n)``, which is the exact likelihood ratio of two
normal samples. Bets for which the reference is too small are not made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from gateway import metrics
from gateway.metrics.drift import Floats

drift = metrics.drift

DAY_S: Final = 86_400.0
HOUR_S: Final = 3600.0

_ODDS: Final = (0.33, 1.5, 3.0, 10.0)
"""By how much bets multiply the odds of a bin, or of all above a bound."""
_RARE_ODDS: Final = (3.0, 50.0, 1000.0)
_RARE: Final = 0.01
"""A bin with a smaller share: if it becomes frequent at all, its odds change by large factors."""
_LEAST_LOG: Final = 20.0
"""Logarithm of the least growth that a bet must reach if it is right, given the size of the reference."""
_ABOVE: Final = 4.0
"""Logarithm of a bet's upper limit over the alarm level. More money would only prolong an alarm after its cause."""
_MAX_WAITING: Final = 1.0
_LEAST_STAKE: Final = 1e-300
_LEAST_COUNT: Final = 0.01
"""A value that came less often, of late, is forgotten."""
_LEAST_VISIBLE: Final = 0.05
"""Smallest change that is claimed to be visible: the weakest bets lose on smaller ones, and they hardly matter."""
_USUAL_STAKE: Final = 0.01
"""Days' worth of money with which a bet has typically begun at the time of a change: about a quarter of an hour's."""


def bets(p: Floats, size: float, *, ordered: bool) -> Floats:
    """Return the shares that the bets on one variable expect, an array (bets, bins).

    ``p`` (bins,) are the reference's shares over ``size`` values; none is 0. ``ordered``: the bins are those of a
    number, in order, followed by ``missing``: it is also bet on all bins above each bound together.
    """
    parts = [slice(b, b + 1) for b in range(len(p))]
    parts += [slice(b, len(p) - 1) for b in range(1, len(p) - 2)] if ordered else []
    found = [_times(p, part, by) for part in parts for by in (_ODDS if p[part].sum() >= _RARE else _RARE_ODDS)]
    kept = [q for q in found if size * float(np.sum(q * np.log(q / p))) >= _LEAST_LOG]
    return np.array(kept).reshape(len(kept), len(p))


def _times(p: Floats, part: slice, odds: float) -> Floats:
    """Multiply the odds of some bins by ``odds``; they and the other bins keep their proportions."""
    q = p.copy()
    q[part] *= odds
    q /= q.sum()
    return q


@dataclass(frozen=True, slots=True)
class Judged:
    """The evidence on one variable."""

    days: float
    """Chance alone gives evidence this strong at most once in so many days."""
    visible: float
    """Change in a share of one half that would be found within a day at the current traffic."""
    since: float
    """When the strongest bet began (Unix time): about when the change did."""


class Variable:
    """The bets on one variable of a version against its ``reference``, from ``now`` (Unix time) on.

    ``begun``: what an earlier controller has found. Its evidence is divided evenly among the bets, which is as good a
    stake as any: all bets together own what they owned, and the right one soon owns most of it again.
    """

    def __init__(
        self, reference: drift.Bins, *, alarm_days: float, now: float = 0.0, begun: Judged | None = None
    ) -> None:
        p, self._size = drift.shares([*reference.values()]), sum(reference.values())
        expected = bets(p, self._size, ordered=drift.is_ordered(reference))
        count = len(expected)
        self.reference = reference
        self.last = begun or Judged(0.0, 1.0, now)
        self._gains = np.log(expected / p)
        self._alarm = alarm_days
        self._hour: dict[str, float] = {}
        """The counts of about the last hour (averaged with exponential decay), until ``_looked``."""
        self._looked = self._at = now
        """Unix time of the last look, and of the last one with values."""
        self._lately = 0.0
        """Texts per day, averaged with exponential decay over a day."""
        self._most = math.log(max(1, count) * alarm_days) + _ABOVE
        days, since = (begun.days, begun.since) if begun is not None else (0.0, 0.0)
        self._log_stake = np.full(count, math.log(days) if days > 0 else -math.inf)
        """Logarithm of the stake with which each bet began, in days' worth of money."""
        self._began = np.full(count, since)
        """When each bet began (Unix time)."""
        self._grown = np.zeros(count)
        """Logarithm of a unit's growth since then, before the factor ``m / (m + n)``."""
        self._seen = np.zeros(count)
        """Number of texts since then."""
        self._waiting = np.zeros(count)
        """Wealth received since then, in days' worth."""

    @property
    def is_judged(self) -> bool:
        """Whether the reference is large enough for any bet."""
        return len(self._gains) > 0

    def update(self, counts: Mapping[str, float], now: float) -> None:
        """Judge what was counted since the last look, by value; ``now`` is Unix time."""
        kept = math.exp((self._looked - now) / HOUR_S)
        self._looked = now
        hour = {name: self._hour.get(name, 0) * kept + counts.get(name, 0) for name in {**self._hour, **counts}}
        self._hour = {name: count for name, count in hour.items() if count > _LEAST_COUNT}
        if self.is_judged and any(counts.values()):
            seen = np.array([*drift.folded(counts, self.reference).values()])
            self._step(seen, max(0.0, now - self._at) / DAY_S, now)
            self._at = now

    def _step(self, counts: Floats, days: float, now: float) -> None:
        """Apply the counts (bins,) of the last ``days``."""
        texts = float(counts.sum())
        self._grown += self._gains @ counts
        self._seen += texts
        # At most a day's worth waits, so a bet after a long quiet time begins with no more than that.
        self._waiting = np.minimum(self._waiting + days, _MAX_WAITING)
        log_owned = np.minimum(self._log_stake + self._grown / (1 + self._seen / self._size), self._most)
        owned = np.exp(log_owned)  # money that waits is no evidence
        ended, full = owned <= self._waiting, log_owned >= self._most
        self._log_stake[ended] = np.log(np.maximum(self._waiting[ended], _LEAST_STAKE))
        self._waiting[ended] = 0.0
        # A bet at its upper limit restarts at that limit and keeps the time at which it began.
        self._log_stake[full] = self._most
        self._began[ended & ~full] = now
        self._grown[ended | full] = self._seen[ended | full] = 0.0
        self._lately = self._lately * math.exp(-days) + texts
        self.last = Judged(float(owned.mean()), self._visible(), float(self._began[owned.argmax()]))

    def _visible(self) -> float:
        """Return the change in a share that would be found within a day; see ``Judged``."""
        both = self._lately * self._size / (self._lately + self._size)
        log_growth = math.log(len(self._gains) * self._alarm / _USUAL_STAKE)
        return min(1.0, max(_LEAST_VISIBLE, math.sqrt(2 * log_growth / both) / 2)) if both > 0 else 1.0

    def shares(self) -> tuple[tuple[str, ...], drift.Floats, drift.Floats]:
        """Return the counts of about the last hour beside the reference; none of an idle one."""
        return drift.beside(self.reference, self._hour if sum(self._hour.values()) >= 1 else {})
