"""The connections of one process: their number, how long each may keep the gateway waiting, and when they end.

A connection is in at most one of the first three queues at a time, and in none of them while its request is answered:

======== ========================================= ================ =====================================
queue    the gateway waits for                      at most          then
======== ========================================= ================ =====================================
heads    the first byte or the end of a head        head_timeout     closed, or 408 if a head was begun
bodies   the end of a request's body                body_timeout     408, or closed if it was answered
idle     the next request                           keep_alive       closed
unread   the client to read its answer              body_timeout     dropped (in addition to another queue)
======== ========================================= ================ =====================================

A connection whose request was refused for want of room rests in ``idle``: it is not read for ``retry_after`` seconds.

Nothing here reads or writes bytes. ``core.Connection`` puts connections into queues and takes them out.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.http.core import Connection

MAX_HEAD_BYTES: Final = 65_535
"""httptools stores positions in an address in 16 bits, so no head may be larger."""
_MAX_OPEN: Final = 10_000
_SHARE_OF_FILES: Final = 0.75
"""The rest is for connections to Triton, pipes to hooks, logs and models that are being prepared."""
_RETRIES_PER_SECOND: Final = 1000
"""Resting connections that are read again per second, about: their refusals take a few per cent of a core."""
_STEP_S: Final = 0.02
"""The shortest time between two looks at a queue, in seconds."""

# Why the gateway ends a connection, in addition to the kinds of refusals. A connection that ends because it was idle
# after an answer is not counted.
NO_ROOM: Final = "no_room"
"""It is refused, because every connection the process may hold is being answered."""
MADE_ROOM: Final = "made_room"
"""It ended for a new one, because it had waited longest."""
NOTHING_ASKED: Final = "nothing_asked"
"""No head has begun in time."""
NOT_READ: Final = "not_read"
"""The client does not read its answer."""


class TimeoutQueue:
    """Connections in the order in which they entered; one that stays for ``timeout`` seconds is passed to ``end``.

    One timer serves them all.
    """

    def __init__(self, timeout: float, end: Callable[[Connection], None]) -> None:
        self.timeout = timeout
        self._end = end
        self._since: dict[Connection, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        """Add the connection, unless it is in the queue already."""
        if connection in self._since:
            return
        self._since[connection] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self.timeout, self._look, loop)

    def leave(self, connection: Connection) -> None:
        """Remove the connection, if it is in the queue."""
        self._since.pop(connection, None)

    def longest(self) -> tuple[float, Connection] | None:
        """Return the connection that entered first, with the loop time at which it did."""
        for connection, since in self._since.items():
            return since, connection
        return None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        while (first := self.longest()) is not None:
            left = first[0] + self.timeout - now
            if left > 0.001:
                self._timer = loop.call_later(max(left, _STEP_S), self._look, loop)
                return
            self.leave(first[1])
            self._end(first[1])


@dataclass(eq=False, kw_only=True)
class Connections:
    """The limits on connections, their queues, and the open connections. Times in seconds.

    ``age``: a connection older than about this ends with its next answer; 0 for no limit. ``max_open`` 0: no limit.
    ``count(reason)`` is called for each connection that the gateway ends before its client
    does; ``reason`` is a refusal's kind or one of ``NO_ROOM``, ``MADE_ROOM``, ``NOTHING_ASKED`` and ``NOT_READ``.
    """

    keep_alive: float = 75.0
    head_timeout: float = 20.0
    body_timeout: float = 60.0
    max_head_bytes: int = MAX_HEAD_BYTES
    max_headers: int = 100
    max_open: int = 0
    age: float = 0.0
    count: Callable[[str], None] = lambda _reason: None
    is_leaving: bool = False
    open: set[Connection] = field(default_factory=set)
    resting: int = 0
    """Connections that are not read for a while."""

    def __post_init__(self) -> None:
        self.heads = TimeoutQueue(self.head_timeout, lambda connection: connection.head_is_late())
        self.bodies = TimeoutQueue(self.body_timeout, lambda connection: connection.body_is_late())
        self.idle = TimeoutQueue(self.keep_alive, lambda connection: connection.is_idle_too_long())
        self.unread = TimeoutQueue(self.body_timeout, lambda connection: connection.is_not_read())

    def has_room(self) -> bool:
        """Return whether a new connection, which is in ``open`` already, may stay.

        If there are too many, the one that has waited longest for its client's next byte is ended for it. If all of
        them are being answered, there is no room.
        """
        if not self.max_open or len(self.open) <= self.max_open:
            return True
        waiting = [found for line in (self.heads, self.idle) if (found := line.longest()) is not None]
        if not waiting:
            return False
        _, connection = min(waiting, key=lambda found: found[0])
        self.count(MADE_ROOM)
        connection.is_idle_too_long()
        return True

    def retry_after(self) -> float:
        """Return for how many seconds a connection rests that is refused now: the more rest, the longer, so that the
        refusals of callers that retry at once take a bounded share of the process.
        """
        return max(1.0, self.resting / _RETRIES_PER_SECOND)

    def leave(self) -> None:
        """Close every connection, old and new, after its next answer."""
        self.is_leaving = True
        for connection in tuple(self.open):
            connection.leave()


def room_for_connections(ports: int) -> int:
    """Return the number of connections that each port may hold, from the limit of open files (``ulimit -n``)."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _MAX_OPEN
    return max(1, min(_MAX_OPEN, int(files * _SHARE_OF_FILES / ports)))
