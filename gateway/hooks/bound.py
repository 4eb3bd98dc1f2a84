"""Limits the number of hook processes of one gateway worker, and ends some to make room for others.

A pool asks for a ``slot`` before it starts a process and returns it when the process has ended. If no slot is free,
pools queue: one without any process goes before one that wants a further process; otherwise first come, first served.
Room is made by retiring processes, never by killing them: idle ones first, the longest idle before others. If none is
idle, a process that has served for ``_TURN_S`` ends after its current requests. Processes that are idle for a long time
end as well.
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
"""Idle seconds after which all but the last process of a pool end. The last one is also kept that long if another pool
wants one more process in addition to its own.
"""
_TURN_S: Final = 2.0
"""Seconds that a busy process serves before it can be retired for a pool that has no process."""
_TICKS_PER_FULL_CHECK: Final = 10


class Process(Protocol):
    """The part of a hook process that the bound uses."""

    is_retired: bool
    serving_since: float
    idle_since: float

    @property
    def is_idle(self) -> bool:
        """Whether it runs no request and holds no state that a request needs."""
        ...

    def retire(self) -> None:
        """Accept no more requests, and end after the current ones."""
        ...


class Pool(Protocol):
    """The part of a pool that the bound uses."""

    minimum: int
    """How many processes are kept although they are idle."""

    @property
    def processes(self) -> Sequence[Process]:
        """Processes that have loaded and have not ended."""
        ...

    @property
    def has_waiting(self) -> bool:
        """Whether requests wait for a process."""
        ...

    def tick(self, *, is_full: bool) -> None:
        """Check the busy processes; if ``is_full``, all of them."""
        ...

    def scale_to_zero(self) -> None:
        """Do not replace the last process when it ends, because it ends for being idle."""
        ...


@dataclass(slots=True, eq=False)
class _Ticket:
    pool: Pool
    is_start: bool
    granted: asyncio.Future[None] = field(repr=False)

    @property
    def goes_first(self) -> bool:
        """Whether its pool has waiting requests and no process, which may change while the ticket waits."""
        return self.is_start or (self.pool.has_waiting and all(p.is_retired for p in self.pool.processes))


class ProcessBound:
    """Allows ``limit`` processes at a time in all pools together, and ends those that are idle for ``idle`` seconds.

    All methods must be called on the event loop.
    """

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
        """The number of taken slots: processes that start, run or end."""
        return self._taken

    def add(self, pool: Pool) -> None:
        """Add a pool."""
        self._pools[pool] = None

    def remove(self, pool: Pool) -> None:
        """Remove a pool that has ended."""
        self._pools.pop(pool, None)

    async def slot(self, pool: Pool, *, is_start: bool = False) -> None:
        """Wait for a slot for one more process; ``release`` returns it. ``is_start``: the pool's first process."""
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.create_task(self._tick(), name="hook processes")
        if self._taken < self.limit and not self._waiting:
            self._taken += 1
            return
        ticket = _Ticket(pool, is_start, asyncio.get_running_loop().create_future())
        self._waiting.append(ticket)
        self.assign()
        try:
            await ticket.granted
        except asyncio.CancelledError:
            if ticket.granted.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiting.remove(ticket)
            else:
                self.release()
            raise

    def release(self) -> None:
        """Return a slot whose process has ended or was not started."""
        self._taken -= 1
        self.assign()

    def assign(self) -> None:
        """Give free slots to waiting pools, and retire a process for every pool that still waits."""
        if len(self._waiting) > 1:
            self._waiting.sort(key=lambda t: not t.goes_first)  # stable: otherwise first come, first served
        while self._waiting and self._taken < self.limit:
            ticket = self._waiting.pop(0)
            if not ticket.granted.done():
                self._taken += 1
                ticket.granted.set_result(None)
        if not self._waiting:
            return
        ending = sum(process.is_retired for pool in self._pools for process in pool.processes)
        for ticket in self._waiting[ending:]:
            process = self._process_to_end(ticket)
            if process is None:
                return
            process.retire()

    def end_idle(self) -> None:
        """Retire the processes that have been idle for too long."""
        now = self._now()
        for pool in self._pools:
            serving = [p for p in pool.processes if not p.is_retired]
            spare = len(serving) - pool.minimum
            idle = sorted((p for p in serving if p.is_idle), key=lambda p: p.idle_since)
            for process in idle[: max(0, spare)]:
                is_last = sum(not p.is_retired for p in serving) == 1
                if now - process.idle_since > (self._idle if is_last else min(self._idle, _SURPLUS_IDLE_S)):
                    if is_last:
                        pool.scale_to_zero()
                    process.retire()

    def _process_to_end(self, ticket: _Ticket) -> Process | None:
        return self._choose(ticket, is_strict=True) or (
            # For a pool without any process, even a process that its pool keeps although it is idle may end.
            self._choose(ticket, is_strict=False) if ticket.goes_first else None
        )

    def _choose(self, ticket: _Ticket, *, is_strict: bool) -> Process | None:
        now = self._now()
        idle, busy = [], []
        for pool, process, serving in self._serving(is_strict=is_strict):
            is_surplus = serving > max(1, pool.minimum)
            if process.is_idle and not pool.has_waiting:
                if is_surplus or ticket.goes_first or now - process.idle_since > _SURPLUS_IDLE_S:
                    idle.append((not is_surplus, process.idle_since, pool, process))
            elif pool is not ticket.pool and (is_surplus or now - process.serving_since > _TURN_S):
                busy.append((-serving, process.serving_since, process))
        if idle:
            is_last, _, pool, process = min(idle, key=lambda found: found[:2])
            if is_last:
                pool.scale_to_zero()
            return process
        return min(busy, key=lambda found: found[:2])[2] if busy and ticket.goes_first else None

    def _serving(self, *, is_strict: bool) -> Iterator[tuple[Pool, Process, int]]:
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
            is_full = ticks % _TICKS_PER_FULL_CHECK == 0
            for pool in list(self._pools):
                try:
                    pool.tick(is_full=is_full)
                except Exception:  # noqa: BLE001 - an error in one pool must not stop the checks of all
                    _log.exception("checking hook processes failed")
            if is_full:
                self.end_idle()
            self.assign()
