"""Who leads: of all controllers of one serving Task, one decides.

There is no compare-and-set in ClearML, so there is one key beside the serving Task, with the leader's id and a counter.
The leader counts on every five seconds. A newcomer that sees no change for fifteen seconds, by its own clock, writes
its id, waits three seconds, and leads if the key still has it. The last of several writers stays, and the others see
it. What controllers decide is idempotent, so two leaders for a few seconds cost a repeated write. The key also has the
time, for people and commands alone (``alive``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from gateway.registry import Ledger, Record, Records

log = logging.getLogger("triton_gateway.controller")

WRITE_S: Final = 5.0
SILENT_S: Final = 15.0
SETTLE_S: Final = 3.0
_KEY: Final = "leader"


class Election:
    """One candidate; ``me`` is its unique name, ``clock`` counts seconds, ``wall``: Unix seconds. For one thread."""

    def __init__(
        self, board: Ledger, me: str, *, clock: Callable[[], float], wall: Callable[[], float] = time.time
    ) -> None:
        self._board = board
        self._me = me
        self._clock = clock
        self._wall = wall
        self._due = 0.0
        self._seen: tuple[str, object] = ("", None)
        self._since = 0.0
        self._claimed_at: float | None = None
        self._leads = False
        self.records: Records = {}
        """What the board held when it was last read: the key, and what model syncs report."""

    def leads(self) -> bool:
        """Return whether this controller may decide now. Reads and writes the key when that is due.

        Raises the registry's errors; nothing may be decided then.
        """
        if self._clock() < self._due:
            return self._leads
        led, self._leads = self._leads, False  # also if the registry does not answer
        self.records = self._board.read()
        now = self._clock()
        key = self.records.get("leader", {}).get(_KEY, {})
        holder, count = str(key.get("id", "")), key.get("count")
        if holder == self._me and self._claimed_at is not None:
            self._leads = led or now - self._claimed_at >= SETTLE_S
            if self._leads:
                self._write(count + 1 if isinstance(count, int) else 1)
            if self._leads and not led:
                log.info("this controller (%s) leads", self._me)
            self._due = now + WRITE_S if self._leads else self._claimed_at + SETTLE_S
            return self._leads
        if led:
            log.warning("the controller %s leads now", holder or "nobody")
        self._claimed_at = None
        if (holder, count) != self._seen:
            self._seen, self._since = (holder, count), now
        if holder and now - self._since < SILENT_S:
            self._due = now + WRITE_S
            return False
        self._write(1)
        self._claimed_at = self._clock()
        self._due = self._claimed_at + SETTLE_S
        return False

    def resign(self) -> None:
        """Give the lead back, so that the next controller need not wait. Raises the registry's errors."""
        if self._leads:
            self._leads = False
            self._board.remove("leader", [_KEY])

    def _write(self, count: int) -> None:
        self._board.write([Record("leader", _KEY, {"id": self._me, "count": count, "at": round(self._wall(), 1)})])


def alive(board: Ledger, *, now: float) -> str:
    """Return the controller that leads; empty if none has written lately. ``now`` in Unix seconds."""
    key = board.read().get("leader", {}).get(_KEY, {})
    at = key.get("at")
    return str(key.get("id", "")) if isinstance(at, int | float) and abs(now - at) < SILENT_S + WRITE_S else ""
