"""Paces refusals while the process is overloaded: they get a bounded share of its time, answers get the rest.

A refusal costs a fifth of an answer, and a refused client may retry at once. Unpaced, a flood of refusals would take
all the time, and admitted requests would wait behind it. Two kinds of connection are therefore not read at once:

- A connection that was refused is **paused**. Its next request is read when there is room, or when its pause is over.
- A connection whose first request comes after the refusal budget is spent **waits**. Client addresses are served in
  turn. Within an address mostly the newest connection is read first, so that a new client gets a quick answer, and now
  and then the oldest, so that none waits forever.

A refusal on a new connection costs more of the budget, because opening and closing a connection costs more than a
refusal. The budget per second follows the lateness of the event loop: a busy process refuses fewer.

A request that would be admitted does not wait (see ``protocol.GatewayProtocol``), and requests of class critical are
read first.

Pure: callers pass the time. ``connections.Connections`` keeps the timer.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Protocol

TICK_S: Final = 5e-3
"""Seconds between two calls of ``tick``."""
MIN_PER_SECOND: Final = 1000.0
"""Refusals per second that even a fully busy process makes: about 3 % of its time."""
MAX_PER_SECOND: Final = 26_000.0
"""The most refusals per second: 0.6 of a core if each comes on a new connection, most of it for opening and closing.
At 20,000, callers on 5,000 new connections a second (as many as were refused) waited for seconds while the process used
0.3 of a core. At 40,000, callers that retry at once took 0.9 of a core.
"""
RETRIES_PER_SECOND: Final = 1000.0
"""Paused connections that are read again per second."""
NEW_CONNECTION_COST: Final = 4.0
"""Refusals that a refusal on a new connection counts as."""
OLDEST_EVERY: Final = 8
"""Of the waiting connections of an address, every eighth to be read is the oldest."""
MIN_PAUSE_S: Final = 1.0
"""A pause lasts between half of this and all of it; ``Retry-After`` is at least this."""
_MAX_PER_TICK: Final = int(MAX_PER_SECOND * TICK_S / 2)
"""Connections that one tick reads at most, before the event loop does its other work."""
_LATE_S: Final = 15e-3
"""The event loop counts as late above this. Writing all answers of one call to Triton takes less."""
_MAX_ELAPSED_S: Final = 0.05
"""Time between two ticks that adds to the budget at most."""
MAX_BUFFERED_BYTES: Final = 16 << 20
"""Bytes that paused and waiting connections may have sent in all."""


class PacedConnection(Protocol):
    """What the pacer needs of a connection."""

    def has_room(self) -> bool:
        """Return whether its refused request would be admitted now."""
        ...

    def resume(self) -> bool:
        """Handle what it has sent meanwhile and read on; return False if it had sent nothing, was resumed before or is
        gone.
        """
        ...


class RefusalPacer:
    """The connections that are paused or wait, and the budget for refusals.

    ``room()``: how many requests would be admitted now. ``chance()``: a random number in [0, 1) that spreads pauses.
    """

    def __init__(self, room: Callable[[], int], chance: Callable[[], float] = random.random) -> None:
        self._room = room
        self._chance = chance
        self._paused: deque[tuple[float, PacedConnection]] = deque()
        """Refused connections that have sent another request, with the end of their pause."""
        self._waiting: OrderedDict[str, OrderedDict[PacedConnection, None]] = OrderedDict()
        """Connections whose first request was not read, by client address. The next address comes first."""
        self._waiting_count = 0
        self._looks = 0
        self._rate = MAX_PER_SECOND
        self._budget = MAX_PER_SECOND * TICK_S
        self._retries_left = 0.0
        self._ticked = 0.0
        self.is_exhausted = False
        """Whether the budget is spent: new requests wait."""
        self.buffered_bytes = 0

    def __len__(self) -> int:
        return len(self._paused) + self._waiting_count

    def has_room(self) -> bool:
        """Return whether a request would be admitted now."""
        return self._room() > 0

    @property
    def retry_after(self) -> float:
        """Seconds until a connection that is refused now is read again at the latest."""
        return max(MIN_PAUSE_S, len(self._paused) / RETRIES_PER_SECOND)

    def start(self, now: float) -> bool:
        """Begin to tick; return False if the ticks run already."""
        if self._ticked:
            return False
        self._ticked = now
        return True

    def count_refusal(self, counts: float = 1.0) -> None:
        """Take a refusal that costs ``counts`` from the budget."""
        self._budget -= counts
        self.is_exhausted = self._budget < 1.0

    def allows_urgent(self) -> bool:
        """Return whether a critical request may be read although the budget is spent. It may be overdrawn by the
        refusals of one tick.
        """
        return self._budget > -_MAX_PER_TICK

    def pause_until(self, now: float) -> float:
        """Return when the pause of a connection ends that is refused now."""
        return now + MIN_PAUSE_S * (0.5 + 0.5 * self._chance())

    def pause(self, connection: PacedConnection, until: float) -> None:
        """Pause a refused connection that has sent another request."""
        self._paused.append((until, connection))

    def wait(self, connection: PacedConnection, address: str) -> None:
        """Let a new connection wait to be read."""
        queue = self._waiting.get(address)
        if queue is None:
            queue = self._waiting[address] = OrderedDict()
        queue[connection] = None
        self._waiting_count += 1

    def forget(self, connection: PacedConnection, address: str) -> None:
        """Remove a waiting connection that is gone."""
        queue = self._waiting.get(address)
        if queue is not None and connection in queue:
            del queue[connection]
            self._waiting_count -= 1
            if not queue:
                del self._waiting[address]

    def oldest_waiting(self) -> PacedConnection | None:
        """Return the oldest waiting connection of the address that was served last; None if none waits."""
        return next(iter(self._waiting[next(reversed(self._waiting))])) if self._waiting else None

    def tick(self, now: float) -> bool:
        """Resume the connections that are due; return False if the ticks may stop."""
        passed = min(now - self._ticked, _MAX_ELAPSED_S)
        if passed > TICK_S + _LATE_S:
            self._rate = max(MIN_PER_SECOND, self._rate / 2)
        else:
            self._rate = min(MAX_PER_SECOND, self._rate * 1.05)
        self._ticked = now
        self._budget = min(self._budget, 0.0) + self._rate * passed
        self._retries_left = min(self._retries_left, 1.0) + min(RETRIES_PER_SECOND, self._rate / 2) * passed
        self.is_exhausted = False
        paused = self._paused
        for _ in range(1 + int(RETRIES_PER_SECOND * TICK_S * self._rate / MAX_PER_SECOND)):
            # A few paused connections go first: behind an endless stream of new ones they would never be read.
            self._resume_paused(now)
        for _ in range(_MAX_PER_TICK):
            if self.is_exhausted:
                break
            if self._waiting:
                self._resume_waiting()
            elif paused and paused[0][1].has_room():
                paused.popleft()[1].resume()
            else:
                break
        while self._resume_paused(now):
            pass
        if not self and self._budget >= self._rate * TICK_S:
            self._ticked = 0.0
            return False
        return True

    def _resume_paused(self, now: float) -> bool:
        """Resume the longest paused connection if its pause is over; return whether another may be due."""
        if self._retries_left < 1.0 or self.is_exhausted or not self._paused or self._paused[0][0] > now:
            return False
        self._retries_left -= self._paused.popleft()[1].resume()
        return True

    def resume_all(self) -> None:
        """Resume every connection: the process ends and must answer them."""
        while self._paused:
            self._paused.popleft()[1].resume()
        for _ in range(self._waiting_count):
            self._resume_waiting()

    def _resume_waiting(self) -> None:
        address, queue = self._waiting.popitem(last=False)
        self._looks = (self._looks + 1) % OLDEST_EVERY
        connection, _ = queue.popitem(last=bool(self._looks))
        if queue:
            self._waiting[address] = queue
        self._waiting_count -= 1
        connection.resume()
