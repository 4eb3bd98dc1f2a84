"""Answers what is asked of the numbers: in a thread, or with several workers by their parent, which adds them up.

The event loop only copies its own numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from gateway.metrics.accumulator import Snapshot
from gateway.metrics.observer import Observer
from gateway.metrics.views import STEP_S, Views
from gateway.metrics.workers import Parent

Asked = TypeVarTuple("Asked")
Answer = TypeVar("Answer")


class Publisher:
    """Shows an observer's numbers; with several workers, those of all that have the same ``parent``.

    ``ask`` raises ``InternalError`` if the workers' numbers cannot be added up.
    """

    def __init__(self, observer: Observer, parent: Parent | None = None) -> None:
        self._observer = observer
        self._parent = parent
        self._views = Views(observer.failures, shows_process=True)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="metrics")

    async def run(self) -> None:
        """Answer the parent and keep the page up to date, until cancelled."""
        if self._parent is not None:
            self._parent.listen(self._observer.snapshot)
        while True:
            with contextlib.suppress(Exception):  # the page misses one step; `/metrics` reports the cause
                await self.ask(Views.sample)
            await asyncio.sleep(STEP_S)

    def close(self) -> None:
        """Report the last counts to the parent."""
        self._reader.shutdown(wait=False)
        if self._parent is not None:
            self._parent.close(self._observer.snapshot())

    async def ask(self, question: Callable[[Views, Snapshot, *Asked], Answer], *asked: *Asked) -> Answer:
        """Return what a method of ``Views`` says of the newest numbers."""
        own = self._observer.snapshot()
        if self._parent is not None:
            answer: Answer = await self._parent.ask(own, question, *asked)
            return answer
        return await asyncio.get_running_loop().run_in_executor(self._reader, question, self._views, own, *asked)
