"""Chooses the server for each call: the one where it is expected to end first. Pure: callers pass the time.

A new call waits for the calls in flight at a server, and then takes its time at the speed of that server. The time for
a number of rows and elements is learned per model from all servers together (``Prices``), the speed of a server from
its own calls. One that pauses is avoided as soon as its call is late: it is expected to take as long again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, TypeVar

from gateway.prices import Prices

_MEMORY: Final = 1 / 16
"""Weight of the newest call in a server's average."""
_LEAST_S: Final = 1e-6
"""A call is expected to take at least as long, also if all prices that apply to it are 0."""
_MOST: Final = 8.0
"""The most that one call counts as, so that a single pause does not look like a slow server."""
_MIN_CALLS: Final = 12
"""A server is not slow until it has answered 12 calls: the first ones also connect."""
_SLOW: Final = 1.25
_MIN_EXCESS_S: Final = 2e-3
"""Servers whose calls take less than 1.25 times as long as expected, or 2 ms more, are used in turn."""


class Call:
    """One call of ``rows`` rows and ``elements`` elements of its first tensor; what it takes is learned."""

    __slots__ = ("_elements", "_prices", "_rows", "began", "owed", "seconds")

    def __init__(self, prices: Prices, rows: int, elements: int) -> None:
        self._prices = prices
        self._rows = rows
        self._elements = elements
        self.seconds = prices.expect(rows, elements)
        """How long it is expected to take at an idle server of usual speed."""
        self.began = self.owed = 0.0

    def learn(self, behind: float, took: float) -> None:
        """Learn from an answer after ``took`` seconds; another call was in front of it for ``behind`` seconds."""
        self._prices.learn(self._rows, self._elements, behind, took)


class Server:
    """What is known of one server."""

    __slots__ = ("answered", "held", "in_flight", "is_unhealthy", "owed", "since", "streams", "took")

    def __init__(self) -> None:
        self.is_unhealthy = False
        """Whether a transport has failed and no probe of its health has been answered since."""
        self.held: frozenset[str] | None = None
        """The models that were ready when it was last asked, without those that it lacked since; None: not known."""
        self.in_flight = 0
        """Its calls, streams among them."""
        self.streams = 0
        """Streams among the calls in flight; their duration is unknown."""
        self.owed = 0.0
        """Expected seconds of all other calls in flight, together."""
        self.since = 0.0
        """When it presumably began with its current call, or has ended the last one."""
        self.answered = 0
        """The number of its answers."""
        self.took = 1.0
        """How many times as long as expected its calls take, on average."""

    def lacks(self, model: str) -> bool:
        """Return whether it is known not to have ``model``."""
        return self.held is not None and model not in self.held

    def fade(self) -> None:
        """Forget some of its speed, about once a second: one that was slow gets calls again, which tell."""
        self.took += (1.0 - self.took) * _MEMORY

    def expect(self, seconds: float) -> float:
        """Return how long a call that takes ``seconds`` at a server of usual speed takes there."""
        is_slow = self.took >= _SLOW and seconds * (self.took - 1.0) >= _MIN_EXCESS_S and self.answered >= _MIN_CALLS
        return seconds * self.took if is_slow else seconds

    def begin(self, call: Call | None, now: float) -> None:
        """Count a call that is sent there; None for one that is not timed."""
        if self.in_flight == self.streams:
            self.since = now
        self.in_flight += 1
        if call is None:
            self.streams += 1
        else:
            call.began, call.owed = now, self.expect(call.seconds)
            self.owed += call.owed

    def end(self, call: Call | None, now: float, *, was_answered: bool) -> None:
        """Count the end of a call. ``was_answered``: with a result, not an error."""
        self.in_flight -= 1
        if call is None:
            self.streams -= 1
        else:
            self.owed = self.owed - call.owed if self.in_flight > self.streams else 0.0
            behind, took = max(self.since - call.began, 0.0), now - call.began
            if was_answered:
                call.learn(behind, took)
                self.answered += 1
                times = (took - behind) / max(call.seconds, _LEAST_S)
                self.took += (min(times, _MOST) - self.took) * _MEMORY
        if was_answered or self.in_flight == self.streams:  # else the current call goes on
            self.since = now

    def waits(self, now: float) -> float:
        """Return the seconds until its calls in flight are expected to have ended, without streams."""
        if self.in_flight == self.streams:
            return 0.0
        one = self.owed / (self.in_flight - self.streams)
        return self.owed - one + abs(now - self.since - one)


S = TypeVar("S", bound=Server)


def choose(servers: Sequence[S], model: str, seconds: float, now: float, tried: Collection[S] = ()) -> S | None:
    """Return the server for a call of ``model`` and expected ``seconds``; None if all of them are in ``tried``.

    Servers that are healthy and have the model come first, then healthy ones, then the others. Of equally good ones, it
    is the one with fewer streams, and of those the one that has been idle or busy with its call for the longest.
    """
    left = [server for server in servers if server not in tried]

    def rank(server: S) -> tuple[bool, bool, float, int, float]:
        ends = server.waits(now) + server.expect(seconds)
        return server.is_unhealthy, server.lacks(model), ends, server.in_flight, server.since

    return min(left, key=rank) if left else None
