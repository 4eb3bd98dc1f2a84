"""Limits the work that one endpoint version has in hand, queued and in calls, while demand exceeds capacity. Pure.

Work is the time that an idle server needs for it by the learned prices: the price of its rows and tokens, with their
share of a call and, as in the last call, of padding. Two full calls are enough to keep a server busy: one that runs,
and one that waits behind it. More in hand would only wait longer.

Demand exceeds capacity if the work in hand rises three times by half of the limit and does not fall in between. Callers
that wait for their answers may be many, but they do not become more all the time.
"""

from __future__ import annotations

from math import inf
from typing import Final

from gateway.batching.entries import BatchLimits
from gateway.prices import Prices

_FIXED_SHARE: Final = 0.1
"""A call counts as full if its fixed price is at most 10 % of its time, even if more rows fit into it."""
_MIN_S: Final = 0.02
"""20 ms of work are always admitted: an event loop, a network and a garbage collector are late by milliseconds."""
_LOOK_S: Final = 0.2
_LOOK_CALLS: Final = 2
"""The least work in hand is compared every 0.2 s, or after 2 calls if those take longer."""
_RISES: Final = 3
"""Callers that all arrive at once and then wait for their answers make two rises at most."""
_FORGET: Final = 25
"""A rise is forgotten after 25 looks without another one."""


class WorkLimit:
    """The limit of one batcher. Times are in seconds."""

    __slots__ = (
        "_calls", "_least", "_level", "_limits", "_look_at", "_prices", "_quiet", "_rises", "full", "per_row",
        "per_token",
    )  # fmt: skip

    def __init__(self, prices: Prices, limits: BatchLimits) -> None:
        self._prices = prices
        self._limits = limits
        self.full = self.per_row = self.per_token = 0.0
        """Seconds of a full call, and of a row and a token with their share of a call and of its padding."""
        self._look_at, self._calls, self._least = 0.0, 0, inf
        self._level, self._rises, self._quiet = 0.0, 0, 0
        self.learn(1, 1, 1)

    def work(self, rows: int, tokens: int) -> float:
        """Return the work of ``rows`` rows with ``tokens`` tokens in total."""
        return self.per_row * rows + self.per_token * tokens

    def most(self, calls: float) -> float:
        """Return the work of ``calls`` full calls: the most that may be in hand."""
        return max(calls * self.full, _MIN_S)

    def learn(self, rows: int, padded: int, tokens: int) -> None:
        """Take over the prices, for rows that are as long and padded as those of the last call."""
        prices, limits, tokens_per_row = self._prices, self._limits, padded / rows
        full_rows = most = max(min(limits.max_rows, limits.max_padded_tokens / max(tokens_per_row, 1.0)), 1.0)
        by_row = prices.row + prices.token * tokens_per_row
        if by_row:
            full_rows = min(max(prices.call * (1 / _FIXED_SHARE - 1) / by_row, 1.0), most)
        self.per_row, self.per_token = prices.row + prices.call / full_rows, prices.token * padded / max(tokens, 1)
        self.full = prices.call + by_row * full_rows

    def rises(self, now: float, held: float, most: float) -> bool:
        """Record the work in hand when a call ended; return whether demand exceeds capacity. ``most``: the limit."""
        self._least = min(self._least, held)
        self._calls += 1
        if now < self._look_at or self._calls < _LOOK_CALLS or not self._prices.are_known:
            return self._rises >= _RISES
        least, self._least, self._calls, self._look_at = self._least, inf, 0, now + _LOOK_S
        self._quiet += 1
        if least < self._level or self._quiet >= _FORGET:
            self._level, self._rises, self._quiet = least, 0, 0
        elif least >= self._level + most / 2:
            self._level, self._rises, self._quiet = least, self._rises + 1, 0
        return self._rises >= _RISES
