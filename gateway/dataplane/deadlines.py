"""The deadlines of the requests of one event loop, save those of a queue that keeps them itself, as the batcher does.

Most requests have the same long time-out and end long before it. They share one timer: requests that expire in the
same eighth of a second are a set, and the timer looks at the sets whose time has come. A request joins and leaves its
set for the price of one dictionary operation. Deadlines nearer than a second have a timer each, so that a short
time-out is kept to the millisecond; a long one is kept to an eighth of a second, never early.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

_PER_SECOND: Final = 8
_SHORT_S: Final = 1.0


class Expires(Protocol):
    """What a deadline ends; hashed by identity."""

    deadline: float
    timeout: float
    alarm: Alarm

    def expire(self) -> None:
        """Called once, at the deadline; ``forget`` was not called before."""
        ...


Alarm = set["Expires"] | asyncio.TimerHandle | None
"""What wakes one request; kept in the request itself."""


class Deadlines:
    """Calls ``expire`` of what is watched and not forgotten, within an eighth of a second after its deadline.

    What expires within ``short`` seconds has a timer of its own, which is gone when it is forgotten.
    """

    def __init__(self, *, short: float = _SHORT_S) -> None:
        self._short = short
        # Looking the running loop up costs a system call each time on Python 3.11.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sets: dict[int, set[Expires]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def due(self, one: Expires, timeout: float, passed: float = 0.0) -> None:
        """Write down when ``one`` expires: ``timeout`` seconds after it began, ``passed`` seconds ago; sets no timer.

        For what works on it that keeps its ``deadline`` (loop time) by itself, as the batcher does.
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        one.timeout = timeout
        one.deadline = loop.time() + timeout - passed

    def watch(self, one: Expires) -> None:
        """Have ``one`` expire at its deadline; a second call does nothing."""
        loop = self._loop
        if loop is None or one.alarm is not None:
            return
        deadline, now = one.deadline, loop.time()
        if deadline - now < self._short:
            one.alarm = loop.call_at(deadline, one.expire)
            return
        number = int(deadline * _PER_SECOND) + 1
        together = self._sets.get(number)
        if together is None:
            together = self._sets[number] = set()
            if self._timer is None:
                self._timer = loop.call_at(number / _PER_SECOND, self._look)
            elif self._timer.when() * _PER_SECOND > number:
                self._timer.cancel()
                self._timer = loop.call_at(number / _PER_SECOND, self._look)
        together.add(one)
        one.alarm = together

    def forget(self, one: Expires) -> None:
        """Forget ``one``."""
        alarm, one.alarm = one.alarm, None
        if type(alarm) is set:
            alarm.discard(one)
        elif isinstance(alarm, asyncio.TimerHandle):
            alarm.cancel()

    def _look(self) -> None:
        assert self._loop is not None  # noqa: S101 - it has called this
        self._timer = None
        now = self._loop.time()
        for number in sorted(self._sets):
            if number / _PER_SECOND > now:
                break
            for one in list(self._sets.pop(number)):
                if one.alarm is not None:
                    one.expire()
        if self._sets and self._timer is None:
            self._timer = self._loop.call_at(min(self._sets) / _PER_SECOND, self._look)
