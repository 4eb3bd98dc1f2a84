"""Limits the requests that one process holds at a time, and the bytes of their bodies; makes the refusals beyond that.

A permit is taken before a request's body is read, and returned after the last byte of its reply was written. An early
refusal costs microseconds. An unbounded queue would cost callers their deadlines, and the process its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from gateway.errors import Overloaded
from gateway.trace import BATCH, DEFAULT

SHARE: Final = 8
"""If several endpoints are served, one may hold 8 times as many requests as there are free places."""
CEILINGS: Final = (17 / 16, 1.0, 0.5)
"""The share of a limit that each class of priority may fill, by rank."""
PRESSED_S: Final = 5.0
"""Limits of work stay in force for 5 s after they were last needed."""


class Pressure:
    """Whether limits of work (``batching.limit``) are in force.

    ``rule``: ``auto`` (while more work arrives than is done, or requests are refused), ``always`` or ``off``. The
    process has one ``Pressure``, and each endpoint version has one ``below`` it, for its own work. That of the process
    is on while one below it is.
    """

    __slots__ = ("_above", "is_on", "may_change", "on_start", "until")

    def __init__(self, rule: str = "off", above: Pressure | None = None) -> None:
        self.may_change = rule == "auto"
        self.is_on = rule == "always"
        self.until = inf
        """Loop time at which it ends, unless it is pressed again."""
        self.on_start: Callable[[], None] = lambda: None
        """Called when it comes into force."""
        self._above = above

    def below(self) -> Pressure:
        """Return the pressure of one endpoint version, with the same rule."""
        return Pressure("auto" if self.may_change else "always" if self.is_on else "off", self)

    def press(self, now: float) -> None:
        """Put limits into force: more work arrives than is done, or a request was refused because of overload."""
        if self.may_change:
            self.until = now + PRESSED_S
            if not self.is_on:
                self.is_on = True
                self.on_start()
            if self._above is not None:
                self._above.press(now)

    def look(self, now: float) -> bool:
        """Lift limits that were not needed for 5 s; return whether they are in force."""
        if self.may_change and now >= self.until:
            self.is_on = False
        return self.is_on


NO_PRESSURE: Final = Pressure()


class Permit:
    """The permit of one request. Use it in a ``with``, or ``release`` it; a second release does nothing."""

    __slots__ = ("_permits", "size")

    def __init__(self, permits: Permits, size: int) -> None:
        self._permits: Permits | None = permits
        self.size = size

    def hold(self, size: int) -> None:
        """Count ``size`` more bytes for this request. Raises ``Overloaded`` if the limit is reached.

        A request that is the only one with a body may exceed the limit.
        """
        permits = self._permits
        if permits is None:
            return
        held = permits.held_bytes
        if held + size > permits.max_bytes and held > self.size:
            raise _full(held)
        permits.held_bytes += size
        self.size += size

    def release(self) -> None:
        """Return the permit."""
        permits = self._permits
        if permits is not None:
            self._permits = None
            permits.in_flight -= 1
            permits.held_bytes -= self.size

    def __enter__(self) -> Permit:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Permits:
    """Counts the requests of one event loop, and the bytes of their bodies. Not thread-safe.

    Each class of priority has a ceiling: class batch fills half of the places at most, class critical may exceed the
    limit by a sixteenth. One endpoint among several may hold ``SHARE`` times as many requests as there are free places.
    A single busy endpoint then gets nearly all places, two busy ones about half each, and some places stay free for an
    endpoint without requests. Nothing is reserved.
    """

    __slots__ = (
        "_easy", "ceilings", "easy", "held_bytes", "in_flight", "max_bytes", "max_requests", "pressure", "retry_after",
    )  # fmt: skip

    def __init__(self, max_requests: int, max_bytes: int, pressure: Pressure = NO_PRESSURE) -> None:
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.ceilings = (max_requests + max_requests // 16, max_requests, (max_requests + 1) // 2)
        """The maximum of requests in flight, by rank of the class."""
        self._easy = tuple(ceiling * SHARE // (SHARE + 1) for ceiling in self.ceilings)
        self.easy = self._easy
        """Below this number of requests, by rank, none can be refused, so the checks are skipped."""
        self.pressure = pressure
        if pressure.may_change:
            pressure.on_start = self._set_easy
        self._set_easy()
        self.in_flight = 0
        self.held_bytes = 0
        self.retry_after: Callable[[], float] = lambda: 1.0
        """Returns the seconds after which a refused caller may try again."""

    def look(self, now: float) -> bool:
        """Lift limits of work that are not needed; return whether one is still in force."""
        self.pressure.look(now)
        self._set_easy()
        return self.pressure.is_on

    def press(self, who: Iterable[Pressure], now: float) -> None:
        """Put limits of work into force: a request was refused for the work of these endpoints."""
        for one in who:
            one.press(now)

    def _set_easy(self) -> None:
        self.easy = (0, 0, 0) if self.pressure.is_on else self._easy

    def is_full(self, rank: int) -> bool:
        """Return whether one more request of a class would be refused."""
        return self.in_flight >= self.ceilings[rank]

    def full(self, rank: int = DEFAULT) -> Overloaded:
        """Return the refusal of one request too many."""
        is_batch = rank == BATCH and self.in_flight < self.max_requests
        why = "and takes no more of class batch beside them" if is_batch else "and takes no more"
        return self._refusal(
            f"this gateway already works on {self.ceilings[rank]} requests {why}",
            "batch_full" if is_batch else "gateway_full",
        )  # fmt: skip

    def share_is_full(self, path: str) -> Overloaded:
        """Return the refusal of a request whose endpoint has its share."""
        return self._refusal(f"this gateway works on as many requests of {path} as others leave room for",
                             "endpoint_full")  # fmt: skip

    def work_is_full(self, path: str, rank: int) -> Overloaded:
        """Return the refusal of a request whose endpoint has as much work in hand as keeps its model busy."""
        batch = " of class batch" if rank == BATCH else ""
        return self._refusal(f"{path} has as much work{batch} in hand as keeps its model busy", "work_full")

    def _refusal(self, message: str, because: str) -> Overloaded:
        return Overloaded(message, because=because, hint="try again", retry_after=self.retry_after())

    def take(self, size: int = 0, rank: int = DEFAULT) -> Permit:
        """Return a permit for a request with ``size`` bytes of body. Raises ``Overloaded``."""
        if self.in_flight >= self.ceilings[rank]:
            raise self.full(rank)
        held = self.held_bytes
        if held + size > self.max_bytes and held:
            raise _full(held)
        self.in_flight += 1
        self.held_bytes = held + size
        return Permit(self, size)

    def keep(self) -> Permit:
        """Return a permit for work that goes on after its request has ended. It is never refused."""
        self.in_flight += 1
        return Permit(self, 0)

    @property
    def is_half_full(self) -> bool:
        """True if there is no room for work without a waiting caller, such as shadow traffic."""
        return self.in_flight * 2 > self.max_requests or self.held_bytes * 2 > self.max_bytes


def _full(held: int) -> Overloaded:
    return Overloaded(
        f"this gateway already holds {held >> 20} MiB of requests", hint="try again, or send less at once",
        because="bytes_full", retry_after=1,
    )  # fmt: skip
