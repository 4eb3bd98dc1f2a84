"""The deadlines of the requests of one event loop.

Whatever a request waits for, its deadline is watched here only. Most requests end long before, and a timer for each
would cost more than the rest of its bookkeeping: all share one, which is set for the earliest deadline. When it rings,
all requests are looked at; so it rings 50 times a second at most.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.path.ask import Ask

_STEP_S: Final = 0.02
_EARLY_S: Final = 1e-3
"""The event loop's timers count whole milliseconds, so a timer may ring so much too early."""


class Deadlines:
    """Calls ``expire`` of each watched request at its deadline, or within 20 ms after it, unless it was forgotten."""

    def __init__(self) -> None:
        # Looking the running loop up costs a system call each time on Python 3.11.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: set[Ask] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = inf
        """The loop time that the timer is set for; infinite if it is not set. The earliest deadline is not before."""

    def watch(self, ask: Ask, timeout: float) -> None:
        """Make a request expire ``timeout`` seconds after it was first watched; a later deadline changes nothing.

        Raises its error if that is over.
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        now = loop.time()
        if ask not in self._watched:
            deadline = now + timeout
        elif timeout < ask.timeout:
            deadline = ask.deadline - ask.timeout + timeout
        else:
            return
        ask.timeout, ask.deadline = timeout, deadline
        if deadline <= now:
            raise ask.late()
        self._watched.add(ask)
        if deadline < self._rings_at:
            self._ring_at(deadline, loop)

    def forget(self, ask: Ask) -> None:
        """Forget a request: it does not expire any more."""
        self._watched.discard(ask)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_at = None, inf

    def _ring_at(self, deadline: float, loop: asyncio.AbstractEventLoop) -> None:
        self.close()
        self._timer, self._rings_at = loop.call_at(deadline, self._ring, loop), deadline

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self._timer, self._rings_at = None, inf
        for ask in [ask for ask in self._watched if ask.deadline <= now + _EARLY_S]:
            if ask in self._watched:  # else one that expired before has ended it
                self.forget(ask)
                ask.expire()
        earliest = max(min((ask.deadline for ask in self._watched), default=inf), now + _STEP_S)
        if self._watched and earliest < self._rings_at:
            self._ring_at(earliest, loop)
