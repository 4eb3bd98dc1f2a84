"""Receives gRPC messages, of calls that have a permit and of streams, within a limit of memory.

gRPC reveals the size of a message only when all of it is in memory, and a call or stream that is silent cannot be told
from one that sends a large message. A stream may wait for its next message for hours. So any number may wait; if more
wait than fit with the largest messages, and the process grows by too much meanwhile, all of them end.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final

from gateway.errors import BodyTimeout, Overloaded
from gateway.memory import resident

_CHECK_PERIOD_S: Final = 0.02
"""Seconds between two checks of the process's memory while many wait."""


class Receiving:
    """The calls and streams that wait for a message.

    Up to ``max_messages`` may wait without a limit. If more wait, all of them end once the process has grown by more
    than ``max_bytes``. ``memory()`` returns the bytes of memory that the process holds.
    """

    def __init__(self, max_messages: int, max_bytes: int, memory: Callable[[], int] = resident) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._memory = memory
        self._waiting: set[asyncio.Timeout] = set()
        self._memory_before = 0
        self._next_check: asyncio.TimerHandle | None = None

    async def message(self, context: Any, seconds: float = math.inf) -> Any:
        """Return the next message of a gRPC call (bytes, or ``grpc.aio.EOF``) once it is complete.

        Raises ``BodyTimeout`` if it takes longer than ``seconds``, ``Overloaded`` if those that wait are ended.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        limit = asyncio.timeout_at(until if seconds < math.inf else None)
        try:
            async with limit:
                self._waiting.add(limit)
                if self._next_check is None and len(self._waiting) > self._max_messages:
                    self._memory_before = self._memory()
                    self._next_check = loop.call_later(_CHECK_PERIOD_S, self._check)
                return await context.read()
        except TimeoutError:
            if loop.time() >= until:
                raise BodyTimeout(f"the message did not arrive within {seconds:g} s") from None
            raise Overloaded(
                "the messages that arrive exceed the gateway's memory limit", hint="try again, or send less at once",
                because="bytes_full", retry_after=1,
            ) from None  # fmt: skip
        finally:
            self._waiting.discard(limit)

    def _check(self) -> None:
        self._next_check = None
        if len(self._waiting) <= self._max_messages:
            return
        loop = asyncio.get_running_loop()
        if self._memory() - self._memory_before <= self._max_bytes:
            self._next_check = loop.call_later(_CHECK_PERIOD_S, self._check)
            return
        for limit in self._waiting:
            if not limit.expired():
                limit.reschedule(loop.time())
