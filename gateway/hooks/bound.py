"""Limits the number of hook processes of one gateway worker: the one that has been idle longest makes room (LRU).

A pool asks for a ``slot`` before it starts a process and returns it when the process has ended. If no slot is free,
pools wait in the order in which they came, and for each of them an idle process of any pool is retired.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.hooks.pool import HookPool

MAX_PROCESSES: Final = 32


class ProcessBound:
    """Allows ``limit`` processes at a time in all pools together. All methods must be called on the event loop."""

    def __init__(self, limit: int = MAX_PROCESSES) -> None:
        self.limit = limit
        self.taken = 0
        """The number of taken slots: processes that start, run or end."""
        self.pools: set[HookPool] = set()
        """The pools that have not ended."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def slot(self) -> None:
        """Wait for a slot for one more process; ``release`` returns it."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(granted)
        self.assign()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiting.remove(granted)
            else:
                self.release()
            raise

    def release(self) -> None:
        """Return a slot whose process has ended or was not started."""
        self.taken -= 1
        self.assign()

    def assign(self) -> None:
        """Give free slots to those that wait, and retire an idle process for each that still does.

        Called whenever a process may have become idle.
        """
        while self._waiting and self.taken < self.limit:
            granted = self._waiting.popleft()
            if not granted.done():
                self.taken += 1
                granted.set_result(None)
        if not self._waiting:
            return
        processes = [process for pool in self.pools for process in pool.processes]
        for _ in range(len(self._waiting) - sum(one.is_retired for one in processes)):
            idle = [one for one in processes if one.is_idle]
            if idle:
                min(idle, key=lambda one: one.idle_since).retire()
