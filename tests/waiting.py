"""Waiting for a fact. Time is no verdict: one limit for all, which no machine reaches that gets on at all.

It costs only where a test fails, so nothing is gained by a shorter one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

LIMIT_S: Final = 300.0
"""How long a test waits for anything; for waits that are no loop, ``asyncio.timeout(LIMIT_S)``."""


def until(fact: Callable[[], Any], *, pause: float = 0.05, what: str = "this") -> Any:
    """Wait until ``fact()`` is true and return it."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := fact()):
        assert time.monotonic() < deadline, f"{what} did not come true within {LIMIT_S:.0f} s"
        time.sleep(pause)
    return found


async def soon(fact: Callable[[], Any], *, pause: float = 0.01, what: str = "this") -> Any:
    """The same while an event loop runs."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := fact()):
        assert time.monotonic() < deadline, f"{what} did not come true within {LIMIT_S:.0f} s"
        await asyncio.sleep(pause)
    return found
