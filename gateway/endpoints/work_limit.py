"""How much work one endpoint version holds at most, waiting and in calls, found out from what it observes. Pure.

Work is the time that an idle server needs for it, by the learned prices: of rows and padded tokens, each with its share
of a call. Beyond what keeps the servers busy, more of it in hand only waits. Where that begins is found by trying: the
limit goes up and down a little all the time, and the answers per second that came with each tell what more work in hand
brings. The limit moves up while one per cent more work brings at least ``_PAYS`` per cent more answers, and down when
it does not.

It is counted in what passes in some floors, a floor being the time of one call that is worth making at an idle server.
Latency alone would not do: it goes up with whatever others do to the same servers, and a limit that follows it goes up
too. The check of what comes of it does not follow.

What was not used up says nothing about the limit and changes nothing. Whether the limit should hold at all tells
``is_rising``: callers who wait for their answers may be many, but they do not become more all the time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Final

from gateway.endpoints.entries import BatchLimits
from gateway.prices import Prices

_LOST: Final = 0.04
"""Calls are as small as they can be with no more than this share of answers lost. Work may spend the time of two here,
one in front and its own, and beside that as much as a call costs without rows: the more that is, the more is lost when
arrivals come late.
"""
_LEAST_FLOORS: Final = 1.75
_LEAST_S: Final = 0.02
"""Work for so long is always taken in: an event loop, a network and a garbage collector are late by milliseconds."""
_CALLS: Final = 12
_PERIOD_S: Final = 0.1
"""The limit is looked at after so many calls, and so many seconds."""
_USED: Final = 0.75
"""A limit counts as used while so much of it is in hand."""
_WORTH: Final = 0.1
"""A call is worth making when no more than this share of its time goes with the call itself."""
_PAYS: Final = 0.15
_TIMES_MOST: Final = 3.0
_TRIED: Final = 1.08
"""So far up and down the limit goes to see what comes of it."""
_SEEN: Final = 16
"""Periods that are compared."""
_SPREAD: Final = 0.04**2
"""If the work in hand varied by less, nothing can be said."""
_STEP: Final = 1.05
"""The limit moves by so much at most in one period."""
_KNOWN: Final = 32
"""Calls after which prices are good enough to tell whether the work in hand rises."""
_RISE_S: Final = 0.08
"""The work in hand is noted this often at most, for ``is_rising``."""
_PARTS: Final = 3
"""It rises if it rose in each of so many parts of a while: who comes all at once and then waits fills two of them."""
_WHILES: Final = (6, 12, 24)
"""So many notes are a while."""
_RISES: Final = 0.4
"""So many floors at least in each part."""


class WorkLimit:
    """The limit of one batcher; ``seconds`` is infinite until as much was in hand as keeps the servers busy."""

    __slots__ = (
        "_held", "_is_up", "_note_at", "_now", "_prices", "_rate", "_seen", "_times", "floor", "floors", "is_rising",
        "limits", "per_row", "per_token", "seconds",
    )  # fmt: skip

    def __init__(self, prices: Prices, limits: BatchLimits) -> None:
        self._prices = prices
        self.limits = limits
        """Of the calls that are made now."""
        self.seconds = inf
        """The limit: seconds of one idle server's time."""
        self.floor = self.per_row = self.per_token = 0.0
        """What a call that is worth making takes; what a row and a token count, with their share of a call."""
        self.floors = 0.0
        """So many floors work may spend here before one server."""
        self._rate = 0.0
        """How many servers were busy while the limit was used up."""
        self._times = 1.0
        """The limit is so many times what passes in the time that is aimed at."""
        self._is_up = False
        self._seen: deque[_Period] = deque(maxlen=_SEEN)
        self._now = _Period()
        self._held: deque[float] = deque(maxlen=_WHILES[-1] + 1)
        """Work that was in hand lately."""
        self._note_at = 0.0
        self.is_rising = False
        """Whether more came than was answered for a while."""
        self._learn(1.0)

    def work(self, rows: int, tokens: int) -> float:
        """Return the work of so many rows with so many tokens in all, in seconds."""
        return self.per_row * rows + self.per_token * tokens

    def ended(self, now: float, rows: int, padded: int, held_rows: int, held_tokens: int) -> None:
        """Take in that a call has ended at ``now``, of so many rows and padded tokens, and what was in hand with it."""
        seen = self._now
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
            self._note(now, self.work(held_rows, held_tokens))
        if seen.calls >= _CALLS and seen.seconds >= _PERIOD_S:
            self._now = _Period(began=now)
            self._learn(seen.padded / seen.rows)
            self._adjust(seen)

    def _note(self, now: float, held: float) -> None:
        self._note_at = now + _RISE_S
        self._held.append(held)
        self.is_rising = self._prices.calls >= _KNOWN and any(
            self._rose(notes // _PARTS) for notes in _WHILES if len(self._held) > notes
        )

    def _rose(self, part: int) -> bool:
        seen, least = self._held, _RISES * self.floor
        return all(seen[-1 - n * part] - seen[-1 - (n + 1) * part] >= least for n in range(_PARTS))

    def most(self, servers: int) -> float:
        """Return the limit; before it was found out, what passes if so many servers are busy."""
        if self.seconds < inf or self._prices.calls < _CALLS:
            return self.seconds
        if seen := self._now.rows:
            self._learn(self._now.padded / seen)
        return servers * self._target(servers)

    def _target(self, servers: float) -> float:
        # Each has a call; the more there are, the sooner one of them is free, and what spreads arrivals out grows with
        # the root of their number.
        return max((1.0 + (self.floors - 1.0) / sqrt(max(servers, 1.0))) * self.floor, _LEAST_S)

    def _learn(self, tokens_per_row: float) -> None:
        prices, limits = self._prices, self.limits
        rows = most = max(min(limits.max_rows, limits.max_padded_tokens / max(tokens_per_row, 1.0)), 1.0)
        by_row = prices.row + prices.token * tokens_per_row
        if not prices.are_guessed and by_row:
            rows = min(max(prices.call * (1 / _WORTH - 1) / by_row, 1.0), most)
        self.per_row, self.per_token = prices.row + prices.call / rows, prices.token
        self.floor = prices.call + by_row * rows
        share = prices.call / self.floor
        kept = (1 - _LOST) * share / (1 - (1 - _LOST) * (1 - share))
        self.floors = max(2 * (share + (1 - share) * kept) + share, _LEAST_FLOORS)

    def _adjust(self, period: _Period) -> None:
        held, rate = self._measured(period)[0], self._busy(period)
        target = self._target(rate)
        if self.seconds == inf:
            if held < rate * target or self._knows_little(period):
                return
            self._rate = rate
        elif held < _USED * self.seconds:
            return
        elif self._knows_little(period):
            self.seconds *= _STEP
            return
        self._seen.append(period)
        self._rate += (rate - self._rate) / 2
        self._times = min(max(self._times * _STEP ** self._pays(), 1.0), _TIMES_MOST)
        self._is_up = not self._is_up
        self.seconds = self._rate * target * self._times * (_TRIED if self._is_up else 1 / _TRIED)

    def _knows_little(self, period: _Period) -> bool:
        """Whether calls were small and all alike: what larger ones would cost is anybody's guess."""
        most = min(self.limits.max_rows, self.limits.max_padded_tokens * period.rows / period.padded)
        return self._prices.are_guessed and period.rows * 2 < period.calls * most

    def _pays(self) -> float:
        """Return whether more work in hand pays: 1 yes, -1 no."""
        return min(max(self._brings() / _PAYS - 1.0, -1.0), 1.0)

    def _measured(self, period: _Period) -> tuple[float, float]:
        """Return the work that was in hand, and what was done per second; by the prices as they are known now."""
        held = self.work(period.held_rows, period.held_tokens) / period.calls
        return held, self.work(period.rows, period.padded) / period.seconds

    def _busy(self, period: _Period) -> float:
        """Return how many servers worked, by the prices as they are known now."""
        prices = self._prices
        return (prices.call * period.calls + prices.row * period.rows + prices.token * period.padded) / period.seconds

    def _brings(self) -> float:
        """Return how many per cent more answers one per cent more work in hand has brought lately."""
        seen = [(log(held), log(rate)) for held, rate in map(self._measured, self._seen)]
        count = len(seen)
        held, rate = sum(one for one, _ in seen) / count, sum(one for _, one in seen) / count
        spread = sum((one - held) ** 2 for one, _ in seen)
        if spread < count * _SPREAD:
            return _PAYS
        return sum((one - held) * (other - rate) for one, other in seen) / spread


@dataclass(slots=True)
class _Period:
    """Some calls in a row: what was in them, and what was in hand when each ended, added up."""

    began: float = 0.0
    seconds: float = 0.0
    calls: int = 0
    rows: int = 0
    padded: int = 0
    held_rows: int = 0
    held_tokens: int = 0
