"""Decides when the next call leaves if calls are already running. Pure.

While a server is idle, a call leaves at once. Otherwise leaving early gains nothing: the call would wait at the server,
and requests that arrive in the meantime could not join it. So it leaves when it is full, when as many rows are here as
recently were at the same time, or shortly before the call in front of it is expected to end.

If the servers merge the calls of several gateways, requests that arrive later join the server's batch in a call of
their own. Then calls are small and leave at most every quarter of a call's time, without waiting for one in front.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from gateway.endpoints.batch_class import BatchClassThrottle
from gateway.endpoints.entries import BatchLimits
from gateway.endpoints.overload import OverloadControl
from gateway.endpoints.returns import Returns
from gateway.endpoints.unit import Unit
from gateway.trace import BATCH

_LEAD_S: Final = 1.2e-3
"""A call leaves 1.2 ms, plus the usual error of the prices, before the call in front ends, but not before half of that
call's time is over. The event loop may be busy, and the call has to be built and sent by then.
"""
_SHARED_SPREAD: Final = 0.1
"""While calls are split, the error counts as 10 %: the prices blur what others' calls cost."""
_PARALLEL_SHARE: Final = 1 / 4
"""At a server that works on several calls at a time, a call is worth making from a quarter of the others' size on."""
_FORGET: Final = 1 / 32
"""The expected number of rows falls by this share of the difference with every call, and rises at once."""
_REFUSING_CALLS: Final = 2.0
"""While requests are refused, at least two full calls of rows are expected: the refused ones were here as well."""


@dataclass(slots=True, eq=False, repr=False)
class Pacing(Unit):
    """The pacing of one batcher."""

    _batch_class: BatchClassThrottle
    _overload: OverloadControl
    _returns: Returns
    _expected_rows: float = 0.0
    """How many rows were recently here at the same time, queued and in calls."""
    _left_at: float = -math.inf
    """Clock time at which the last call left."""
    leave_at: float | None = None
    """Clock time at which a call behind another may leave; None if the calls have changed since it was computed."""
    wake_rows: float = 0.0
    """While the batcher waits for ``wake_at``: with so many queued rows, it should look again before that."""

    def may_leave(self) -> bool:
        """Return whether a call of what is queued may leave now; called only if fewer than ``max_running`` run."""
        queue, calls, capacity = self._queue, self._calls, self._capacity
        running = len(calls.running)
        if not running:
            return not (self._returns.is_waiting and self._returns.must_wait())
        batch_rows = queue.class_rows[BATCH]
        # Batch work makes no call of other classes leave earlier.
        rows = queue.rows - batch_rows or queue.rows
        if capacity.is_merged:
            if capacity.is_sated(calls.rows):
                return False
            return self._is_full(rows, capacity.merged_limits) or self._clock() >= self._leave_time()
        if running < capacity.servers.replicas:
            return True
        if self._returns.is_usual and self._returns.is_likely():
            return False
        if self._leaves_late():
            return self._clock() >= self._leave_time()
        if self._is_full(rows, capacity.limits):
            return True
        if capacity.is_parallel:
            if rows * running >= _PARALLEL_SHARE * calls.rows:
                return True
        elif rows + calls.rows >= self._expected_rows:
            return True
        return self._clock() >= self._leave_time()

    def wants_outlier(self) -> bool:
        """Return whether to send a call to an idle server that is too slow to share the load.

        That pays if so much is queued that it would finish before the other servers do, or if a request would have to
        be refused.
        """
        times_slower = self._capacity.servers.spare
        if times_slower == math.inf:
            return False
        rows = self._queue.rows + self._calls.rows
        full_calls = self._capacity.limits.max_rows * self._capacity.servers.replicas
        return self._overload.is_at(1.0) or rows >= full_calls * times_slower

    def wake_at(self) -> float | None:
        """Return the clock time at which the queue may leave; None if only the end of a call can change that."""
        queue, calls, capacity = self._queue, self._calls, self._capacity
        running = len(calls.running)
        if not queue.entries or running >= calls.max_running or (capacity.is_merged and capacity.is_sated(calls.rows)):
            return None
        if self._returns.is_waiting and not running:
            self.wake_rows = capacity.limits.max_rows
            return self._returns.until
        if running and self._returns.is_usual and self._returns.is_likely():
            self.wake_rows = capacity.limits.max_rows
            return self._returns.late_at()
        if capacity.is_merged:
            self.wake_rows = capacity.merged_limits.max_rows
        elif self._leaves_late():
            self.wake_rows = math.inf
        else:
            rows = calls.rows * _PARALLEL_SHARE / running if capacity.is_parallel and running else (
                self._expected_rows - calls.rows
            )  # fmt: skip
            self.wake_rows = max(min(rows, capacity.limits.max_rows), 0.0)
        if not self._batch_class.must_wait():
            return self._leave_time()
        return self._batch_class.next_at if running < capacity.concurrency else None

    def call_left(self, now: float) -> None:
        """Record that a call left at clock time ``now``."""
        self.leave_at = None
        self._left_at = now
        rows = self._queue.rows - self._queue.class_rows[BATCH] + self._calls.rows
        change = rows - self._expected_rows
        self._expected_rows += change if change > 0 else change * _FORGET

    def woke(self) -> None:
        """Record that ``wake_at`` has come: the next call may leave."""
        self.leave_at = 0.0

    def refused(self) -> None:
        """Record that a request was refused."""
        self._expected_rows = max(self._expected_rows, _REFUSING_CALLS * self._capacity.limits.max_rows)

    def _leaves_late(self) -> bool:
        """Return whether a call leaves only shortly before it is needed, even if it is full.

        This holds while the newest entries leave first, and while calls are split: otherwise the server would merge two
        calls of this gateway instead of one of each gateway.
        """
        return self._capacity.is_serial and (self._capacity.is_split or self._overload.is_newest_first())

    def _is_full(self, rows: int, limits: BatchLimits) -> bool:
        """Return whether a call of ``rows`` queued rows has no room for more. Beside batch work only rows count."""
        queue = self._queue
        return rows >= limits.max_rows or (not queue.class_rows[BATCH] and queue.tokens >= limits.max_padded_tokens)

    def _leave_time(self) -> float:
        capacity = self._capacity
        if self.leave_at is None and capacity.is_merged:
            self.leave_at = self._left_at + capacity.merged_interval
        if self.leave_at is None:
            front = self._calls.last()
            took = capacity.prices.expect(front.rows, front.padded)
            spread = _SHARED_SPREAD if capacity.is_split else capacity.prices.spread
            self.leave_at = capacity.expected_end(front) - min(_LEAD_S + spread * took, took / 2)
        return self.leave_at
