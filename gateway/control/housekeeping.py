"""Work after a configuration change is live: saves the last-good state and deletes unneeded files.

Both tasks grow with the number of endpoints. A computing thread holds the interpreter lock, which delays requests, so
the tasks never run at the same time. A save that takes longer is followed by a longer pause: with few endpoints every
change is saved at once, with a thousand about every two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

REST: Final = 20
"""The pause after a save, as a multiple of the time that the save took."""
MAX_REST_S: Final = 3.0
"""Longest pause between two saves."""
_LAST_SAVE_S: Final = 5.0
"""How long ``save_now`` waits for a save."""


class Housekeeping:
    """Calls ``save`` after a request for it and the pause since the last save; calls ``tidy`` if no save is pending.

    Neither callable may raise. ``tidy`` may take long; it does not delay ``save``.
    """

    def __init__(self, save: Callable[[], Awaitable[None]], tidy: Callable[[], Awaitable[None]]) -> None:
        self._save = save
        self._prune = tidy
        self._is_unsaved = False
        self._rests_until = 0.0
        self._must_prune = False
        self._worker: asyncio.Task[None] | None = None
        self._pruner: asyncio.Future[None] | None = None
        self._is_closing = False
        self._no_rest = asyncio.Event()
        """Set: skip the pause before the next save."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do."""
        return self._worker is None or self._worker.done()

    def save_soon(self) -> None:
        """Request a save."""
        self._is_unsaved = True
        self._begin()

    def prune_soon(self) -> None:
        """Request a deletion of unneeded files."""
        self._must_prune = True
        self._begin()

    def _begin(self) -> None:
        if self.is_idle:
            self._worker = asyncio.create_task(self._work(), name="housekeeping")

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._is_unsaved:
                await self._rest()
                self._is_unsaved, began = False, loop.time()
                await self._save()
                self._rests_until = loop.time() + min(REST * (loop.time() - began), MAX_REST_S)
            elif self._must_prune and not self._is_closing and (self._pruner is None or self._pruner.done()):
                self._must_prune = False
                self._pruner = asyncio.ensure_future(self._prune())
            else:
                return

    async def _rest(self) -> None:
        left = self._rests_until - asyncio.get_running_loop().time()
        with contextlib.suppress(TimeoutError):
            if left > 0:
                async with asyncio.timeout(left):
                    await self._no_rest.wait()

    async def save_now(self) -> None:
        """Save now if a save is pending, and wait at most 5 s for it."""
        if self._worker is not None and not self._worker.done():
            self._no_rest.set()
            await asyncio.wait({self._worker}, timeout=_LAST_SAVE_S)
            if not self._is_closing:
                self._no_rest.clear()

    async def close(self) -> None:
        """Save now if a save is pending, then stop."""
        self._is_closing = True
        await self.save_now()
        if self._pruner is not None:
            self._pruner.cancel()
