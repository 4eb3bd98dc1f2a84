"""Runs users' code in threads of its own. Imports no other module of ours."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


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
