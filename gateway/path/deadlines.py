"""The deadlines of the requests of one event loop.

Most requests have the same long time-out and end long before it. They share one timer (a timing wheel): requests that
expire in the same eighth of a second are in one set, and the timer visits the sets that are due. A request joins and
leaves its set for one dictionary operation. A deadline less than a second away has a timer of its own. So short
time-outs are kept to the millisecond, long ones to an eighth of a second, and none is early.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final, Protocol

from gateway.earliest_deadline import EarliestDeadline

_SETS_PER_SECOND: Final = 8
_SHORT_S: Final = 1.0


class Expires(Protocol):
    """An object with a deadline; hashed by identity."""

    deadline: float
    timeout: float
    alarm: Alarm

    def late(self) -> Exception:
        """Return the error of one whose deadline has passed."""
        ...

    def expire(self) -> None:
        """End it; called once, at the deadline, unless ``forget`` was called before."""
        ...


Alarm = set["Expires"] | asyncio.TimerHandle | None
"""The set or the timer of an item; kept in the item itself."""


class Deadlines:
    """Calls ``expire`` of each watched object within an eighth of a second after its deadline, unless it was forgotten.

    An object that expires within ``short`` seconds has a timer of its own, and its time is exact.
    """

    def __init__(self, *, short: float = _SHORT_S) -> None:
        self._short = short
        # Looking the running loop up costs a system call each time on Python 3.11.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sets: dict[int, set[Expires]] = {}
        self._visits = EarliestDeadline()

    def watch(self, item: Expires, timeout: float) -> None:
        """Make an object expire ``timeout`` seconds after it was first watched; a later deadline changes nothing.

        Raises its error if that is over.
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        now = loop.time()
        if item.alarm is None:
            deadline = now + timeout
        elif timeout < item.timeout:
            deadline = item.deadline - item.timeout + timeout
            self.forget(item)
            if deadline <= now:
                item.timeout = timeout
                raise item.late()
        else:
            return
        item.timeout, item.deadline = timeout, deadline
        if deadline - now < self._short:
            item.alarm = loop.call_at(deadline, item.expire)
            return
        number = int(deadline * _SETS_PER_SECOND) + 1
        items = self._sets.get(number)
        if items is None:
            items = self._sets[number] = set()
            self._visits.add(number / _SETS_PER_SECOND, loop, self._visit)
        items.add(item)
        item.alarm = items

    def forget(self, item: Expires) -> None:
        """Forget an object: it does not expire any more."""
        alarm, item.alarm = item.alarm, None
        if type(alarm) is set:
            alarm.discard(item)
        elif isinstance(alarm, asyncio.TimerHandle):
            alarm.cancel()

    def _visit(self, now: float) -> float:
        for number in sorted(self._sets):
            if number / _SETS_PER_SECOND > now:
                break
            for item in list(self._sets.pop(number)):
                if item.alarm is not None:
                    item.expire()
        return min(self._sets, default=inf) / _SETS_PER_SECOND
