"""What a change leaves to do once it is live: the last-good state on disk, and which downloaded files are needed.

Both grow with the number of endpoints, and a thread that computes makes requests wait for the interpreter's lock:
several at a time make them wait for each other's turns as well. So they are done one after the other, and the longer
storing takes, the less often it is done: of few endpoints after every change, of a thousand about every two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

REST: Final = 20
"""How many times as long as storing took nothing is stored again."""
MAX_REST_S: Final = 3.0
_LAST_SAVE_S: Final = 5.0


class Afterwards:
    """Calls ``save`` when it was asked for and has rested since the last time, ``tidy`` when nothing is to be saved.

    Neither may raise. ``tidy`` may wait for others, and holds up no ``save``.
    """

    def __init__(self, save: Callable[[], Awaitable[None]], tidy: Callable[[], Awaitable[None]]) -> None:
        self._save = save
        self._tidy = tidy
        self._is_unsaved = False
        self._rests_until = 0.0
        self._is_untidy = False
        self._worker: asyncio.Task[None] | None = None
        self._tidier: asyncio.Future[None] | None = None
        self._is_closing = False
        self._hurry = asyncio.Event()
        """Rest no longer."""

    @property
    def is_calm(self) -> bool:
        """Nothing is left to do."""
        return self._worker is None or self._worker.done()

    def save_soon(self) -> None:
        """The state on disk is not the present one any more."""
        self._is_unsaved = True
        self._begin()

    def tidy_soon(self) -> None:
        """Other files are needed than before."""
        self._is_untidy = True
        self._begin()

    def _begin(self) -> None:
        if self.is_calm:
            self._worker = asyncio.create_task(self._work(), name="afterwards")

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._is_unsaved:
                await self._rest()
                self._is_unsaved, began = False, loop.time()
                await self._save()
                self._rests_until = loop.time() + min(REST * (loop.time() - began), MAX_REST_S)
            elif self._is_untidy and not self._is_closing and (self._tidier is None or self._tidier.done()):
                self._is_untidy = False
                self._tidier = asyncio.ensure_future(self._tidy())
            else:
                return

    async def _rest(self) -> None:
        left = self._rests_until - asyncio.get_running_loop().time()
        with contextlib.suppress(TimeoutError):
            if left > 0:
                async with asyncio.timeout(left):
                    await self._hurry.wait()

    async def stored(self) -> None:
        """Store what is not stored yet, at once, and wait for it a few seconds at most."""
        if self._worker is not None and not self._worker.done():
            self._hurry.set()
            await asyncio.wait({self._worker}, timeout=_LAST_SAVE_S)
            if not self._is_closing:
                self._hurry.clear()

    async def close(self) -> None:
        """Store what is not stored yet, as ``stored`` does, and do nothing more."""
        self._is_closing = True
        await self.stored()
        if self._tidier is not None:
            self._tidier.cancel()
