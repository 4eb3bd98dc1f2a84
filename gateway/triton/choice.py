"""Chooses the server for each call: the one where it is expected to end first. Pure: callers pass the time.

That is the server with the fewest calls in flight, and of those the one that has been busy with its call, or idle, for
the longest. A server that is slow, or pauses, has its calls in flight for longer, and so it gets fewer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar


class Server:
    """What is known of one server."""

    __slots__ = ("in_flight", "is_unhealthy", "missing", "since")

    def __init__(self) -> None:
        self.is_unhealthy = False
        """Whether a transport has failed and no probe of its health has been answered since."""
        self.missing: set[str] = set()
        """Models that it did not have when they were last called there."""
        self.in_flight = 0
        """Its calls, streams among them."""
        self.since = 0.0
        """When it presumably began with its current call, or has ended the last one."""

    def begin(self, now: float) -> None:
        """Count a call that is sent there."""
        if not self.in_flight:
            self.since = now
        self.in_flight += 1

    def end(self, now: float) -> None:
        """Count the end of a call."""
        self.in_flight -= 1
        self.since = now


S = TypeVar("S", bound=Server)


def choose(servers: Sequence[S], model: str, tried: Collection[S] = ()) -> S | None:
    """Return the server for a call of ``model``; None if all of them are in ``tried``.

    Servers that are healthy and have the model come first, then healthy ones, then the others.
    """
    left = [server for server in servers if server not in tried]
    return min(left, key=lambda s: (s.is_unhealthy, model in s.missing, s.in_flight, s.since)) if left else None
