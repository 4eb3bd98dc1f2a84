"""The threads of one endpoint's hooks: users' code may block there, and holds up no event loop and no other endpoint.

Both ends of a call are on the event loop, so nothing but the way there and back needs a lock: the way to a thread of
``concurrent.futures`` and back costs twice as much processor time.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class _Asked:
    """A call, the loop that waits for it, and what is to be told there when it has ended."""

    __slots__ = ("_arguments", "_ended", "_hook", "_loop", "answer")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ended: Callable[..., None],
        hook: Callable[..., Any],
        arguments: tuple[Any, ...],
    ) -> None:
        self._loop, self._ended, self._hook, self._arguments = loop, ended, hook, arguments
        self.answer: asyncio.Future[Any] = loop.create_future()

    def run(self) -> None:
        """Call the hook; in the thread."""
        result, failure = None, None
        try:
            result = self._hook(*self._arguments)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: so is the process
            self._loop.call_soon_threadsafe(self._ended, self.answer, result, failure)
        del failure  # its traceback leads back here: a cycle that only the collector could free


class HookThreads:
    """At most ``most`` threads, started as they are needed; used from the event loop only."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy = 0
        """Calls in threads: also those whose request was given up."""
        self._started = 0
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._waiting: deque[_Asked] = deque()

    def call(self, hook: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Return what will be ``hook``'s result. Cancelling gives its place up; a hook that runs goes on to its end."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()  # looking it up is a system call
        asked = _Asked(loop, self._ended, hook, arguments)
        if self._busy < self._most:
            self._begin(asked)
        else:
            self._waiting.append(asked)
            asked.answer.add_done_callback(lambda answer: self._left(asked) if answer.cancelled() else None)
        return asked.answer

    def close(self) -> None:
        """Begin nothing any more; threads end when their call has, and keep no process from ending."""
        while self._waiting:
            self._waiting.popleft().answer.cancel()
        for _ in range(self._started):
            self._asked.put(None)

    def _left(self, asked: _Asked) -> None:
        # While hooks hang no place becomes free, and what callers who have left had sent would pile up.
        with contextlib.suppress(ValueError):  # its turn has come
            self._waiting.remove(asked)

    def _begin(self, asked: _Asked) -> None:
        self._busy += 1
        if self._busy > self._started:
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=_work, args=(self._asked,), name=name, daemon=True).start()
        self._asked.put(asked)

    def _ended(self, answer: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
        self._busy -= 1
        while self._waiting and self._busy < self._most:
            asked = self._waiting.popleft()
            if not asked.answer.done():
                self._begin(asked)
        if answer.done():
            return
        if failure is None:
            answer.set_result(result)
        else:
            answer.set_exception(failure)


def _work(asked: SimpleQueue[_Asked | None]) -> None:
    while (one := asked.get()) is not None:
        one.run()
        del one  # it holds a request's data, and the next may come much later
