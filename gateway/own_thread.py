"""Daemon threads, which do not delay the end of the process: for users' code, and for steps of minutes.

``ThreadPoolExecutor`` joins its threads when the interpreter ends, so a stop would wait for a long download, or for
code that never returns. A step of model sync that runs here writes aside first and may be cut off at any moment.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def in_own_thread(call: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run ``call`` in a new daemon thread, for user code that may never return."""
    return asyncio.wrap_future(DaemonPool(1, name).submit(call))


class DaemonPool(Executor):
    """Runs at most ``size`` calls at a time, each in its own daemon thread; further calls wait in order of arrival."""

    def __init__(self, size: int, name: str) -> None:
        self._free = threading.Semaphore(size)
        self._name = name
        self._running: set[Future[Any]] = set()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start ``fn`` when a place is free."""
        future: Future[T] = Future()
        self._running.add(future)
        future.add_done_callback(self._running.discard)

        def work() -> None:
            with self._free:
                if not future.set_running_or_notify_cancel():
                    return
                try:
                    result = fn(*args, **kwargs)
                except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
                    future.set_exception(error)
                else:
                    future.set_result(result)

        threading.Thread(target=work, name=self._name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait a few seconds for running calls; what is still running then ends with the process."""
        running = list(self._running)
        for future in running if cancel_futures else ():
            future.cancel()
        if wait:
            futures.wait(running, timeout=5.0)
