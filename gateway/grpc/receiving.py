"""Limits how many gRPC messages are received at the same time. The server uses it for requests that have a permit.

gRPC reveals the size of a message only when all of it is in memory. Each message therefore counts as one of the largest
size, and only as many are received at a time as fit the bytes of requests that a process may hold; others wait. While
others wait, a message that takes longer than ``_TIMEOUT_S`` is refused; otherwise a few silent callers could block
all others.

A stream may wait for its next message for hours, so it does not count. An idle stream cannot be told from one that is
receiving a large message. If many streams wait and the process grows by too much, all waiting streams are ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from gateway.errors import BodyTimeout, Overloaded
from gateway.memory import resident

_TIMEOUT_S: Final = 1.0
_CHECK_PERIOD_S: Final = 0.02
"""Seconds between two checks of the process's memory while many streams wait."""


class Receiving:
    """Receives at most ``max_messages`` messages at a time, each within ``timeout`` seconds if others wait.

    A message is read from the ``context`` of its gRPC call: bytes, or ``grpc.aio.EOF``.
    """

    def __init__(self, max_messages: int, timeout: float = _TIMEOUT_S) -> None:
        self._places = asyncio.Semaphore(max_messages)
        self._timeout = timeout
        self._receiving: dict[asyncio.Timeout, float] = {}
        self._waiting = 0

    async def message(self, context: Any, seconds: float) -> Any:
        """Return the next message once it is complete.

        Raises ``BodyTimeout`` if it takes longer than ``seconds``, ``Overloaded`` if it must make room for others.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        await self._acquire_place(until)
        began = clock()
        limit = asyncio.timeout_at(min(until, began + self._timeout) if self._waiting else until)
        try:
            async with limit:
                self._receiving[limit] = began
                return await context.read()
        except TimeoutError:
            if clock() >= until:
                raise BodyTimeout(f"the message did not arrive within {seconds:g} s") from None
            raise _busy(f"the message did not arrive within {self._timeout:g} s, and others wait") from None
        finally:
            del self._receiving[limit]
            self._places.release()

    async def _acquire_place(self, until: float) -> None:
        if not self._places.locked():
            await self._places.acquire()  # returns immediately
            return
        self._waiting += 1
        for limit, began in self._receiving.items():
            if not limit.expired():
                limit.reschedule(min(limit.when() or until, began + self._timeout))
        try:
            async with asyncio.timeout_at(until):
                await self._places.acquire()
        except TimeoutError:
            raise _busy("the gateway is receiving as many messages as fit its memory limit") from None
        finally:
            self._waiting -= 1


class Streams:
    """Streams that wait for their next message.

    Up to ``max_streams`` may wait without a limit. If more wait, all of them end once the process has grown by more
    than ``max_bytes``. ``memory()`` returns the bytes of memory that the process holds.
    """

    def __init__(self, max_streams: int, max_bytes: int, memory: Callable[[], int] = resident) -> None:
        self._max_streams = max_streams
        self._max_bytes = max_bytes
        self._memory = memory
        self._waiting: set[asyncio.Timeout] = set()
        self._memory_before = 0
        self._next_check: asyncio.TimerHandle | None = None

    async def message(self, context: Any) -> Any:
        """Return the next message once it is complete. Raises ``Overloaded`` if the waiting streams are ended."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._waiting.add(limit)
                if self._next_check is None and len(self._waiting) > self._max_streams:
                    self._memory_before = self._memory()
                    self._next_check = asyncio.get_running_loop().call_later(_CHECK_PERIOD_S, self._check)
                return await context.read()
        except TimeoutError:
            raise _busy("the messages of all streams exceed the gateway's memory limit") from None
        finally:
            self._waiting.discard(limit)

    def _check(self) -> None:
        self._next_check = None
        if len(self._waiting) <= self._max_streams:
            return
        loop = asyncio.get_running_loop()
        if self._memory() - self._memory_before <= self._max_bytes:
            self._next_check = loop.call_later(_CHECK_PERIOD_S, self._check)
            return
        for limit in self._waiting:
            if not limit.expired():
                limit.reschedule(loop.time())


def _busy(message: str) -> Overloaded:
    return Overloaded(message, hint="try again, or send less at once", because="bytes_full", retry_after=1)
