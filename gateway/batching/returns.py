"""Waits for callers who are about to come back, if that saves a call. Pure.

Callers who send their next request when the last one is answered (a pool of threads, a load test) fall into two groups:
while the server works on the requests of one group, the other group waits. If most of a call's time is its fixed price,
as on a GPU, one call for all of them is better, even though the server is idle until they are back. So the next call
waits for the callers of the last one, up to half the price of a call, if those of earlier calls came back by then.
"""

from __future__ import annotations

from math import ceil, inf
from typing import Final

_BACK: Final = 0.9
"""Callers are back when as many rows arrived as 90 % of those that were answered."""
_MAX_WAIT: Final = 1 / 2
"""Waiting may take half the fixed price of a call, because building the next call takes time as well ..."""
_MAX_WAIT_S: Final = 0.05
"""... and 50 ms at most: beyond that, a caller who comes alone would notice."""
_MEMORY: Final = 1 / 8
"""The weight of the last call in the share of calls whose callers came back in time."""
_LIKELY: Final = 0.8
"""Callers are awaited if those of 80 % of the calls came back in time."""


class Returns:
    """The returning callers of one batcher. Times are clock times in seconds."""

    __slots__ = ("_answered", "_ended", "_share", "arrived", "target", "until")

    def __init__(self) -> None:
        self.arrived = 0
        """The rows that ever arrived."""
        self.target = inf
        """``arrived`` at which the callers of the last call are back; infinite if they are."""
        self.until = -inf
        """The time until which the next call waits for them."""
        self._ended, self._answered, self._share = 0.0, 0, 0.0

    @property
    def are_usual(self) -> bool:
        """Whether callers usually come back in time."""
        return self._share >= _LIKELY

    def longest(self, call_price: float) -> float:
        """Return the seconds that a call waits at most."""
        return min(_MAX_WAIT * call_price, _MAX_WAIT_S)

    def ended(self, rows: int, now: float, call_price: float) -> None:
        """Record that a call of ``rows`` rows ended; its callers are awaited from now on."""
        if self.target < inf:
            self._share -= self._share * _MEMORY
        self._ended, self._answered = now, rows
        self.target, self.until = self.arrived + ceil(_BACK * rows), now + self.longest(call_price)

    def are_back(self, rows: int, now: float) -> None:
        """Record that ``arrived`` has reached ``target``, with ``rows`` in hand."""
        # If all callers shared one call, they would take longer to come back.
        in_time = (now - self._ended) * max(rows, self._answered) <= (self.until - self._ended) * self._answered
        self._share += (in_time - self._share) * _MEMORY
        self.target = inf
