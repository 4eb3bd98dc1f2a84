"""Long work in a thread that leaves the event loop its turn. Imports nothing of ours.

A thread that computes keeps the interpreter's lock for 5 ms at a time, and a request needs the lock several times: ten
milliseconds of waiting for one change of the configuration, for as long as the change is read. Work that calls ``Pace``
often keeps the lock for a millisecond at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

Result = TypeVar("Result")

_STEP_S: Final = 0.001
_PAUSE_S: Final = 0.0002


class Pace:
    """Called between small pieces of work, in a thread: sleeps a moment after every millisecond."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        """Sleep if it is time to."""
        if time.perf_counter() - self._since >= _STEP_S:
            time.sleep(_PAUSE_S)
            self._since = time.perf_counter()


def unhurried() -> None:
    """Do nothing: what to call if nobody waits."""


def in_own_thread(call: Callable[[], Result], name: str) -> asyncio.Future[Result]:
    """Call it in a thread that nobody else waits for: for users' code, which may never end.

    A daemon: it keeps no process from ending.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Result] = loop.create_future()

    def done(value: Any, error: BaseException | None) -> None:
        if result.cancelled():
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    def work() -> None:
        value, failure = None, None
        try:
            value = call()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: so is the process
            loop.call_soon_threadsafe(done, value, failure)

    threading.Thread(target=work, name=name, daemon=True).start()
    return result
