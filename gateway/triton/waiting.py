"""Waiting for Triton without taking our own standstill for its silence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

T = TypeVar("T")

_STEPS: Final = 10


async def patiently(work: Awaitable[T], seconds: float) -> T:
    """Return what ``work`` returns; raises ``TimeoutError`` after ``seconds`` in which this process could have noticed.

    The time is counted in steps. A process that stands still (a busy machine, a long callback) loses one step by that,
    however long it takes: with a single timer the time would be over before anybody had looked at the socket.
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
