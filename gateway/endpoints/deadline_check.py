"""Finds the entries that cannot be answered before their deadline, from the learned prices. Pure.

Such an entry ends early, so its caller learns it at once and the entries behind it gain its place. The check assumes
the best case: no padding, all calls full, and prices a fifth lower than they were learned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from gateway.endpoints.capacity import KNOWN_CALLS
from gateway.endpoints.entries import Entry
from gateway.endpoints.unit import Unit

_BEST_CASE: Final = 0.8
"""Prices are wrong by some per cent. An entry is refused only if 80 % of the expected time is already too long."""
_NEAR_S: Final = 0.1
"""A deadline further away than this, plus four times the time for the whole queue, need not be checked."""
_NEAR_TIMES: Final = 4
_UPDATE_S: Final = _NEAR_S / 8
"""How often ``near`` is computed, in seconds."""
_rank: Final[Callable[[Entry[Any]], int]] = attrgetter("flow.rank")


@dataclass(slots=True, eq=False, repr=False)
class DeadlineCheck(Unit):
    """The check of one batcher."""

    near: float = -math.inf
    """Loop time. A deadline after it is certainly far enough away, so the check is skipped."""
    update_at: float = -math.inf
    """Loop time at which ``near`` should be computed again."""

    def update(self, now: float) -> None:
        """Compute ``near`` anew; ``now`` is loop time."""
        self.update_at = now + _UPDATE_S
        self.near = now + _NEAR_TIMES * self._expected_s(self._queue.rows, self._queue.tokens) + _NEAR_S

    def is_too_late(self, entry: Entry[Any], now: float) -> bool:
        """Return whether a new entry cannot be answered in time, behind everything of its class and above."""
        rank = entry.flow.rank
        return self._is_too_late(entry, self._queue.rows_up_to(rank), self._queue.tokens_up_to(rank), now)

    def too_late(self, now: float) -> list[Entry[Any]]:
        """Return the queued entries that cannot be answered in time any more."""
        rows = tokens = 0
        found: list[Entry[Any]] = []
        entries = self._queue.entries
        for entry in sorted(entries, key=_rank) if self._queue.is_mixed else entries:
            if self._is_too_late(entry, rows, tokens, now):
                found.append(entry)
            else:
                rows, tokens = rows + entry.count, tokens + entry.tokens
        return found

    def _is_too_late(self, entry: Entry[Any], rows: int, tokens: int, now: float) -> bool:
        # An entry that can leave at once is always tried. Otherwise a price that is wrong would refuse every request,
        # and no call would correct it.
        return (
            bool(self._calls.running)
            and self._capacity.prices.calls >= KNOWN_CALLS
            and entry.deadline < now + _BEST_CASE * self._expected_s(rows + entry.count, tokens + entry.tokens)
        )

    def _expected_s(self, rows: int, tokens: int) -> float:
        """Return the seconds until so many rows and tokens would be answered, if they leave next, without padding."""
        capacity, prices, limits = self._capacity, self._capacity.prices, self._capacity.limits
        concurrency = capacity.concurrency
        until_free = 0.0
        if len(self._calls.running) >= concurrency and not capacity.is_merged:
            until_free = max(self._calls.earliest_end(prices) - self._clock(), 0.0)
        calls = max(rows / limits.max_rows, tokens / limits.max_padded_tokens, 1.0)
        return until_free + (prices.call * calls + prices.row * rows + prices.token * tokens) / min(concurrency, calls)
