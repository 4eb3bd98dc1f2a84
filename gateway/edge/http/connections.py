"""The connections of one process: how many there may be, how long each may be waited for, and when they end.

A connection is in at most one of these lines at a time, and in none while its request is being answered:

======== ========================================= ================ =====================================
line     what it waits for                          at most          then
======== ========================================= ================ =====================================
heads    the first byte or the end of a head        head_timeout     closed, or 408 if a head was begun
bodies   the end of a request's body                body_timeout     408, or closed if it was answered
idle     its next request                           keep_alive       closed
unread   its client, to read what was written       body_timeout     dropped (beside any of the others)
======== ========================================= ================ =====================================

Beside that, a connection rests that was refused for want of room, and waits to be looked at while more are than may be
refused: see ``turns``.

Nothing here reads or writes bytes; ``protocol.GatewayProtocol`` puts connections into lines and takes them out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol

from gateway.edge.http.turns import TICK_S, Turns

_MAX_OPEN: Final = 10_000
_SHARE_OF_FILES: Final = 0.75
"""Triton's connections, hooks' pipes, logs and models in the making need files, too."""
_STEP_S: Final = 0.02
"""A line is not looked at more often than this."""

NO_ROOM: Final = "no_room"
MADE_ROOM: Final = "made_room"
NOTHING_ASKED: Final = "nothing_asked"
NOT_READ: Final = "not_read"
ENDS: Final = {
    NO_ROOM: "refused, because every connection the process may hold is being answered",
    MADE_ROOM: "ended for a new one, as the one that has waited longest",
    NOTHING_ASKED: "no head has begun in time",
    NOT_READ: "the client does not read what it is answered",
}
"""Why a connection ends, beside the kinds of refusals. One that is idle after an answer ends as agreed, uncounted."""


class Connection(Protocol):
    """What a line needs of a connection; ``protocol.GatewayProtocol`` is one."""

    def head_is_late(self) -> None:
        """End it: no head came in time."""
        ...

    def body_is_late(self) -> None:
        """End it: the body did not come in time."""
        ...

    def is_idle_too_long(self) -> None:
        """End it: nothing was asked for too long, or its place is needed."""
        ...

    def is_not_read(self) -> None:
        """Drop it: its client does not read."""
        ...

    def has_no_turn(self) -> None:
        """Refuse and end it, which waits to be looked at: its place is needed."""
        ...

    def leave(self) -> None:
        """Make its next answer, or the one under way, the last one."""
        ...


class Line:
    """Connections that wait for the same thing, in the order in which they began to, each for at most ``timeout``
    seconds. One timer for all of them.
    """

    def __init__(self, timeout: float, end: Callable[[Connection], None]) -> None:
        self.timeout = timeout
        self._end = end
        self._since: dict[Connection, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def enter(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        """Let the connection begin to wait, unless it does already."""
        if connection in self._since:
            return
        self._since[connection] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self.timeout, self._look, loop)

    def leave(self, connection: Connection) -> None:
        """Take the connection out, if it is in."""
        self._since.pop(connection, None)

    def longest(self) -> tuple[float, Connection] | None:
        """Return since when (loop time) the connection that waits longest has waited, and which it is."""
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


class Connections:
    """The limits on connections, the lines they wait in, and those that are open. Times in seconds.

    ``age``: after about so long a connection's next answer is its last, 0 for no end. ``max_open`` 0: no limit.
    ``room`` says how many requests would be let in now, ``is_urgent(head)`` whether one that begins like this seems to
    be of the most important class. ``count`` is told why a connection is ended that its client would have kept: a
    refusal's kind, or one of the words of ``ENDS``.
    """

    def __init__(
        self,
        *,
        keep_alive: float = 75.0,
        head_timeout: float = 20.0,
        body_timeout: float = 60.0,
        max_head_bytes: int = 64 << 10,
        max_headers: int = 100,
        max_open: int = 0,
        age: float = 0.0,
        room: Callable[[], int] = lambda: 1,
        is_urgent: Callable[[bytes], bool] = lambda _head: False,
        count: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self.count = count
        self.is_urgent = is_urgent
        self.max_head_bytes = max_head_bytes
        self.max_headers = max_headers
        self.max_open = max_open
        self.age = age
        self.is_leaving = False
        self.turns = Turns(room)
        self.open: Collection[Any] = ()
        """Every connection of the server: uvicorn's own set, from the first one on."""
        self.heads = Line(head_timeout, lambda connection: connection.head_is_late())
        self.bodies = Line(body_timeout, lambda connection: connection.body_is_late())
        self.idle = Line(keep_alive, lambda connection: connection.is_idle_too_long())
        self.unread = Line(body_timeout, lambda connection: connection.is_not_read())

    def has_room(self) -> bool:
        """Return whether one more connection, that is in ``open`` already, may stay.

        When there are too many, one makes room that waits to be refused, else the one that has waited longest for its
        client's next byte; when every one is being answered, there is none.
        """
        if not self.max_open or len(self.open) <= self.max_open:
            return True
        unseen: Any = self.turns.longest()
        if unseen is not None:
            self.count(MADE_ROOM)
            unseen.has_no_turn()
            return True
        waiting = [found for line in (self.heads, self.idle) if (found := line.longest()) is not None]
        if not waiting:
            return False
        _, connection = min(waiting, key=lambda found: found[0])
        self.forget(connection)
        self.count(MADE_ROOM)
        connection.is_idle_too_long()
        return True

    def refused(self, loop: asyncio.AbstractEventLoop, counts: float) -> None:
        """Count a refusal for want of room: others may have to wait for theirs."""
        self.turns.refused(counts)
        self.take_turns(loop)

    def take_turns(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look from now on whose turn it is."""
        if self.turns.begin(loop.time()):
            loop.call_later(TICK_S, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        goes_on = True
        try:
            goes_on = self.turns.look(loop.time())
        finally:  # whatever one connection has raised: the others wait for their turn
            if goes_on:
                loop.call_later(TICK_S, self._look, loop)

    def forget(self, connection: Connection) -> None:
        """Take a connection out of every line."""
        for line in (self.heads, self.bodies, self.idle, self.unread):
            line.leave(connection)

    def leave(self) -> None:
        """Make every answer from now on the last one on its connection, on those to come too."""
        self.is_leaving = True
        self.turns.let_all_go_on()
        for connection in tuple(self.open):
            connection.leave()


def room_for_connections(ports: int) -> int:
    """Return how many connections each port of this process may hold, by the files it may open (``ulimit -n``)."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows, which counts sockets otherwise
        return _MAX_OPEN
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _MAX_OPEN
    return max(1, min(_MAX_OPEN, int(files * _SHARE_OF_FILES / ports)))
