"""Finds out how much work one endpoint version should have in hand at most, queued and in calls. Pure.

Work is the time that an idle server needs for it by the learned prices: the price of its rows and padded tokens, each
with its share of a call. Beyond what keeps the servers busy, more work in hand only waits longer. The limit is found by
trying (hill climbing): it goes up and down a little all the time, and the answers per second at each level show what
more work in hand brings. It moves up while 1 % more work brings at least ``_MIN_GAIN`` % more answers, and down if it
does not.

The limit is counted in floors. A floor is the time that a call worth making takes at an idle server. Latency alone
would be a bad signal: it also rises with the load that others put on the same servers, and a limit that follows it
rises too.

A limit that was not used up says nothing and does not change. ``is_rising`` says whether the limit should be in force
at all: callers that wait for their answers may be many, but they do not become more all the time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log, sqrt
from typing import Final

from gateway.endpoints.entries import BatchLimits
from gateway.prices import Prices, least_size

MAX_LOSS: Final = 0.04
"""Calls may be so small that 4 % of the answers are lost. Work may then spend the time of two such calls here (the one
in front and its own), plus the fixed price of a call: the higher that is, the more is lost if arrivals come late.
"""
_MIN_FLOORS: Final = 1.75
MIN_S: Final = 0.02
"""20 ms of work are always admitted: an event loop, a network and a garbage collector are late by milliseconds."""
_PERIOD_CALLS: Final = 12
_PERIOD_S: Final = 0.1
"""The limit is adjusted after 12 calls that took 0.1 s or more."""
_USED_SHARE: Final = 0.75
"""A limit counts as used if 75 % of it is in hand."""
_MAX_FIXED_SHARE: Final = 0.1
"""A call is worth making if its fixed price is at most 10 % of its time."""
_MIN_GAIN: Final = 0.15
_MAX_TIMES: Final = 3.0
_TRY_FACTOR: Final = 1.08
"""The limit goes up and down by 8 % to measure the effect."""
_MAX_PERIODS: Final = 16
"""The number of periods that are compared."""
_MIN_VARIANCE: Final = 0.04**2
"""If the logarithm of the work in hand varied by less, the effect cannot be measured."""
_MAX_STEP: Final = 1.05
"""The limit moves by 5 % at most in one period."""
_KNOWN_CALLS: Final = 32
"""The number of calls after which prices are good enough to tell whether the work in hand rises."""
_NOTE_S: Final = 0.08
"""For ``is_rising``, the work in hand is noted every 80 ms at most."""
_PARTS: Final = 3
"""Work rises if it rose in each third of a span. Requests that all arrive at once and then wait rise in two of them."""
_SPANS: Final = (3, 6, 12, 24, 48)
"""The lengths of the spans, in notes."""
_MIN_SPAN_S: Final = 6 * _NOTE_S
"""A span must take 0.48 s. Three notes do if calls are long, as behind those of many other gateways."""
_MIN_RISE: Final = 0.4
"""The rise in each third, in floors ..."""
_MIN_SPREADS: Final = 1.25
"""... and in spreads: the work of the root of the rows in hand, about as much as that varies by chance. If rows are
costly, a floor is the work of one or two rows, and 16 callers who wait for their answers would look like an overload.

