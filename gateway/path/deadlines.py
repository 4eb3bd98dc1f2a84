"""The deadlines of the requests of one event loop.

Most requests end long before their time-out, so all share one timer, which is set for the earliest deadline. When it
rings, all requests are looked at; so it rings 50 times a second at most.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final, Protocol

from gateway.earliest_deadline import TIMER_S, EarliestDeadline

_STEP_S: Final = 0.02


class Expires(Protocol):
    """An object with a deadline; hashed by identity."""

    deadline: float
    timeout: float
    is_watched: bool

    def late(self) -> Exception:
        """Return the error of one whose deadline has passed."""
        ...

    def expire(self) -> None:
        """End it; called once, at the deadline, unless ``forget`` was called before."""
        ...


class Deadlines:
    """Calls ``expire`` of each watched object at its deadline, or within 20 ms after it, unless it was forgotten."""

    def __init__(self) -> None:
        # Looking the running loop up costs a system call each time on Python 3.11.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: set[Expires] = set()
        self._expiry = EarliestDeadline()

    def watch(self, item: Expires, timeout: float) -> None:
        """Make an object expire ``timeout`` seconds after it was first watched; a later deadline changes nothing.

        Raises its error if that is over.
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        now = loop.time()
        if not item.is_watched:
            deadline = now + timeout
        elif timeout < item.timeout:
            deadline = item.deadline - item.timeout + timeout
        else:
            return
        item.timeout, item.deadline = timeout, deadline
        if deadline <= now:
            raise item.late()
        item.is_watched = True
        self._watched.add(item)
        if deadline < self._expiry.at:
            self._expiry.add(deadline, loop, self._expire)

    def forget(self, item: Expires) -> None:
        """Forget an object: it does not expire any more."""
        item.is_watched = False
        self._watched.discard(item)

    def close(self) -> None:
        """Stop the timer."""
        self._expiry.cancel()

    def _expire(self, now: float) -> float:
        for item in [item for item in self._watched if item.deadline <= now + TIMER_S]:
            if item.is_watched:  # else one that expired before has ended it
                self.forget(item)
                item.expire()
        return max(min((item.deadline for item in self._watched), default=inf), now + _STEP_S)
