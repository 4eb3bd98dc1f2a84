"""Limits the number of hook processes of one gateway worker: the one that has been idle longest makes room.

A pool asks for a ``slot`` before it starts a process and returns it when the process has ended. If no slot is free,
pools wait, one without any process before one that wants a further process. An idle process is then retired, of the
pools that have more than one, or for a pool without any, of all. Processes that are idle for a long time end as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from gateway.hooks.process import TICK_S, HookProcess

if TYPE_CHECKING:
    from gateway.hooks.pool import HookPool

_log = logging.getLogger("triton_gateway.hooks")

MAX_PROCESSES: Final = 32
IDLE_S: Final = 900.0

_SURPLUS_IDLE_S: Final = 60.0
"""Idle seconds after which all but the last process of a pool end."""
_TICKS_PER_FULL_CHECK: Final = 10


class ProcessBound:
    """Allows ``limit`` processes at a time in all pools together, and ends those that are idle for ``idle`` seconds.

    All methods must be called on the event loop.
    """

    def __init__(
        self, limit: int = MAX_PROCESSES, idle: float = IDLE_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = limit
        self._idle_s = idle
        self._now = now
        self.taken = 0
        """The number of taken slots: processes that start, run or end."""
        self._pools: dict[HookPool, None] = {}
        self._waiting: list[tuple[HookPool, asyncio.Future[None]]] = []
        self._ticker: asyncio.Task[None] | None = None

    def add(self, pool: HookPool) -> None:
        """Add a pool."""
        self._pools[pool] = None

    def remove(self, pool: HookPool) -> None:
        """Remove a pool that has ended."""
        self._pools.pop(pool, None)

    async def slot(self, pool: HookPool) -> None:
        """Wait for a slot for one more process; ``release`` returns it."""
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.create_task(self._tick(), name="hook processes")
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((pool, granted))
        self.assign()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiting.remove((pool, granted))
            else:
                self.release()
            raise

    def release(self) -> None:
        """Return a slot whose process has ended or was not started."""
        self.taken -= 1
        self.assign()

    def assign(self) -> None:
        """Give free slots to waiting pools, and retire an idle process for every pool that still waits."""
        self._waiting.sort(key=lambda waiting: not _has_none(waiting[0]))  # stable: otherwise first come, first served
        while self._waiting and self.taken < self.limit:
            _, granted = self._waiting.pop(0)
            if not granted.done():
                self.taken += 1
                granted.set_result(None)
        if self._waiting:
            ending = sum(process.is_retired for pool in self._pools for process in pool.processes)
            for pool, _ in self._waiting[ending:]:
                idle = [one for one in self._idle() if _has_none(pool) or not one[-1]]
                if idle:
                    self._retire(*min(idle, key=lambda one: one[1].idle_since))

    def end_idle(self) -> None:
        """Retire the processes that have been idle for too long."""
        for pool, process, is_last in self._idle():
            if self._now() - process.idle_since > (self._idle_s if is_last else min(self._idle_s, _SURPLUS_IDLE_S)):
                self._retire(pool, process, is_last)

    def _idle(self) -> Iterator[tuple[HookPool, HookProcess, bool]]:
        """Yield the idle processes of pools that have more than their minimum, and whether each is the last."""
        for pool in self._pools:
            for process in sorted((p for p in pool.processes if p.is_idle), key=lambda p: p.idle_since):
                serving = sum(not p.is_retired for p in pool.processes)  # some may have been retired meanwhile
                if serving > pool.minimum:
                    yield pool, process, serving == 1

    def _retire(self, pool: HookPool, process: HookProcess, is_last: bool) -> None:
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


def _has_none(pool: HookPool) -> bool:
    return all(process.is_retired for process in pool.processes)
