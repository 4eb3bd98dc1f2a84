"""How many requests one process holds at a time, and how many bytes of their bodies; the refusal beyond that.

A permit is taken before a request's body is read and given back after the last byte of its answer was written.
Refusing early costs microseconds; queueing without a bound costs every caller its deadline, and the process its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from gateway.errors import Overloaded
from gateway.trace import BATCH, DEFAULT

SHARE: Final = 8
"""An endpoint may hold so many times what is free, beside others."""
CEILINGS: Final = (17 / 16, 1.0, 0.5)
"""What each class of priority may fill of a limit, by rank."""


PRESSED_S: Final = 5.0
"""So long after they were last needed limits of work hold."""


class Pressure:
    """Whether limits of work hold (``endpoints.limit``), and which. ``rule``: ``auto``, while more comes than is
    answered, or somebody is refused; ``always``; ``off``; or seconds of work that one server may have in hand, always.

    A process has one, and each endpoint version one ``below`` it, which is on only while more comes for this version
    than is answered, or somebody is refused for what it has in hand. That of the process is on while one below it is.
    """

    __slots__ = ("_above", "_below", "fixed", "is_on", "may_change", "tell", "until")

    def __init__(self, rule: str | float = "off", above: Pressure | None = None) -> None:
        self.fixed = rule if isinstance(rule, float) else 0.0
        self.may_change = rule == "auto"
        self.is_on = rule not in ("auto", "off")
        self.until = inf
        """When it goes, unless it is pressed again."""
        self.tell: Callable[[], None] = lambda: None
        """Called when it comes."""
        self._above = above
        self._below: list[Pressure] = []
        """Those that are on."""

    def below(self) -> Pressure:
        """Return the pressure of one endpoint version, by the same rule."""
        return Pressure(self.fixed or ("auto" if self.may_change else "always" if self.is_on else "off"), self)

    def press(self, now: float) -> None:
        """Take note that more comes than is answered, or that somebody was refused for want of room."""
        if self.may_change:
            if self._above is not None:
                self._above.lift(self, now)
            self.until = now + PRESSED_S
            if not self.is_on:
                self.is_on = True
                self.tell()

    def lift(self, below: Pressure, now: float) -> None:
        """Be on as long as what is below."""
        if not below.is_on:
            self._below.append(below)
        self.press(now)

    def look(self, now: float) -> None:
        """Let limits of work go where nobody was refused for a while."""
        if not self.may_change:
            return
        if self._below and now >= min([one.until for one in self._below]):
            for one in self._below:
                one.look(now)
            self._below = [one for one in self._below if one.is_on]
        if now >= self.until:
            self.is_on = False


NO_PRESSURE: Final = Pressure()


class Permit:
    """The right of one request to be here. Use it in a ``with``, or ``release`` it; a second release does nothing."""

    __slots__ = ("_permits", "size")

    def __init__(self, permits: Permits, size: int) -> None:
        self._permits: Permits | None = permits
        self.size = size

    def hold(self, size: int) -> None:
        """Count ``size`` more bytes that are held for this request. Raises ``Overloaded`` if there is no room.

        A request that holds all the bytes there are is alone, and gets what it asks for.
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
        """Give it back."""
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
    """Counts requests of one event loop, and the bytes of their bodies; not thread-safe by design.

    Who may still come in goes by what is free. A class of priority has a ceiling: ``batch`` takes half of the places at
    most, ``critical`` may go a sixteenth beyond the others. One endpoint among several may hold ``SHARE`` times what is
    free: alone it gets nearly all there is, two that want everything about half each, and there is always something
    left for one that asked for nothing yet. Nobody is counted among those who want something, and nothing is reserved.
    """

    __slots__ = (
        "_easy", "ceilings", "easy", "held_bytes", "in_flight", "max_bytes", "max_requests", "pressure", "retry_after",
    )  # fmt: skip

    def __init__(self, max_requests: int, max_bytes: int, pressure: Pressure = NO_PRESSURE) -> None:
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.ceilings = (max_requests + max_requests // 16, max_requests, (max_requests + 1) // 2)
        """Requests in flight at most, by rank of their class."""
        self._easy = tuple(ceiling * SHARE // (SHARE + 1) for ceiling in self.ceilings)
        self.easy = self._easy
        """Below so many nobody is refused, no endpoint can have its share, and no limit of work holds."""
        self.pressure = pressure
        if pressure.may_change:
            pressure.tell = self._set_easy
        self._set_easy()
        self.in_flight = 0
        self.held_bytes = 0
        self.retry_after: Callable[[], float] = lambda: 1.0
        """Seconds after which who is refused may ask again."""

    def look(self, now: float) -> bool:
        """Return whether limits of work hold."""
        self.pressure.look(now)
        self._set_easy()
        return self.pressure.is_on

    def press(self, who: Iterable[Pressure], now: float) -> None:
        """Let the limits of work of those hold for a while: somebody was refused for what they have in hand."""
        for one in who:
            one.press(now)

    def _set_easy(self) -> None:
        self.easy = (0, 0, 0) if self.pressure.is_on else self._easy

    def free(self) -> int:
        """Return how many requests of no special class would be let in now."""
        return self.max_requests - self.in_flight

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
        """Return the refusal of a request whose endpoint has as much work in hand as its servers need."""
        batch = " of class batch" if rank == BATCH else ""
        return self._refusal(f"{path} has as much work{batch} in hand as keeps its model busy", "work_full")

    def _refusal(self, message: str, because: str) -> Overloaded:
        return Overloaded(message, because=because, hint="try again", retry_after=self.retry_after())

    def take(self, size: int = 0, rank: int = DEFAULT) -> Permit:
        """Take a permit for a request of which ``size`` bytes are, or will be, held. Raises ``Overloaded``."""
        if self.in_flight >= self.ceilings[rank]:
            raise self.full(rank)
        held = self.held_bytes
        if held + size > self.max_bytes and held:
            raise _full(held)
        self.in_flight += 1
        self.held_bytes = held + size
        return Permit(self, size)

    @property
    def is_half_full(self) -> bool:
        """True if work that nobody waits for should stay away."""
        return self.in_flight * 2 > self.max_requests or self.held_bytes * 2 > self.max_bytes


def _full(held: int) -> Overloaded:
    return Overloaded(
        f"this gateway already holds {held >> 20} MiB of requests", hint="try again, or send less at once",
        because="bytes_full", retry_after=1,
    )  # fmt: skip
