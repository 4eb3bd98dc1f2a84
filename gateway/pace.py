"""Lets long work in a thread yield to the event loop. Imports no other module of ours.

A computing thread gives the interpreter's lock (GIL) away when another one has waited for it for some time (``app``
sets half a millisecond), and a request needs the lock several times. Work that calls ``Pace`` often also leaves pauses:
``/metrics`` of thousands of series does.
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
    """Sleeps 0.2 ms after every millisecond of work; called between small pieces of work, in a thread."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        """Sleep if a millisecond has passed."""
        if time.perf_counter() - self._since >= _STEP_S:
            time.sleep(_PAUSE_S)
            self._since = time.perf_counter()


def unhurried() -> None:
    """Do nothing; for callers that need not yield."""


def in_own_thread(call: Callable[[], Result], name: str) -> asyncio.Future[Result]:
    """Run ``call`` in a new daemon thread, for user code that may never return.

    The thread does not keep the process from exiting.
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
        except BaseException as error:  # noqa: BLE001 - the future gets it
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: so is the process
            loop.call_soon_threadsafe(done, value, failure)

    threading.Thread(target=work, name=name, daemon=True).start()
    return result
