"""Who is read next while this process has no room: refusing gets a bounded part of its time, answering the rest.

A refusal costs a fifth of an answer, and whoever is refused may ask again at once. So a flood of refusals would take
all the time there is, and what was let in would wait for it. Here

- a connection that was refused **rests**: what it sends is looked at when there is room, or when its time is over;
- whoever asks for the first time while more was refused than may be **waits** to be looked at: one of each address in
  turn; of an address mostly the newest first, so that somebody who comes now is told at once, now and then the oldest,
  so that nobody is forgotten;
- a refusal on a new connection counts several times: opening and closing one costs more than refusing;
- how many are looked at per second goes by how late the event loop is: what is busy refuses fewer.

Who would be let in is nobody's refusal and need not wait for one (see ``protocol.GatewayProtocol``), and what calls
itself critical is looked at before the others.

Pure: times are given. ``connections.Connections`` keeps the timer.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Protocol

TICK_S: Final = 5e-3
"""So often it is looked who is next."""
MIN_PER_SECOND: Final = 1000.0
"""So many are refused per second even by a process that has no time left: about 3 % of it."""
MAX_PER_SECOND: Final = 26_000.0
"""Six tenths of a core, if each needs a connection of its own: most of that goes with opening and closing it anyway.
With 20,000, callers on 5,000 new connections a second, as many as were refused, waited for seconds while the process
used 0.3 cores; with 40,000 those who retry at once took nine tenths of a core.
"""
AGAIN_PER_SECOND: Final = 1000.0
"""So many that were refused already are read again per second."""
NEW_COUNTS: Final = 4.0
"""So many refusals is one worth that has needed a connection of its own."""
OLDEST_EVERY: Final = 8
"""Every eighth that is looked at is the oldest."""
MIN_REST_S: Final = 1.0
"""A rest is at least half of this, and what ``Retry-After`` says is at least this."""
_AT_ONCE: Final = int(MAX_PER_SECOND * TICK_S / 2)
"""More are not looked at before the loop does what else there is to do."""
_LATE_S: Final = 15e-3
"""The answers of one call, made one after the other, take less."""
_MAX_PIECE_S: Final = 0.05
MAX_HELD_BYTES: Final = 16 << 20
"""What those who wait have sent already."""


class Rests(Protocol):
    """What is needed of a connection."""

    def has_room(self) -> bool:
        """Return whether what it was refused by is over."""
        ...

    def go_on(self) -> bool:
        """Read from it again, beginning with what has come already; returns whether there was anything: it may have
        been let go on before, or be gone.
        """
        ...


class Turns:
    """Who rests and who waits. ``room()`` is how many requests would be let in now; ``chance`` spreads rests out."""

    def __init__(self, room: Callable[[], int], chance: Callable[[], float] = random.random) -> None:
        self._room = room
        self._chance = chance
        self._rested: deque[tuple[float, Rests]] = deque()
        """Who was refused and has asked again, and until when it rests at least."""
        self._waiting: OrderedDict[str, OrderedDict[Rests, None]] = OrderedDict()
        """Who has not been looked at, by address; the address whose turn it is comes first."""
        self._number_waiting = 0
        self._turn = 0
        self._per_second = MAX_PER_SECOND
        self._left = MAX_PER_SECOND * TICK_S
        self._again = 0.0
        self._looked = 0.0
        self.is_over = False
        """Whether as many were refused as may be for now: whoever asks waits."""
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._rested) + self._number_waiting

    def has_room(self) -> bool:
        """Return whether a request would be let in now."""
        return self._room() > 0

    @property
    def retry_after(self) -> float:
        """Seconds after which who is refused now is read again at the latest."""
        return max(MIN_REST_S, len(self._rested) / AGAIN_PER_SECOND)

    def begin(self, now: float) -> bool:
        """Return whether ``look`` must be called from now on: nobody was here for a while."""
        if self._looked:
            return False
        self._looked = now
        return True

    def refused(self, counts: float = 1.0) -> None:
        """Count a refusal."""
        self._left -= counts
        self.is_over = self._left < 1.0

    def has_time_for_urgent(self) -> bool:
        """Return whether somebody is looked at out of turn: by so many refusals at most the time for them is used up
        beforehand.
        """
        return self._left > -_AT_ONCE

    def until(self, now: float) -> float:
        """Return until when a connection rests at least that is refused now."""
        return now + MIN_REST_S * (0.5 + 0.5 * self._chance())

    def rest(self, connection: Rests, until: float) -> None:
        """Let a connection rest that was refused and asks again."""
        self._rested.append((until, connection))

    def wait(self, connection: Rests, address: str) -> None:
        """Let a connection wait to be looked at."""
        line = self._waiting.get(address)
        if line is None:
            line = self._waiting[address] = OrderedDict()
        line[connection] = None
        self._number_waiting += 1

    def forget(self, connection: Rests, address: str) -> None:
        """Take a connection out that waits: it is gone."""
        line = self._waiting.get(address)
        if line is not None and connection in line:
            del line[connection]
            self._number_waiting -= 1
            if not line:
                del self._waiting[address]

    def longest(self) -> Rests | None:
        """Return who has waited longest to be looked at, of an address of which others were looked at; None if nobody
        waits.
        """
        return next(iter(self._waiting[next(reversed(self._waiting))])) if self._waiting else None

    def look(self, now: float) -> bool:
        """Let those go on whose turn it is; returns whether anybody is left, or may come again soon."""
        passed = min(now - self._looked, _MAX_PIECE_S)
        if passed > TICK_S + _LATE_S:
            self._per_second = max(MIN_PER_SECOND, self._per_second / 2)
        else:
            self._per_second = min(MAX_PER_SECOND, self._per_second * 1.05)
        self._looked = now
        self._left = min(self._left, 0.0) + self._per_second * passed
        self._again = min(self._again, 1.0) + min(AGAIN_PER_SECOND, self._per_second / 2) * passed
        self.is_over = False
        rested = self._rested
        for _ in range(1 + int(AGAIN_PER_SECOND * TICK_S * self._per_second / MAX_PER_SECOND)):
            # Some go first: behind those who wait, of whom there may be more all the time, they would rest for ever.
            self._reads_again(now)
        for _ in range(_AT_ONCE):
            if self.is_over:
                break
            if self._waiting:
                self._next_waiting()
            elif rested and rested[0][1].has_room():
                rested.popleft()[1].go_on()
            else:
                break
        while self._reads_again(now):
            pass
        if not self and self._left >= self._per_second * TICK_S:
            self._looked = 0.0
            return False
        return True

    def _reads_again(self, now: float) -> bool:
        """Let the one go on that has rested longest, if its time is over; returns whether there may be another."""
        if self._again < 1.0 or self.is_over or not self._rested or self._rested[0][0] > now:
            return False
        self._again -= self._rested.popleft()[1].go_on()
        return True

    def let_all_go_on(self) -> None:
        """Let everybody go on: what waits has to be told that this process ends."""
        while self._rested:
            self._rested.popleft()[1].go_on()
        for _ in range(self._number_waiting):
            self._next_waiting()

    def _next_waiting(self) -> None:
        address, line = self._waiting.popitem(last=False)
        self._turn = (self._turn + 1) % OLDEST_EVERY
        connection, _ = line.popitem(last=bool(self._turn))
        if line:
            self._waiting[address] = line
        self._number_waiting -= 1
        connection.go_on()
