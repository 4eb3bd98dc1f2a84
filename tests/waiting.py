"""Waiting for something to come true, with a limit that no healthy machine reaches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any


def until(fact: Callable[[], Any], *, within: float = 120.0, pause: float = 0.05, what: str = "this") -> Any:
    """Wait until ``fact()`` is true and return it."""
    deadline = time.monotonic() + within
    while not (found := fact()):
        assert time.monotonic() < deadline, f"{what} did not come true within {within:.0f} s"
        time.sleep(pause)
    return found


async def soon(fact: Callable[[], Any], *, within: float = 120.0) -> Any:
    """The same while an event loop runs."""
    deadline = time.monotonic() + within
    while not (found := fact()):
        assert time.monotonic() < deadline, f"this did not come true within {within:.0f} s"
        await asyncio.sleep(0.01)
    return found
