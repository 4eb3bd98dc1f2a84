"""Waits for Triton without mistaking a standstill of this process for silence of Triton."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

T = TypeVar("T")

_STEPS: Final = 10


async def within_running_time(work: Awaitable[T], seconds: float) -> T:
    """Return the result of ``work``; raise ``TimeoutError`` after ``seconds`` during which this process was running.

    The time is counted in steps. If this process stands still (a busy machine, a long callback), that costs one step,
    however long it lasts. With a single timer, the time would be over before the socket was read.
    """
    task = asyncio.ensure_future(work)
    try:
        for _ in range(_STEPS):
            await asyncio.wait((task,), timeout=seconds / _STEPS)
            if task.done():
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()
