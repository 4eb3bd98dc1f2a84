"""Waits for callers who are about to come back, if that saves a call. Pure.

Callers who send their next request when the last one is answered (a pool of threads, a load test) fall into two groups:
while the server works on the requests of one group, the other group waits. If most of a call's time is its fixed price,
as on a GPU, one call for all of them is better, even though the server is idle until they are back. So the next call
waits for the callers of the last one, if those of earlier calls came back within half the price of a call.

A request waits here at most that long after the end of a call, and never if the callers usually do not come back. If
several servers or gateways share the calls, or an overload must be refused, nobody waits here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from gateway.endpoints.unit import Unit

_BACK: Final = 0.9
"""Callers are back when as many rows arrived as 90 % of those that were answered."""
_MAX_WAIT: Final = 1 / 2
"""Waiting may take half the fixed price of a call, because building the next call takes time as well ..."""
_MAX_WAIT_S: Final = 0.05
"""... and 50 ms at most: beyond that, a caller who comes alone would notice."""
_MEMORY: Final = 1 / 8
"""The weight of the last call in the share of calls whose callers came back in time."""
_LIKELY: Final = 0.8
"""Waiting begins if the callers of 80 % of the calls came back in time."""


@dataclass(slots=True, eq=False, repr=False)
class Returns(Unit):
    """The returning callers of one batcher."""

    target: float = math.inf
    """``EntryQueue.arrived`` at which the callers of the last call are back; infinite if they are, or none are awaited.
    """
    until: float = -math.inf
    """Clock time until which the next call waits for them."""
    is_waiting: bool = False
    """Whether the next call may have to wait for them."""
    is_usual: bool = False
    """Whether callers usually come back in time."""
    _ended_at: float = 0.0
    """Clock time at which the last call ended."""
    _answered: int = 0
    """The rows of that call."""
    _share: float = 0.0
    """The share of calls whose callers came back in time."""

    def ended(self, rows: int, now: float) -> None:
        """Record that a call of ``rows`` rows ended; its callers are awaited from now on."""
        if self.target < math.inf:
            self._came_back(in_time=False)
        self._ended_at, self._answered = now, rows
        self.target = self._queue.arrived + math.ceil(_BACK * rows)
        self.until = now + self._max_wait
        self.is_waiting = self.is_usual

    def reached(self, now: float) -> None:
        """Record that ``EntryQueue.arrived`` has reached ``target``."""
        # If all callers shared one call, they would take longer to come back.
        rows = max(self._queue.rows + self._calls.rows, self._answered)
        self._came_back(in_time=(now - self._ended_at) * rows <= (self.until - self._ended_at) * self._answered)
        self.target = math.inf
        self.is_waiting = False

    def must_wait(self) -> bool:
        """Return whether the next call waits although the server is idle; called only while ``is_waiting``."""
        self.is_waiting = self._clock() < self.until and self._is_worth_it(self.target - self._queue.arrived)
        return self.is_waiting

    def is_likely(self) -> bool:
        """Return whether the next call will wait for the callers of the running one, so it must not leave yet; called
        only while ``is_usual``.
        """
        return self._is_worth_it(self._calls.rows) and self._clock() < self.late_at()

    def late_at(self) -> float:
        """Return the clock time from which the running call is late. The next one does not wait for it any longer."""
        return self._capacity.expected_end(self._calls.last()) + self._max_wait

    @property
    def _max_wait(self) -> float:
        return min(_MAX_WAIT * self._capacity.prices.call, _MAX_WAIT_S)

    def _came_back(self, *, in_time: bool) -> None:
        self._share += (in_time - self._share) * _MEMORY
        self.is_usual = self._share >= _LIKELY

    def _is_worth_it(self, awaited: float) -> bool:
        """Return whether all rows fit into one call, and that call would be the only one at the server."""
        queue, limits = self._queue, self._capacity.limits
        rows = queue.rows + awaited
        return (
            rows <= limits.max_rows
            and rows * queue.tokens <= limits.max_padded_tokens * queue.rows
            and not any(queue.class_rows)
            and not limits.pressure.is_on
            and limits.gateways.count == 1
            and self._capacity.is_serial
        )
