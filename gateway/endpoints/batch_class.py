"""Throttles calls that hold nothing but work of class batch, so that other classes rarely wait for them. Pure.

A request of class default that arrives while a batch call runs waits for that call. So a batch call may use a server
only while most servers are idle, and for a tenth of the time beyond that, and it is kept short. If no other class has
sent anything for a second, batch work runs without these limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from gateway.endpoints.calls import CallInFlight
from gateway.endpoints.entries import Entry
from gateway.endpoints.unit import Unit
from gateway.trace import BATCH

_TIME_SHARE: Final = 0.1
"""If fewer than half of the servers are idle, batch calls take 10 % of the time."""
_MAX_LENGTH: Final = 2.0
"""A batch call takes at most twice as long as a call of the other classes."""
_ALONE_S: Final = 1.0
"""The limits apply until 1 s after the last call of another class."""
_SMOOTHING: Final = 1 / 16
"""The weight of the newest call in the average size of the other classes' calls."""


@dataclass(slots=True, eq=False, repr=False)
class BatchClassThrottle(Unit):
    """The throttle of one batcher."""

    _other_left_at: float = -math.inf
    """Clock time at which the last call of another class left."""
    _other_rows: float = 0.0
    """The average rows of such calls."""
    _other_padded: float = 0.0
    """The average padded tokens of such calls."""
    next_at: float = -math.inf
    """Clock time from which the next batch call may leave beside other classes."""

    def call_left(self, call: CallInFlight, rank: int) -> None:
        """Record a call that left; ``rank`` is the class of its first entry."""
        if rank == BATCH:
            self.next_at = call.started + self._capacity.prices.expect(call.rows, call.padded) / _TIME_SHARE
        else:
            self._other_left_at = call.started
            self._other_rows += (call.rows - self._other_rows) * _SMOOTHING
            self._other_padded += (call.padded - self._other_padded) * _SMOOTHING

    def must_wait(self) -> bool:
        """Return whether the queue holds only batch work that may not leave yet."""
        if not self._queue.is_batch_only:
            return False
        now = self._clock()
        if now > self._other_left_at + _ALONE_S:
            return False
        concurrency = self._capacity.concurrency
        idle = concurrency - len(self._calls.running)
        return idle < 1 or (now < self.next_at and (idle < 2 or 2 * idle <= concurrency))

    def shorten(self, batch: list[Entry[Any]]) -> list[Entry[Any]]:
        """Return as much of a batch call as the other classes can wait for, and at least its first entry.

        Called before the entries leave the queue.
        """
        if self._queue.class_rows[BATCH] < self._queue.rows or self._clock() > self._other_left_at + _ALONE_S:
            return batch
        prices, rows, longest = self._capacity.prices, 0, 0
        max_s = _MAX_LENGTH * prices.expect(self._other_rows, self._other_padded)
        for number, entry in enumerate(batch):
            rows, longest = rows + entry.count, max(longest, entry.longest)
            if number and prices.expect(rows, rows * longest) > max_s:
                return batch[:number]
        return batch
