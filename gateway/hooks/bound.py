"""Limits the number of hook processes of one gateway worker: whatever was used longest ago makes room.

A pool asks for a ``slot`` before it starts a process and returns it when the process has ended. If no slot is free,
pools queue: one without any process goes before one that wants a further process; otherwise first come, first served.
Room is made by retiring processes, never by killing them: the one that has been idle longest, or if none is idle, for a
pool without any process, the busy one that has served longest. Processes that are idle for a long time end as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.hooks.process import TICK_S, HookProcess

if TYPE_CHECKING:
    from gateway.hooks.pool import HookPool

_log = logging.getLogger("triton_gateway.hooks")

MAX_PROCESSES: Final = 32
IDLE_S: Final = 900.0

_SURPLUS_IDLE_S: Final = 60.0
"""Idle seconds after which all but the last process of a pool end, and the last one may make room for another pool's
further process: a restart would cost more than a short wait.
"""
_TURN_S: Final = 2.0
"""Seconds that a busy process serves before it can be retired for a pool that has no process."""
_TICKS_PER_FULL_CHECK: Final = 10


@dataclass(slots=True, eq=False)
class _Ticket:
    pool: HookPool
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
        self.taken = 0
        """The number of taken slots: processes that start, run or end."""
        self._pools: dict[HookPool, None] = {}
        self._waiting: list[_Ticket] = []
        self._ticker: asyncio.Task[None] | None = None

    def add(self, pool: HookPool) -> None:
        """Add a pool."""
        self._pools[pool] = None

    def remove(self, pool: HookPool) -> None:
        """Remove a pool that has ended."""
        self._pools.pop(pool, None)

    async def slot(self, pool: HookPool, *, is_start: bool = False) -> None:
        """Wait for a slot for one more process; ``release`` returns it. ``is_start``: the pool's first process."""
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.create_task(self._tick(), name="hook processes")
        if self.taken < self.limit and not self._waiting:
            self.taken += 1
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
        self.taken -= 1
        self.assign()

    def assign(self) -> None:
        """Give free slots to waiting pools, and retire a process for every pool that still waits."""
        self._waiting.sort(key=lambda ticket: not ticket.goes_first)  # stable: otherwise first come, first served
        while self._waiting and self.taken < self.limit:
            ticket = self._waiting.pop(0)
            if not ticket.granted.done():
                self.taken += 1
                ticket.granted.set_result(None)
        if self._waiting:
            ending = sum(process.is_retired for pool in self._pools for process in pool.processes)
            for ticket in self._waiting[ending:]:
                self._make_room(ticket)

    def end_idle(self) -> None:
        """Retire the processes that have been idle for too long."""
        for pool, process, is_last in self._spare():
            if process.is_idle and self._idle_for(process) > (
                self._idle if is_last else min(self._idle, _SURPLUS_IDLE_S)
            ):
                self._retire(pool, process, is_last=is_last)

    def _make_room(self, ticket: _Ticket) -> None:
        now = self._now()
        idle: list[tuple[float, int, HookPool, HookProcess, bool]] = []
        busy: list[tuple[float, int, HookProcess]] = []
        for pool, process, is_last in self._spare():
            if process.is_idle and not pool.has_waiting:
                if not is_last or ticket.goes_first or self._idle_for(process) > _SURPLUS_IDLE_S:
                    idle.append((process.idle_since, len(idle), pool, process, is_last))
            elif ticket.goes_first and pool is not ticket.pool and now - process.serving_since > _TURN_S:
                busy.append((process.serving_since, len(busy), process))
        if idle:
            _, _, pool, process, is_last = min(idle)
            self._retire(pool, process, is_last=is_last)
        elif busy:
            min(busy)[2].retire()

    def _spare(self) -> Iterator[tuple[HookPool, HookProcess, bool]]:
        """Yield the processes that may end, as long as their pools keep their minimum, and whether each is the last."""
        for pool in self._pools:
            for process in sorted((p for p in pool.processes if not p.is_retired), key=lambda p: p.idle_since):
                serving = sum(not p.is_retired for p in pool.processes)  # some may have been retired meanwhile
                if serving > pool.minimum:
                    yield pool, process, serving == 1

    def _idle_for(self, process: HookProcess) -> float:
        return self._now() - process.idle_since

    def _retire(self, pool: HookPool, process: HookProcess, *, is_last: bool) -> None:
        if is_last:
            pool.scale_to_zero()
        process.retire()

    async def _tick(self) -> None:
        ticks = 0
        while self.taken or self._waiting:
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
