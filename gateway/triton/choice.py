"""Which of several servers gets the next call, and which of them is so slow that it gets none. Pure: times are given.

A call goes to the server where it is expected to end first: after what is under way there, in the time that it takes
there. How long a call of so many rows and elements takes is learned per model from all servers together (``Prices``);
how much longer than that a server takes, from its own calls. So a server that happens to get the larger calls is not
slow, and one that pauses is avoided as soon as its call is late: it is expected to take as long again.

A server that takes ``_SLOW`` times as long as the others is an **outlier**. It does not share the calls any more. It
gets one at a time if so much waits that it is done sooner there than at the others, and **probes**: copies of calls
whose answers nobody waits for. They tell when it is as fast as the others again. Half of the servers at most are
outliers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from operator import attrgetter
from statistics import median
from typing import Final, TypeVar

from gateway.prices import Prices

_SLOW: Final = 2.0
"""A server that takes so many times as long as the others is an outlier, until it takes less than ``_AGAIN`` times."""
_AGAIN: Final = 1.4
_LEAST_S: Final = 2e-3
"""Who takes longer by less than that per call is no outlier: a network further away costs as much."""
_SURE: Final = 12
"""Calls of a server after which it may be an outlier."""
_MEMORY: Final = 1 / 16
_PROBE_COUNTS: Final = 1 / 2
"""A probe counts more than a call: an outlier gets few."""
_MOST: Final = 8.0
"""No call says more than that it took so many times as long: a pause is not a pace."""
_ALIKE: Final = 0.25
"""Servers whose paces differ by less count as equally fast, and take turns."""
_PROBE_EVERY: Final = 16.0
_PROBE_LEAST_S: Final = 1.0
"""An outlier gets a probe every second, or when so many times the last one's time has gone by."""
_SPARE: Final = 2
"""Calls that all the others have when an outlier gets one."""
_LEARNED: Final = 64
_LEARN_EVERY_S: Final = 5e-3
"""Learning takes some microseconds: of many short calls some are enough."""


class Server:
    """What the choice knows of one server."""

    __slots__ = (
        "calls", "in_flight", "is_outlier", "is_unhealthy", "missing", "owed", "pace", "probe_at", "since",
        "streams", "took",
    )  # fmt: skip

    def __init__(self) -> None:
        self.is_unhealthy = False
        """One of its transports has failed, and it has not answered a question since."""
        self.missing: set[str] = set()
        """Models it did not have the last time."""
        self.in_flight = 0
        self.streams = 0
        """Of those in flight, calls with many answers: nobody knows how long they take."""
        self.owed = 0.0
        """Seconds that the other calls in flight are expected to take, together."""
        self.since = 0.0
        """When it began with the call that it is thought to work on."""
        self.took = 1.0
        """How many times as long as expected its calls take."""
        self.pace = 1.0
        """How many times as long as the other servers'."""
        self.calls = 0
        self.is_outlier = False
        self.probe_at = 0.0

    def waits(self, now: float) -> float:
        """Return how long a call would wait there."""
        count = self.in_flight - self.streams
        if not count:
            return 0.0
        served, one = now - self.since, self.owed / count
        return self.owed - served if served < one else self.owed - one + served - one


_in_flight: Final = attrgetter("in_flight")
S = TypeVar("S", bound=Server)


class Call:
    """One call under way: what it is expected to take at a server that is as fast as the others."""

    __slots__ = ("began", "elements", "model", "owed", "rows", "seconds")

    def __init__(self, model: str, rows: int, elements: int, seconds: float) -> None:
        self.model = model
        self.rows = rows
        self.elements = elements
        self.seconds = seconds
        self.owed = self.began = 0.0


