"""Chooses the server for each call: the one where it is expected to end first. Pure: callers pass the time.

A new call waits for the calls in flight at a server, and then takes its time at the speed of that server. The time for
a number of rows and elements is learned per model from all servers together (``Prices``), the slowdown of a server from
its own calls. A server that happens to get larger calls therefore does not count as slow. A server that pauses is
avoided as soon as its call is late, because it is expected to take as long again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import attrgetter
from statistics import median_low
from typing import Final, TypeVar

from gateway.prices import Prices

_MIN_CALLS: Final = 12
"""A server counts as fast as the others until it has answered 12 calls: the first ones also connect."""
_MEMORY: Final = 1 / 16
"""Weight of the newest call in a server's average."""
_MAX_SLOWDOWN: Final = 8.0
"""The highest slowdown that one call counts as, so that a single pause does not look like a lasting slowdown."""
_TOLERANCE: Final = 0.25
_MIN_EXCESS_S: Final = 2e-3
"""Servers whose slowdowns differ by less, or that differ by less than 2 ms per call, count as equally fast and are used
in rotation: a longer network path costs as much.
"""
_FORGET_S: Final = 10.0
"""A slow server gets a call after 10 s without one: it may be fast again."""
_LEARNED: Final = 64
_LEARN_EVERY_S: Final = 5e-3
"""After ``_LEARNED`` calls a model learns at most this often (seconds): learning costs some microseconds."""


class Server:
    """What is known of one server."""

    __slots__ = ("calls", "in_flight", "is_unhealthy", "missing", "owed", "pace", "since", "streams", "took")

    def __init__(self) -> None:
        self.is_unhealthy = False
        """Whether a transport has failed and no probe of its health has been answered since."""
        self.missing: set[str] = set()
        """Models that it did not have when they were last called there."""
        self.calls = 0
        self.in_flight = 0
        self.streams = 0
        """Streams among the calls in flight; their duration is unknown."""
        self.owed = 0.0
        """Expected seconds of all other calls in flight, together."""
        self.since = 0.0
        """When it presumably began with its current call, or has answered the last one."""
        self.took = 1.0
        """How many times as long as expected its calls take, on average."""
        self.pace = 1.0
        """Its slowdown: ``took`` relative to the other servers."""

    def ends(self, seconds: float, now: float) -> float:
        """Return the seconds until a new call of ``seconds`` would end there."""
        count = self.in_flight - self.streams
        if not count:
            return seconds * self.pace if now < self.since + _FORGET_S else min(self.pace, 1.0) * seconds
        served, one = now - self.since, self.owed / count
        waits = self.owed - served if served < one else self.owed - one + served - one
        return waits + seconds * self.pace


_in_flight: Final = attrgetter("in_flight")
S = TypeVar("S", bound=Server)


class Call:
    """One call in flight; ``seconds``: its expected duration at a server of usual speed."""

    __slots__ = ("began", "elements", "model", "owed", "rows", "seconds")

    def __init__(self, model: str, rows: int, elements: int, seconds: float) -> None:
        self.model = model
        self.rows = rows
        self.elements = elements
        self.seconds = seconds
        self.owed = self.began = 0.0


class Paces:
    """Expected durations by model, learned from calls."""

    def __init__(self) -> None:
        self._models: dict[str, tuple[Prices, list[float]]] = {}

    def call(self, model: str, rows: int, elements: int) -> Call:
        """Return a call that is to be made, of ``rows`` rows and ``elements`` elements of its first tensor."""
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = (Prices(), [0.0])
        return Call(model, rows, elements, known[0].expect(rows, elements))

    def forget(self, models: Collection[str]) -> None:
        """Forget all models but these."""
        self._models = {model: known for model, known in self._models.items() if model in models}

    def begin(self, server: Server, call: Call | None, now: float) -> None:
        """Record that a call is sent to a server; None for a stream, from which nothing is learned."""
        if call is None:
            server.in_flight += 1
            server.streams += 1
            return
        call.began = now
        call.owed = call.seconds * server.pace
        server.in_flight += 1
        server.owed += call.owed
        if server.in_flight - server.streams == 1:
            server.since = now

    def end(
        self, server: Server, call: Call | None, now: float, servers: Sequence[Server], *, was_answered: bool
    ) -> None:
        """Record that a call has ended."""
        server.in_flight -= 1
        if call is None:
            server.streams -= 1
            return
        server.owed = server.owed - call.owed if server.in_flight > server.streams else 0.0
        known = self._models.get(call.model)
        if known is None:
            return
        prices, learn_at = known
        behind, took = max(server.since - call.began, 0.0), now - call.began
        if was_answered:
            server.since = now
            if prices.calls < _LEARNED or now >= learn_at[0]:
                learn_at[0] = now + _LEARN_EVERY_S
                prices.learn(call.rows, call.elements, behind, took)
        own = took - prices.queueing * behind
        times = min(own / max(prices.expect(call.rows, call.elements), 1e-6), _MAX_SLOWDOWN)
        if not was_answered and times <= server.took:
            return  # its caller left early: it shows nothing
        server.calls += 1
        server.took += (times - server.took) * _MEMORY
        if servers and server.calls >= _MIN_CALLS:
            usual = median_low(other.took for other in servers)
            pace, excess = server.took / usual, abs(server.took - usual) * call.seconds
            server.pace = pace if abs(pace - 1.0) >= _TOLERANCE and excess >= _MIN_EXCESS_S else 1.0


def choose(
    servers: Sequence[S], model: str, start: int, tried: Collection[S], *, seconds: float = 0.0, now: float = 0.0
) -> S | None:
    """Return the server for a call of ``seconds``; None if all of them are in ``tried``.

    Of the servers that are healthy and have the model, it is the one where the call is expected to end first; if there
    are none, any other. ``start``, which grows with each call, rotates over equally good servers.
    """
    # The rotation skips bad servers beforehand: skipping them in place would give the next one twice the calls.
    left = [s for s in servers if not s.is_unhealthy and model not in s.missing and s not in tried]
    if not left:
        left = [s for s in servers if s not in tried]
        if not left:
            return None
        best_of = min((s.is_unhealthy, model in s.missing) for s in left)
        left = [s for s in left if (s.is_unhealthy, model in s.missing) == best_of]
    start %= len(left)
    rotated = left[start:] + left[:start]
    if not seconds:
        return min(rotated, key=_in_flight)
    return min(rotated, key=lambda server: server.ends(seconds, now))
