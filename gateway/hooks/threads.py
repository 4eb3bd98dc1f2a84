"""The threads of one endpoint's hooks. User code may block there without delaying the event loop or other endpoints.

Calls begin and end on the event loop, so only the queue to the threads and the way back need locks. A call takes half
the CPU time of one through ``concurrent.futures``.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias

_Asked: TypeAlias = tuple["asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]
"""The future of a call's result, the hook, and its arguments."""


class HookThreads:
    """At most ``most`` threads, started when needed. May be used only from the event loop."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy = 0
        """The number of calls in threads, including those whose request was cancelled."""
        self._started = 0
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._waiting: deque[_Asked] = deque()

    def call(self, hook: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Return a future of ``hook``'s result. Cancelling it removes a waiting call; a running hook continues."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()  # kept, because looking it up is a system call
        answer: asyncio.Future[Any] = loop.create_future()
        asked = answer, hook, arguments
        if self._busy < self._most:
            self._begin(asked)
        else:
            self._waiting.append(asked)
            answer.add_done_callback(lambda answer: self._left(asked) if answer.cancelled() else None)
        return answer

    def close(self) -> None:
        """Cancel waiting calls. Threads end after their call; they are daemons and do not keep the process running."""
        while self._waiting:
            self._waiting.popleft()[0].cancel()
        for _ in range(self._started):
            self._asked.put(None)

    def _left(self, asked: _Asked) -> None:
        # While hooks hang, no thread becomes free, and the requests of callers that have left would pile up.
        with contextlib.suppress(ValueError):  # it runs already
            self._waiting.remove(asked)

    def _begin(self, asked: _Asked) -> None:
        self._busy += 1
        if self._busy > self._started:
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=_work, args=(self._asked, self._return), name=name, daemon=True).start()
        self._asked.put(asked)

    def _return(self, answer: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
        """Called in a thread, when its hook has ended."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so the process is ending
                self._loop.call_soon_threadsafe(self._ended, answer, result, failure)

    def _ended(self, answer: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
        self._busy -= 1
        while self._waiting and self._busy < self._most:
            asked = self._waiting.popleft()
            if not asked[0].done():
                self._begin(asked)
        if answer.done():
            return
        if failure is None:
            answer.set_result(result)
        else:
            answer.set_exception(failure)


def _work(asked: SimpleQueue[_Asked | None], give: Callable[..., None]) -> None:
    while (one := asked.get()) is not None:
        answer, hook, arguments = one
        try:
            give(answer, hook(*arguments), None)
        except BaseException as error:  # noqa: BLE001 - raised where the call is awaited
            give(answer, None, error)
        del one, answer, hook, arguments  # frees the request's data now: the next call may come much later
