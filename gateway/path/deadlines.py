"""The deadlines of the requests of one event loop.

Most requests end long before their time-out, so all share one timer, which is set for the earliest deadline. When it
rings, all requests are looked at; so it rings 50 times a second at most.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Final

from gateway.earliest_deadline import TIMER_S, EarliestDeadline

if TYPE_CHECKING:
    from gateway.path.ask import Ask

_STEP_S: Final = 0.02


class Deadlines:
    """Calls ``expire`` of each watched request at its deadline, or within 20 ms after it, unless it was forgotten."""

    def __init__(self) -> None:
        # Looking the running loop up costs a system call each time on Python 3.11.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: set[Ask] = set()
        self._expiry = EarliestDeadline()

    def watch(self, ask: Ask, timeout: float) -> None:
        """Make a request expire ``timeout`` seconds after it was first watched; a later deadline changes nothing.

        Raises its error if that is over.
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        now = loop.time()
        if not ask.is_watched:
            deadline = now + timeout
        elif timeout < ask.timeout:
            deadline = ask.deadline - ask.timeout + timeout
        else:
            return
        ask.timeout, ask.deadline = timeout, deadline
        if deadline <= now:
            raise ask.late()
        ask.is_watched = True
        self._watched.add(ask)
        if deadline < self._expiry.at:
            self._expiry.add(deadline, loop, self._expire)

    def forget(self, ask: Ask) -> None:
        """Forget a request: it does not expire any more."""
        ask.is_watched = False
        self._watched.discard(ask)

    def close(self) -> None:
        """Stop the timer."""
        self._expiry.cancel()

    def _expire(self, now: float) -> float:
        for ask in [ask for ask in self._watched if ask.deadline <= now + TIMER_S]:
            if ask.is_watched:  # else one that expired before has ended it
                self.forget(ask)
                ask.expire()
        return max(min((ask.deadline for ask in self._watched), default=inf), now + _STEP_S)
