"""How strong the evidence is that what comes now is not like the reference: one number per variable and per version.

Pure: counts in, days out. The number is a time: *chance alone gives evidence as strong as this at most once in so many
days*. Page, board and alert show it, and nothing else decides.

How it works (an e-detector, Shin, Ramdas and Rinaldo 2023). Each variable has a list of bets: "this bin has become 1.5
times as likely", "the values have moved up a little". A bet's money is multiplied, text by text, with how much more
likely the text is by the bet than by the reference; while nothing has changed it does not grow on average, whatever is
looked at and whenever. Every bet gets one unit of money a day. What has come in since it last began waits; when that is
more than what is left of its stake, the bet begins anew with it, so that a change is bet upon from about when it began.
All money together, over all bets of all variables, was a day's worth per day on average if nothing has changed: so it
reaches N days' worth at most once in N days. Variables that depend on each other change nothing in that, nor does it
matter how many texts there are in a day.

The reference is a sample, too. Of ``m`` values it says a share no better than ``m`` new texts do, so the logarithm of
what ``n`` texts have made of a stake counts ``m / (m + n)``: exactly the likelihood ratio of two normal samples. Bets
that the reference is too small for are not made.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from gateway.metrics.accumulator import Floats

DAY_S: Final = 86_400.0

_ODDS: Final = (1.5, 3.0, 10.0)
"""How many times as large the odds of a bin are by the bets on more of it."""
_RARE_ODDS: Final = (3.0, 10.0, 50.0)
_RARE: Final = 0.01
_HARDLY_EVER_ODDS: Final = (50.0, 1000.0)
_HARDLY_EVER: Final = 0.0003
"""A bin the reference hardly knows: if it becomes a part of what comes, it does so by far."""
_LESS_ODDS: Final = (0.67, 0.33)
_COMMON: Final = 0.05
"""A bin with a larger share is bet to have become rarer, too."""
_TILTS: Final = (0.2, 0.45, 1.0)
"""By how many of the reference's deviations ordered values have moved by the bets on larger and smaller values."""
_SPREADS: Final = (-0.3, 0.3)
_LEAST_LOG: Final = 20.0
"""What a bet must be able to make of its stake (logarithm) if it is right, however many texts come."""
_ABOVE: Final = 4.0
"""Logarithm of how much more than what alarms a bet may own: more would only keep an alarm alive when all is well."""
_MOST_WAITING: Final = 1.0
_LEAST_STAKE: Final = 1e-300
_LEAST_VISIBLE: Final = 0.05
"""The weakest bets lose on smaller changes: five points of a share of one half are not worth anybody's time."""
_USUAL_STAKE: Final = 0.01
"""Days' worth of money that a bet has begun with when something changes: about a quarter of an hour's."""


def bets(p: Floats, size: float, *, ordered: bool, never: Collection[int] = ()) -> Floats:
    """Return the shares that the bets on one variable expect: a row per bet, a column per bin.

    ``p`` is the reference's share of each bin, of ``size`` values; none is 0. ``ordered``: the bins are those of a
    number, in their order, the last one (missing) aside. ``never``: bins that nothing can be in, which nobody bets on.
    """
    found: list[Floats] = _tilted(p) if ordered else []
    usual = (_ODDS[1],) if ordered else _ODDS
    odds_of = [usual if share >= _RARE else _RARE_ODDS if share >= _HARDLY_EVER else _HARDLY_EVER_ODDS for share in p]
    found += [_times(p, b, odds) for b, several in enumerate(odds_of) if b not in never for odds in several]
    common = np.flatnonzero(p >= _COMMON)
    if not ordered and len(common) > 2:  # of two, more of the one is less of the other
        found += [_times(p, b, odds) for b in common.tolist() for odds in _LESS_ODDS]
    kept = [q for q in found if size * float(np.sum(q * np.log(q / p))) >= _LEAST_LOG]
    return np.array(kept).reshape(len(kept), len(p))


def _times(p: Floats, bin_: int, odds: float) -> Floats:
    """The shares if the odds of one bin were ``odds`` times as large, the others among themselves as before."""
    q = p.copy()
    q[bin_] *= odds
    q /= q.sum()
    return q


def _tilted(p: Floats) -> list[Floats]:
    """The shares if ordered values had moved (all but the last bin, the missing): by their normal scores."""
    if len(p) < 4:
        return []
    whole = p[:-1] / p[:-1].sum()
    normal = NormalDist()
    scores = np.array([normal.inv_cdf(float(middle)) for middle in np.cumsum(whole) - whole / 2])
    square = scores * scores
    found = [_by(p, scores * sign * tilt) for tilt in _TILTS for sign in (-1, 1)]
    return found + [_by(p, (square - float(whole @ square)) * spread) for spread in _SPREADS]


def _by(p: Floats, logs: Floats) -> Floats:
    q = p[:-1] * np.exp(logs)
    moved: Floats = np.append(q / q.sum() * p[:-1].sum(), p[-1])
    return moved


