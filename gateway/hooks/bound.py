"""The bound on all hook processes of one gateway worker: who may start one, and which one ends to make room for it.

Pools ask for a ``slot`` before they start a process and give it back when it has ended. Without a free slot they queue:
a pool that has no process at all goes before one that wants a further one, and among equals who came first. Room is
made by ending processes in order, never by killing: those that idle, the longest idle first; if none does, one that
had its turn ends after the requests in it. Processes that nobody has asked for a long time end too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from gateway.hooks.process import TICK_S

_log = logging.getLogger("triton_gateway.hooks")

MAX_PROCESSES: Final = 32
IDLE_S: Final = 900.0

_SURPLUS_IDLE_S: Final = 60.0
"""A pool's second and further processes end after this; nor is its last one ended sooner for another's second."""
_TURN_S: Final = 2.0
"""A process that always has work serves this long before it makes room for a pool that has none."""
_LOOK_EVERY: Final = 10


class Process(Protocol):
    """What the bound sees of a hook process."""

    is_retired: bool
    serving_since: float
    idle_since: float

    @property
    def is_idle(self) -> bool:
        """Whether it does nothing, and nobody counts on what it holds."""
        ...

    def retire(self) -> None:
        """Take no more requests; end after those in it."""
        ...


class Pool(Protocol):
    """What the bound sees of a pool."""

    minimum: int
    """Processes that stay up although they idle."""

    @property
    def processes(self) -> Sequence[Process]:
        """Those that have loaded and have not ended."""
        ...

    @property
    def has_waiting(self) -> bool:
        """Whether requests wait for a process."""
        ...

    def tick(self, *, is_full: bool) -> None:
        """Look at the processes that work; if ``is_full``, at all."""
        ...

    def rest(self) -> None:
        """Its last process ends because nobody has asked: do not replace it."""
        ...


@dataclass(slots=True, eq=False)
class _Ticket:
    pool: Pool
    is_start: bool
    granted: asyncio.Future[None] = field(repr=False)

    @property
    def is_first(self) -> bool:
        """Whether the pool has nobody to answer those who wait; that may change while it waits."""
        return self.is_start or (self.pool.has_waiting and all(p.is_retired for p in self.pool.processes))


class ProcessBound:
    """``limit`` processes at a time in all pools; those that idle for ``idle`` seconds end. Of the event loop."""

    def __init__(
        self, limit: int = MAX_PROCESSES, idle: float = IDLE_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = limit
        self._idle = idle
        self._now = now
        self._taken = 0
        self._pools: dict[Pool, None] = {}
        self._waiting: list[_Ticket] = []
        self._ticker: asyncio.Task[None] | None = None

    @property
    def taken(self) -> int:
        """Slots that are taken: processes that run, start or end."""
        return self._taken

    def add(self, pool: Pool) -> None:
        """A pool begins."""
        self._pools[pool] = None

    def remove(self, pool: Pool) -> None:
        """A pool has ended."""
        self._pools.pop(pool, None)

    async def slot(self, pool: Pool, *, is_start: bool = False) -> None:
        """Wait for room for one more process; the slot must be given back. ``is_start``: the pool's very first."""
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.create_task(self._tick(), name="hook processes")
        if self._taken < self.limit and not self._waiting:
            self._taken += 1
            return
        ticket = _Ticket(pool, is_start, asyncio.get_running_loop().create_future())
        self._waiting.append(ticket)
        self.settle()
        try:
            await ticket.granted
        except asyncio.CancelledError:
            if ticket.granted.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiting.remove(ticket)
            else:
                self.give_back()
            raise

    def give_back(self) -> None:
        """A process has ended, or was not started."""
        self._taken -= 1
        self.settle()

    def settle(self) -> None:
        """Give free slots to who waits; end processes for the others."""
        if len(self._waiting) > 1:
            self._waiting.sort(key=lambda t: not t.is_first)  # stable: among equals who came first
        while self._waiting and self._taken < self.limit:
            ticket = self._waiting.pop(0)
            if not ticket.granted.done():
                self._taken += 1
                ticket.granted.set_result(None)
        if not self._waiting:
            return
        leaving = sum(process.is_retired for pool in self._pools for process in pool.processes)
        for ticket in self._waiting[leaving:]:
            victim = self._victim(ticket)
            if victim is None:
                return
            victim.retire()

    def end_idle(self) -> None:
        """End the processes that nobody has asked for too long."""
        now = self._now()
        for pool in self._pools:
            serving = [p for p in pool.processes if not p.is_retired]
            spare = len(serving) - pool.minimum
            idle = sorted((p for p in serving if p.is_idle), key=lambda p: p.idle_since)
            for process in idle[: max(0, spare)]:
                is_last = sum(not p.is_retired for p in serving) == 1
                if now - process.idle_since > (self._idle if is_last else min(self._idle, _SURPLUS_IDLE_S)):
                    if is_last:
                        pool.rest()
                    process.retire()

    def _victim(self, ticket: _Ticket) -> Process | None:
        return self._chosen(ticket, is_strict=True) or (
            # Rather than keep somebody waiting for nothing: what was to stay although it idles.
            self._chosen(ticket, is_strict=False) if ticket.is_first else None
        )

    def _chosen(self, ticket: _Ticket, *, is_strict: bool) -> Process | None:
        now = self._now()
        idle, busy = [], []
        for pool, process, serving in self._spare(is_strict=is_strict):
            is_surplus = serving > max(1, pool.minimum)
            if process.is_idle and not pool.has_waiting:
                if is_surplus or ticket.is_first or now - process.idle_since > _SURPLUS_IDLE_S:
                    idle.append((not is_surplus, process.idle_since, pool, process))
            elif pool is not ticket.pool and (is_surplus or now - process.serving_since > _TURN_S):
                busy.append((-serving, process.serving_since, process))
        if idle:
            is_last, _, pool, process = min(idle, key=lambda found: found[:2])
            if is_last:
                pool.rest()
            return process
        return min(busy, key=lambda found: found[:2])[2] if busy and ticket.is_first else None

    def _spare(self, *, is_strict: bool) -> Iterator[tuple[Pool, Process, int]]:
        for pool in self._pools:
            serving = [process for process in pool.processes if not process.is_retired]
            if not is_strict or len(serving) > pool.minimum:
                for process in serving:
                    yield pool, process, len(serving)

    async def _tick(self) -> None:
        ticks = 0
        while self._taken or self._waiting:
            await asyncio.sleep(TICK_S)
            ticks += 1
            is_full = ticks % _LOOK_EVERY == 0
            for pool in list(self._pools):
                try:
                    pool.tick(is_full=is_full)
                except Exception:  # noqa: BLE001 - one pool's fault must not end the watch over all
                    _log.exception("watching hook processes failed")
            if is_full:
                self.end_idle()
            self.settle()
