"""Turns at Triton: of hundreds of versions that are built at once, a few ask their first questions at a time.

When a Triton has loaded all models, every replica of the gateway has hundreds of versions to describe and to warm up.
All of them at once are more calls than Triton answers in time: some would fail, and ask again. A version that takes
long gives its turn to the next one and goes on, so that one that hangs delays the others for moments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """At most ``count`` have a turn at a time, each of ``seconds`` at most. One event loop uses it."""

    def __init__(self, count: int, seconds: float) -> None:
        self._free = asyncio.Semaphore(count)
        self._seconds = seconds

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Wait for a turn; it ends with the block, or sooner for others."""
        await self._free.acquire()
        is_over = False

        def end() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._free.release()

        passed_on = asyncio.get_running_loop().call_later(self._seconds, end)
        try:
            yield
        finally:
            passed_on.cancel()
            end()