Simulated with 6 ms per row: of 16 to 128 such callers with pauses, some were refused in most runs of a minute without
this, in a quarter with 1 spread, in none with 1.25. Of random arrivals at 0.8 times the capacity, 5 % were refused
without it, and none with 1.25. Twice the capacity is noticed within half a second.
"""


class WorkLimit:
    """The limit of one batcher; ``seconds`` is infinite until enough was in hand to keep the servers busy."""

    __slots__ = (
        "_is_up", "_note_at", "_notes", "_period", "_periods", "_prices", "_rate", "_times", "floor", "floors",
        "is_rising", "limits", "per_row", "per_token", "seconds",
    )  # fmt: skip

    def __init__(self, prices: Prices, limits: BatchLimits) -> None:
        self._prices = prices
        self.limits = limits
        """The limits of the calls that are made now."""
        self.seconds = inf
        """The limit: seconds of one idle server's time."""
        self.floor = self.per_row = self.per_token = 0.0
        """Seconds of a call that is worth making, and of a row and a token with their share of a call."""
        self.floors = 0.0
        """How many floors work may spend here if there is one server."""
        self._rate = 0.0
        """How many servers were busy while the limit was used up."""
        self._times = 1.0
        """The limit, as a multiple of the work that the servers do in the target time."""
        self._is_up = False
        self._periods: deque[_Period] = deque(maxlen=_MAX_PERIODS)
        self._period = _Period()
        self._notes: deque[tuple[float, int, int]] = deque(maxlen=_SPANS[-1] + 1)
        """The time, and the rows and tokens in hand, noted every 80 ms at most."""
        self._note_at = 0.0
        self.is_rising = False
        """Whether more work arrived than was done, for some time."""
        self._learn(1.0)

    def work(self, rows: int, tokens: int) -> float:
        """Return the work of ``rows`` rows with ``tokens`` tokens in total, in seconds."""
        return self.per_row * rows + self.per_token * tokens

    def ended(self, now: float, rows: int, padded: int, held_rows: int, held_tokens: int) -> None:
        """Record a call that ended at ``now`` with its rows and padded tokens, and what was in hand before its end."""
        seen = self._period
        if not seen.began:
            seen.began = now
            return
        seen.calls += 1
        seen.rows += rows
        seen.padded += padded
        seen.held_rows += held_rows
        seen.held_tokens += held_tokens
        seen.seconds = now - seen.began
        if now >= self._note_at:
            self._note(now, held_rows, held_tokens)
        if seen.calls >= _PERIOD_CALLS and seen.seconds >= _PERIOD_S:
            self._period = _Period(began=now)
            self._learn(seen.padded / seen.rows)
            self._adjust(seen)

    def _note(self, now: float, rows: int, tokens: int) -> None:
        self._note_at = now + _NOTE_S
        self._notes.append((now, rows, tokens))
        self.is_rising = self._prices.calls >= _KNOWN_CALLS and any(
            self._rose(notes // _PARTS) for notes in _SPANS if len(self._notes) > notes
        )

    def _rose(self, part: int) -> bool:
        ends = [self._notes[-1 - n * part] for n in range(_PARTS + 1)]
        if ends[0][0] - ends[-1][0] < _MIN_SPAN_S:
            return False
        held = [self.work(rows, tokens) for _, rows, tokens in ends]
        spread = held[0] / sqrt(max(ends[0][1], 1))
        least, limits = max(_MIN_RISE * self.floor, _MIN_SPREADS * spread), self.limits
        if limits.merges_all:
            # With more gateways, each sees less of the rise, and more of that is chance.
            least /= sqrt(limits.gateways.count)
        return all(later - earlier >= least for later, earlier in pairwise(held))

    def most(self, servers: int) -> float:
        """Return the limit; while it is not known, the work of ``servers`` busy servers in the target time."""
        if self.seconds < inf or self._prices.calls < _PERIOD_CALLS:
            return self.seconds
        if seen := self._period.rows:
            self._learn(self._period.padded / seen)
        return servers * self._target(servers)

    def _target(self, servers: float) -> float:
        # Each server has a call. The more servers there are, the sooner one is free, and the spread of arrivals grows
        # with the root of their number.
        return max((1.0 + (self.floors - 1.0) / sqrt(max(servers, 1.0))) * self.floor, MIN_S)

    def _learn(self, tokens_per_row: float) -> None:
        prices, limits = self._prices, self.limits
        rows = most = max(min(limits.max_rows, limits.max_padded_tokens / max(tokens_per_row, 1.0)), 1.0)
        by_row = prices.row + prices.token * tokens_per_row
        if not prices.are_guessed and by_row:
            rows = min(max(prices.call * (1 / _MAX_FIXED_SHARE - 1) / by_row, 1.0), most)
        self.per_row, self.per_token = prices.row + prices.call / rows, prices.token
        self.floor = prices.call + by_row * rows
        share = prices.call / self.floor
        size = least_size(1 - MAX_LOSS, share)
        self.floors = max(2 * (share + (1 - share) * size) + share, _MIN_FLOORS)

    def _adjust(self, period: _Period) -> None:
        held, rate = self._measured(period)[0], self._busy(period)
        target = self._target(rate)
        if self.seconds == inf:
            if held < rate * target or self._knows_little(period):
                return
            self._rate = rate
        elif held < _USED_SHARE * self.seconds:
            return
        elif self._knows_little(period):
            self.seconds *= _MAX_STEP
            return
        self._periods.append(period)
        self._rate += (rate - self._rate) / 2
        self._times = min(max(self._times * _MAX_STEP ** self._direction(), 1.0), _MAX_TIMES)
        self._is_up = not self._is_up
        self.seconds = self._rate * target * self._times * (_TRY_FACTOR if self._is_up else 1 / _TRY_FACTOR)

    def _knows_little(self, period: _Period) -> bool:
        """Return True if calls were small and all alike, so the cost of a larger call cannot be estimated."""
        most = min(self.limits.max_rows, self.limits.max_padded_tokens * period.rows / period.padded)
        return self._prices.are_guessed and period.rows * 2 < period.calls * most

    def _direction(self) -> float:
        """Return whether more work in hand brings enough answers: from 1 (yes) to -1 (no)."""
        return min(max(self._elasticity() / _MIN_GAIN - 1.0, -1.0), 1.0)

    def _measured(self, period: _Period) -> tuple[float, float]:
        """Return the work in hand and the work done per second, by the prices as they are known now."""
        held = self.work(period.held_rows, period.held_tokens) / period.calls
        return held, self.work(period.rows, period.padded) / period.seconds

    def _busy(self, period: _Period) -> float:
        """Return how many servers were busy, by the prices as they are known now."""
        prices = self._prices
        return (prices.call * period.calls + prices.row * period.rows + prices.token * period.padded) / period.seconds

    def _elasticity(self) -> float:
        """Return by how many per cent the answers rose for one per cent more work in hand."""
        seen = [(log(held), log(rate)) for held, rate in map(self._measured, self._periods)]
        count = len(seen)
        mean_held, mean_rate = sum(held for held, _ in seen) / count, sum(rate for _, rate in seen) / count
        spread = sum((held - mean_held) ** 2 for held, _ in seen)
        if spread < count * _MIN_VARIANCE:
            return _MIN_GAIN
        return sum((held - mean_held) * (rate - mean_rate) for held, rate in seen) / spread


@dataclass(slots=True)
class _Period:
    """Sums over some calls in a row: what was in them, and what was in hand when each ended."""

    began: float = 0.0
    seconds: float = 0.0
    calls: int = 0
    rows: int = 0
    padded: int = 0
    held_rows: int = 0
    held_tokens: int = 0
