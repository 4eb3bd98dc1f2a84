"""Publishes the numbers: ``/metrics``, the last minutes for the page, and statistics.

The event loop only copies its own numbers (well below a millisecond). With several workers, their parent adds them up
(``workers``). One thread reads the sum and formats it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from gateway.metrics import exposition, statistics
from gateway.metrics.accumulator import Snapshot
from gateway.metrics.observer import Observer
from gateway.metrics.recent import STEP_S, Judged, Recent
from gateway.metrics.workers import Parent

T = TypeVar("T")


class Publisher:
    """Shows an observer's numbers; with several workers, those of all that have the same ``parent``."""

    def __init__(self, observer: Observer, parent: Parent | None = None) -> None:
        self._observer = observer
        self._parent = parent
        self._recent = Recent(observer.failures)
        # With several workers, process metrics would describe only one of them.
        self._process = exposition.process_metrics() if parent is None else None
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="metrics")

    async def run(self) -> None:
        """Keep the other workers and the page up to date until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sample())
            if self._parent is not None:
                tasks.create_task(self._parent.run(self._observer.snapshot))

    def close(self) -> None:
        """Report the last counts to the parent."""
        self._reader.shutdown(wait=False)
        if self._parent is not None:
            self._parent.close(self._observer.snapshot())

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the text of ``/metrics`` in the form that ``accept`` asks for, and its content type.

        Raises ``InternalError`` if the workers' numbers cannot be added up.
        """
        return await self._read(
            lambda snapshot: exposition.respond(accept, exposition.Numbers(snapshot, self._process))
        )

    async def statistics(self) -> list[dict[str, Any]]:
        """Return the statistics of the Open Inference Protocol; see ``statistics``. Raises as ``metrics``."""
        return await self._read(statistics.of_snapshot)

    async def last_minute(self, judged: Judged) -> dict[str, Any]:
        """Return ``last_minute`` and ``drift`` of ``/v1/status``; see ``Recent``."""

        return await self._read(lambda snapshot: {
            "last_minute": self._recent.rows(time.monotonic(), snapshot), "drift": self._recent.drift(snapshot, judged),
        })  # fmt: skip

    async def curves(self, endpoints: Sequence[str]) -> dict[str, Any]:
        """Return the curves of each of the endpoints; see ``Recent``."""
        now = time.monotonic()
        return {name: self._recent.curves(name, now) for name in endpoints}

    async def _read(self, work: Callable[[Snapshot], T]) -> T:
        """Call ``work`` in the thread, with the numbers of all workers."""
        own = self._observer.snapshot()
        summed = None if self._parent is None else await self._parent.ask(own)

        def in_thread() -> T:
            return work(own if self._parent is None or summed is None else self._parent.read(summed))

        return await asyncio.get_running_loop().run_in_executor(self._reader, in_thread)

    async def _sample(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # the page misses one step; `/metrics` reports the cause
                await self._read(lambda snapshot: self._recent.sample(time.monotonic(), snapshot))
            await asyncio.sleep(STEP_S)
