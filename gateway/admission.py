"""How many requests one process holds at a time, and the refusal beyond that.

``Limit`` is a pure value; ``Limiter`` counts. Refusing early costs microseconds; queueing without a bound costs every
caller its deadline.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import Overloaded


@dataclass(frozen=True, slots=True)
class Limit:
    """A fixed number of requests in flight."""

    most: int

    def admits(self, in_flight: int) -> bool:
        """True when one more request may enter beside ``in_flight``."""
        return in_flight < self.most


class Limiter:
    """Counts requests in flight of one event loop; not thread-safe by design."""

    __slots__ = ("_limit", "in_flight")

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self.in_flight = 0

    def admit(self) -> None:
        """Take a place. Raises ``Overloaded`` when there is none; every success must be followed by ``release``."""
        if not self._limit.admits(self.in_flight):
            raise Overloaded(
                f"this gateway already works on {self.in_flight} requests", hint="try again", retry_after=1
            )
        self.in_flight += 1

    def release(self) -> None:
        """Give the place back."""
        self.in_flight -= 1
