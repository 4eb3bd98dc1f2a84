"""Chooses the server for each call, and ejects servers that are too slow. Pure: callers pass the time.

A call goes to the server where it is expected to end first: after the calls in flight there, at the speed of that
server. The time for a number of rows and elements is learned per model from all servers together (``Prices``). The
slowdown of a server is learned from its own calls. A server that happens to get larger calls therefore does not count
as slow. A server that pauses is avoided as soon as its call is late, because it is expected to take as long again.

A server that takes ``_SLOW`` times as long as the others is an **outlier** and no longer shares the calls. It gets a
single call if the queues at the others are so long that the call ends sooner there. It also gets **probes**, copies of
calls whose answers are not used; they show when it has recovered. At most half of the servers are outliers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from operator import attrgetter
from statistics import median
from typing import Final, TypeVar

from gateway.prices import Prices

_SLOW: Final = 2.0
"""Slowdown at which a server becomes an outlier; below ``_RECOVERED`` it shares the calls again."""
_RECOVERED: Final = 1.4
_MIN_EXCESS_S: Final = 2e-3
"""A server that takes longer by less than this per call is no outlier: a longer network path costs as much."""
_MIN_CALLS: Final = 12
"""Calls of a server before it can be an outlier."""
_MEMORY: Final = 1 / 16
"""Weight of the newest call in a server's average."""
_PROBE_WEIGHT: Final = 1 / 2
"""Weight of a probe: higher, because an outlier gets few."""
_MAX_SLOWDOWN: Final = 8.0
"""The highest slowdown that one call counts as, so that a single pause does not look like a lasting slowdown."""
_TOLERANCE: Final = 0.25
"""Servers whose slowdowns differ by less count as equally fast and are used in rotation."""
_PROBE_EVERY: Final = 16.0
_MIN_PROBE_S: Final = 1.0
"""An outlier gets a probe every ``_MIN_PROBE_S`` seconds, or after ``_PROBE_EVERY`` times the duration of the last."""
_SPARE: Final = 2
"""An outlier gets a call only if every other server has at least this many in flight."""
_LEARNED: Final = 64
_LEARN_EVERY_S: Final = 5e-3
"""After ``_LEARNED`` calls a model learns at most this often (seconds): learning costs some microseconds."""


class Server:
    """What is known of one server."""

    __slots__ = (
        "calls", "in_flight", "is_outlier", "is_unhealthy", "missing", "owed", "pace", "probe_at", "since",
        "streams", "took",
    )  # fmt: skip

    def __init__(self) -> None:
        self.is_unhealthy = False
        """Whether a transport has failed and no probe of its health has been answered since."""
        self.missing: set[str] = set()
        """Models that it did not have when they were last called there."""
        self.in_flight = 0
        self.streams = 0
        """Streams among the calls in flight; their duration is unknown."""
        self.owed = 0.0
        """Expected seconds of all other calls in flight, together."""
        self.since = 0.0
        """When it presumably began with its current call."""
        self.took = 1.0
        """How many times as long as expected its calls take, on average."""
        self.pace = 1.0
        """Its slowdown: ``took`` relative to the other servers."""
        self.calls = 0
        self.is_outlier = False
        self.probe_at = 0.0

    def waits(self, now: float) -> float:
        """Return the seconds that a new call would wait there."""
        count = self.in_flight - self.streams
        if not count:
            return 0.0
        served, one = now - self.since, self.owed / count
        return self.owed - served if served < one else self.owed - one + served - one


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
        self, server: Server, call: Call | None, now: float, servers: Sequence[Server], *, was_answered: bool,
        is_probe: bool = False,
    ) -> bool:  # fmt: skip
        """Record that a call has ended; return True if the server became an outlier or recovered."""
        server.in_flight -= 1
        if call is None:
            server.streams -= 1
            return False
        server.owed = server.owed - call.owed if server.in_flight > server.streams else 0.0
        if is_probe:
            server.probe_at = now + max(_MIN_PROBE_S, _PROBE_EVERY * (now - call.began))
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
        times = min(own / max(prices.expect(call.rows, call.elements), 1e-6), _MAX_SLOWDOWN)
        if not was_answered and times <= server.took:
            return False  # its caller left early: it shows nothing
        server.calls += 1
        server.took += (times - server.took) * (_PROBE_WEIGHT if is_probe else _MEMORY)
        return self._judge(server, call.seconds, servers)

    def _judge(self, server: Server, seconds: float, servers: Sequence[Server]) -> bool:
        others = [other.took for other in servers if other is not server and not other.is_outlier]
        if not others:
            return False
        usual = median(others)
        pace = server.took / usual
        is_plain = server.calls >= _MIN_CALLS and abs(server.took - usual) * seconds >= _MIN_EXCESS_S
        server.pace = pace if is_plain and abs(pace - 1.0) >= _TOLERANCE else 1.0
        if server.is_outlier:
            server.is_outlier = pace >= _RECOVERED
            return not server.is_outlier
        outliers = sum(other.is_outlier for other in servers)
        server.is_outlier = is_plain and pace >= _SLOW and 2 * (outliers + 1) <= len(servers)
        return server.is_outlier


def probed(servers: Sequence[S], model: str, now: float) -> S | None:
    """Return the outlier that is due for a probe; None if there is none."""
    return next((one for one in servers if _is_idle_outlier(one) and now >= one.probe_at and model not in one.missing),
                None)  # fmt: skip


def _is_idle_outlier(server: Server) -> bool:
    return server.is_outlier and not server.is_unhealthy and not server.in_flight


def spare(servers: Sequence[Server]) -> float:
    """Return the slowdown of the fastest idle outlier; infinite if there is none."""
    return min((one.pace for one in servers if _is_idle_outlier(one)), default=inf)


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
