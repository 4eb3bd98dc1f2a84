"""Gathers concurrent requests of one endpoint into calls over several of them, for code that takes many at once.

A request that finds a free call leaves at the end of the loop tick; what arrives while all calls are out shares the
next. Knows nothing of what is called.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Gatherer(Generic[T]):
    """``run(items)`` is called with up to ``most`` items, up to ``at_once`` times at a time; it returns one outcome per
    item, an exception for an item that failed, or raises for all of them.
    """

    def __init__(self, run: Callable[[list[T]], Awaitable[Sequence[object]]], *, most: int, at_once: int) -> None:
        self._run = run
        self._most = most
        self._at_once = at_once
        self._out: set[asyncio.Task[None]] = set()
        self._waiting: deque[tuple[T, asyncio.Future[object]]] = deque()
        self._is_woken = False

    async def submit(self, item: T) -> object:
        """Return the item's outcome; raises what its call raised. One that is cancelled while it waits is not run."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[object] = loop.create_future()
        self._waiting.append((item, answer))
        if not self._is_woken:
            self._is_woken = True
            loop.call_soon(self._leave)
        return await answer

    async def close(self) -> None:
        """Give up what is still out."""
        for task in self._out:
            task.cancel()
        await asyncio.gather(*self._out, return_exceptions=True)

    def _leave(self) -> None:
        self._is_woken = False
        while len(self._out) < self._at_once:
            together: list[tuple[T, asyncio.Future[object]]] = []
            while self._waiting and len(together) < self._most:
                item, answer = self._waiting.popleft()
                if not answer.done():
                    together.append((item, answer))
            if not together:
                return
            task = asyncio.create_task(self._call(together))
            self._out.add(task)
            task.add_done_callback(self._returned)

    def _returned(self, task: asyncio.Task[None]) -> None:
        self._out.discard(task)
        self._leave()

    async def _call(self, together: list[tuple[T, asyncio.Future[object]]]) -> None:
        try:
            outcomes = await self._run([item for item, _ in together])
        except asyncio.CancelledError:
            for _, answer in together:
                answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - handed to those who wait for it
            outcomes = [error] * len(together)
        for (_, answer), outcome in zip(together, outcomes, strict=True):
            if answer.done():
                continue
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)
