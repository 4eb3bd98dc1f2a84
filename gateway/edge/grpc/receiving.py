"""How many messages come in over gRPC at a time. Called by the server, with the place of a request in hand.

gRPC tells how large a message is when all of it is in memory. So each one under way counts as one of the largest size,
and together they are as many as the bytes of requests that a process may hold; the others wait for their turn. Whoever
takes longer than ``_TIMEOUT_S`` to send one while others wait is refused: a few that send nothing would else keep
everybody out.

A stream may wait for its next message for hours, and takes no turn. It cannot be told from one that is sent a large
one; so if many streams wait and the process grows by more than it should, all that wait are ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from gateway.errors import BodyTimeout, Overloaded
from gateway.memory import resident

_TIMEOUT_S: Final = 1.0
_LOOK_S: Final = 0.02
"""So often the process's memory is looked at while many streams wait."""


class Messages(Protocol):
    """Where messages come from: the context of a call."""

    async def read(self) -> Any:
        """Return the next one."""
        ...


class Receiving:
    """Lets ``most`` messages come in at a time."""

    def __init__(self, most: int, timeout: float = _TIMEOUT_S) -> None:
        self._places = asyncio.Semaphore(most)
        self._timeout = timeout
        self._coming: dict[asyncio.Timeout, float] = {}
        self._waiting = 0

    async def message(self, messages: Messages, seconds: float) -> Any:
        """Return the next message when all of it is here. Raises ``BodyTimeout`` or ``Overloaded``."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        await self._turn(until)
        began = clock()
        limit = asyncio.timeout_at(min(until, began + self._timeout) if self._waiting else until)
        try:
            async with limit:
                self._coming[limit] = began
                return await messages.read()
        except TimeoutError:
            if clock() >= until:
                raise BodyTimeout(f"the message did not arrive within {seconds:g} s") from None
            raise _busy(f"the message did not arrive within {self._timeout:g} s, and others wait") from None
        finally:
            del self._coming[limit]
            self._places.release()

    async def _turn(self, until: float) -> None:
        if not self._places.locked():
            await self._places.acquire()  # at once
            return
        self._waiting += 1
        for limit, began in self._coming.items():
            if not limit.expired():
                limit.reschedule(min(limit.when() or until, began + self._timeout))
        try:
            async with asyncio.timeout_at(until):
                await self._places.acquire()
        except TimeoutError:
            raise _busy("this gateway receives as many messages as it has room for") from None
        finally:
            self._waiting -= 1


class Streams:
    """Streams that wait for their next message: ``most`` of them at any size, more while the process has grown by less
    than ``max_bytes`` since there were so many.
    """

    def __init__(self, most: int, max_bytes: int, memory: Callable[[], int] = resident) -> None:
        self._most = most
        self._max_bytes = max_bytes
        self._memory = memory
        self._waiting: set[asyncio.Timeout] = set()
        self._before = 0
        self._looks: asyncio.TimerHandle | None = None

    async def message(self, messages: Messages) -> Any:
        """Return the next message when all of it is here. Raises ``Overloaded``."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._waiting.add(limit)
                if self._looks is None and len(self._waiting) > self._most:
                    self._before = self._memory()
                    self._looks = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
                return await messages.read()
        except TimeoutError:
            raise _busy("streams are sent more than this gateway has room for") from None
        finally:
            self._waiting.discard(limit)

    def _look(self) -> None:
        self._looks = None
        if len(self._waiting) <= self._most:
            return
        loop = asyncio.get_running_loop()
        if self._memory() - self._before <= self._max_bytes:
            self._looks = loop.call_later(_LOOK_S, self._look)
            return
        for limit in self._waiting:
            if not limit.expired():
                limit.reschedule(loop.time())


def _busy(message: str) -> Overloaded:
    return Overloaded(message, hint="try again, or send less at once", because="bytes_full", retry_after=1)
