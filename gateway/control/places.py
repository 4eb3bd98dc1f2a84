"""Limits how many builds send their first requests to Triton at a time.

When a Triton has loaded all models, each gateway replica has hundreds of versions to describe and to warm up. Sent all
at once, some of these calls would time out and be repeated. A place also has a time limit: after it the next version
begins while the slow one continues, so a version that hangs delays the others only briefly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Places:
    """At most ``count`` places at a time, each of at most ``seconds``. For use by one event loop."""

    def __init__(self, count: int, seconds: float) -> None:
        self._free = asyncio.Semaphore(count)
        self._seconds = seconds

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Wait for a place and hold it until the block ends or its time is over."""
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
