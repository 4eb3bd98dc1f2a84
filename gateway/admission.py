"""How many requests one process holds at a time, and how many bytes of their bodies; the refusal beyond that.

A permit is taken before a request's body is read and given back after the last byte of its answer was written.
Refusing early costs microseconds; queueing without a bound costs every caller its deadline, and the process its memory.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.errors import Overloaded


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
    """Counts requests of one event loop, and the bytes of their bodies; not thread-safe by design."""

    __slots__ = ("held_bytes", "in_flight", "max_bytes", "max_requests", "retry_after")

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.in_flight = 0
        self.held_bytes = 0
        self.retry_after: Callable[[], float] = lambda: 1.0
        """Seconds after which who is refused may ask again."""

    def room(self) -> int:
        """Return how many requests would be let in now."""
        return self.max_requests - self.in_flight

    def full(self) -> Overloaded:
        """Return the refusal of one request too many."""
        return Overloaded(
            f"this gateway already works on {self.max_requests} requests", hint="try again",
            retry_after=self.retry_after(),
        )  # fmt: skip

    def take(self, size: int = 0) -> Permit:
        """Take a permit for a request of which ``size`` bytes are, or will be, held. Raises ``Overloaded``."""
        if self.in_flight >= self.max_requests:
            raise self.full()
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
        retry_after=1,
    )  # fmt: skip
