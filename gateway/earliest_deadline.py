"""One timer of the event loop for many deadlines. One each would cost more than the rest of their bookkeeping.

The owner keeps the deadlines, and says which one is new. Most are forgotten long before they are due, so the timer is
not moved when the earliest one ends. It then rings for nothing and is set for the earliest that is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

TIMER_S: Final = 1e-3
"""The event loop's timers count whole milliseconds, so a timer may ring so much too early."""
Expire = Callable[[float], float]
"""``expire(now)`` ends what is due at ``now`` (loop time) and returns the earliest deadline left, or infinity."""


class EarliestDeadline:
    """Calls its owner's ``expire`` when the earliest deadline comes. For use by one event loop."""

    __slots__ = ("_timer", "at")

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self.at = inf
        """The loop time that the timer is set for; infinite if it is not set."""

    def add(self, deadline: float, loop: asyncio.AbstractEventLoop, expire: Expire) -> None:
        """Add a deadline (loop time). ``expire`` is kept only while the timer is set: it refers back to the owner."""
        if deadline < self.at:
            self.cancel()
            self.at = deadline
            self._timer = loop.call_at(deadline, self._ring, loop, expire)

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.at = None, inf

    def _ring(self, loop: asyncio.AbstractEventLoop, expire: Expire) -> None:
        self._timer, self.at = None, inf
        self.add(expire(loop.time()), loop, expire)