@dataclass(slots=True)
class Purse:
    """The money of bets; arrays have one number per bet last (first, if many are simulated, one per endpoint)."""

    log_stake: Floats
    """Logarithm of the days' worth of money that each bet began with."""
    grown: Floats
    """Logarithm of what one unit has become since, before it counts ``m / (m + n)``."""
    seen: Floats
    """Texts since."""
    waiting: Floats
    """Days' worth of money that came in since."""

    @classmethod
    def new(cls, *shape: int) -> Purse:
        """Return bets without any money."""
        return cls(np.full(shape, -math.inf), np.zeros(shape), np.zeros(shape), np.zeros(shape))

    def step(self, grown: Floats, texts: Floats | float, days: float, size: Floats | float, most: float) -> Floats:
        """Take what ``texts`` texts within ``days`` make of one unit on each bet (logarithm).

        ``size`` is how many values the reference was made of (infinite: it is none), ``most`` the logarithm of the most
        a bet may own.
        Returns what the bets own, in days' worth of money; what waits is no evidence.
        """
        self.grown += grown
        self.seen += texts
        # Nobody bets more than a day's worth on news, however long nothing came.
        self.waiting = np.minimum(self.waiting + days, _MOST_WAITING)
        log_owned = np.minimum(self.log_stake + self.grown / (1 + self.seen / size), most)
        owned: Floats = np.exp(log_owned)
        ended = owned <= self.waiting
        self.log_stake[ended] = np.log(np.maximum(self.waiting[ended], _LEAST_STAKE))
        full = log_owned >= most
        self.log_stake[full] = most
        self.waiting[ended] = 0.0
        anew = ended | full
        self.grown[anew] = self.seen[anew] = 0.0
        return owned


@dataclass(frozen=True, slots=True)
class Judged:
    """What is known of one variable."""

    days: float
    """Chance alone gives evidence as strong as this at most once in so many days."""
    visible: float
    """How far the share of a category that has one half must move to be found within a day at today's traffic."""
    since: float
    """When the strongest bet began (Unix time): about when what it bets on did."""


class Money:
    """The money of the bets on one variable, and when the strongest began. ``days``: for so many it has come in."""

    def __init__(self, bets: int, alarm_days: float, days: float = 0.0) -> None:
        self._most = math.log(max(1, bets) * alarm_days) + _ABOVE
        self.purse = Purse.new(bets)
        self.purse.waiting += days
        self.began = np.zeros(bets)

    def step(self, grown: Floats, texts: float, days: float, size: float, now: float) -> tuple[float, float]:
        """As ``Purse.step``; return the evidence (see ``Judged.days``) and when the strongest bet began."""
        owned = self.purse.step(grown, texts, days, size, self._most)
        # One that owns all it may goes on from there; what it has found began before.
        self.began[(self.purse.seen == 0) & (self.purse.log_stake < self._most)] = now
        return float(owned.mean()), float(self.began[owned.argmax()])


class Variable:
    """The bets on one variable, against one reference (``p``, ``size``: see ``bets``)."""

    def __init__(
        self, p: Floats, size: float, *, ordered: bool, alarm_days: float, never: Collection[int] = ()
    ) -> None:
        expected = bets(p, size, ordered=ordered, never=never)
        self._gains = np.log(expected / p)
        self._size = size
        self._alarm = alarm_days
        self._lately = 0.0
        """Texts a day, the last day's above all."""
        self._money = Money(len(expected), alarm_days)

    @property
    def is_judged(self) -> bool:
        """Whether the reference is large enough to bet against."""
        return len(self._gains) > 0

    def step(self, counts: Floats, days: float, now: float) -> Judged:
        """Take what was counted in each bin within the ``days`` until ``now`` (Unix time)."""
        texts = float(counts.sum())
        evidence, began = self._money.step(self._gains @ counts, texts, days, self._size, now)
        self._lately = self._lately * math.exp(-days) + texts
        return Judged(evidence, self.visible(), began)

    def visible(self) -> float:
        """Return how far a share must move to be found within a day; see ``Judged``."""
        both = self._lately * self._size / (self._lately + self._size)
        return visible(both, len(self._gains) * self._alarm / _USUAL_STAKE)

    def to_json(self) -> list[Any]:
        """Return what must survive a restart."""
        return [self._lately, *(column.tolist() for column in self._columns())]

    def restore(self, stored: Sequence[Any]) -> None:
        """Go on from what ``to_json`` returned. Raises ``ValueError`` or ``TypeError`` if it was of other bets."""
        lately, *columns = stored
        log_stake, grown, seen, waiting, began = (
            np.array([-math.inf if one is None else one for one in column], dtype=np.float64) for column in columns
        )
        if {len(column) for column in columns} != {len(self._gains)}:
            raise ValueError("of other bets")
        self._money.purse, self._money.began = Purse(log_stake, grown, seen, waiting), began
        self._lately = float(lately)

    def _columns(self) -> tuple[Floats, ...]:
        purse = self._money.purse
        return purse.log_stake, purse.grown, purse.seen, purse.waiting, self._money.began


def visible(both: float, growth: float) -> float:
    """Return how far a share of one half must move for ``both`` values to multiply a stake by ``growth``.

    ``both``: ``n·m/(n+m)`` of ``n`` values that are compared with ``m``.
    """
    return min(1.0, max(_LEAST_VISIBLE, math.sqrt(2 * math.log(growth) / both) / 2)) if both > 0 else 1.0