class Paces:
    """What calls have shown of models and servers."""

    def __init__(self) -> None:
        self._models: dict[str, tuple[Prices, list[float]]] = {}

    def call(self, model: str, rows: int, elements: int) -> Call:
        """Return a call of so many rows and elements (of its first tensor) that is to be made."""
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = (Prices(), [0.0])
        return Call(model, rows, elements, known[0].expect(rows, elements))

    def forget(self, models: Collection[str]) -> None:
        """Forget all models but these."""
        self._models = {model: known for model, known in self._models.items() if model in models}

    def begin(self, server: Server, call: Call | None, now: float) -> None:
        """Take note that a call is sent to a server; None: one with many answers, of which nothing is learned."""
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
        self, server: Server, call: Call | None, now: float, servers: Sequence[Server], *, was_answered: bool,
        is_probe: bool = False,
    ) -> bool:  # fmt: skip
        """Take note that a call has ended; True if that makes the server an outlier, or ends that."""
        server.in_flight -= 1
        if call is None:
            server.streams -= 1
            return False
        server.owed = server.owed - call.owed if server.in_flight > server.streams else 0.0
        if is_probe:
            server.probe_at = now + max(_PROBE_LEAST_S, _PROBE_EVERY * (now - call.began))
        known = self._models.get(call.model)
        if known is None:
            return False
        prices, learn_at = known
        behind, took = max(server.since - call.began, 0.0), now - call.began
        if was_answered:
            server.since = now
            if not server.is_outlier and (prices.calls < _LEARNED or now >= learn_at[0]):
                learn_at[0] = now + _LEARN_EVERY_S
                prices.learn(call.rows, call.elements, behind, took)
        own = took - prices.queueing * behind
        times = min(own / max(prices.expect(call.rows, call.elements), 1e-6), _MOST)
        if not was_answered and times <= server.took:
            return False  # whoever left early has seen nothing
        server.calls += 1
        server.took += (times - server.took) * (_PROBE_COUNTS if is_probe else _MEMORY)
        return self._judge(server, call.seconds, servers)

    def _judge(self, server: Server, seconds: float, servers: Sequence[Server]) -> bool:
        others = [other.took for other in servers if other is not server and not other.is_outlier]
        if not others:
            return False
        usual = median(others)
        pace = server.took / usual
        is_plain = server.calls >= _SURE and abs(server.took - usual) * seconds >= _LEAST_S
        server.pace = pace if is_plain and abs(pace - 1.0) >= _ALIKE else 1.0
        if server.is_outlier:
            server.is_outlier = pace >= _AGAIN
            return not server.is_outlier
        outliers = sum(other.is_outlier for other in servers)
        server.is_outlier = is_plain and pace >= _SLOW and 2 * (outliers + 1) <= len(servers)
        return server.is_outlier


def probed(servers: Sequence[S], model: str, now: float) -> S | None:
    """Return the outlier that is to get a copy of a call now."""
    return next((one for one in servers if _is_idle_outlier(one) and now >= one.probe_at and model not in one.missing),
                None)  # fmt: skip


def _is_idle_outlier(server: Server) -> bool:
    return server.is_outlier and not server.is_unhealthy and not server.in_flight


def spare(servers: Sequence[Server]) -> float:
    """Return how many times as long as at the others a call takes at the fastest outlier that is idle; infinite if
    there is none.
    """
    return min((one.pace for one in servers if _is_idle_outlier(one)), default=inf)


def choose(
    servers: Sequence[S], model: str, start: int, tried: Collection[S], *, seconds: float = 0.0, now: float = 0.0
) -> S | None:
    """Return the server for a call of ``seconds``: of those that answer and have the model, the one where it is
    expected to end first; else any.

    Equally good ones take turns as ``start`` grows. None when every one is in ``tried``.
    """
    # Turns are taken among the good ones: passing over a bad one in line would give its neighbour twice the calls.
    left = [s for s in servers if not s.is_unhealthy and model not in s.missing and s not in tried]
    if not left:
        left = [s for s in servers if s not in tried]
        if not left:
            return None
        best_of = min((s.is_unhealthy, model in s.missing) for s in left)
        left = [s for s in left if (s.is_unhealthy, model in s.missing) == best_of]
    sharing = [s for s in left if not s.is_outlier]
    if sharing and len(sharing) < len(left):
        idle = [s for s in left if s.is_outlier and not s.in_flight]
        left = idle if idle and min(s.in_flight for s in sharing) >= _SPARE else sharing
    count = len(left)
    best = left[start % count]
    if not best.in_flight and best.pace <= 1.0:
        return best
    if not seconds:
        return min((left[(start + number) % count] for number in range(count)), key=_in_flight)
    ends = best.waits(now) + seconds * best.pace
    for number in range(1, count):
        other = left[(start + number) % count]
        at = other.waits(now) + seconds * other.pace
        if at < ends:
            best, ends = other, at
            if not other.in_flight and other.pace <= 1.0:
                break
    return best
