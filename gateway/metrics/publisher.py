"""Publishes the numbers: ``/metrics``, the last minutes for the page, and statistics; and judges them now and then.

The event loop only copies its own numbers (well below a millisecond). With several workers, their parent adds them up
(``workers``). One thread reads the sum and formats it; it releases the interpreter lock every millisecond
(``gateway.pace``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, TypeVar

from gateway.metrics import accuracy, exposition, statistics, versions
from gateway.metrics.accumulator import Snapshot
from gateway.metrics.accuracy import Accuracy, VersionAccuracy
from gateway.metrics.curves import Curves
from gateway.metrics.evidence import Judged
from gateway.metrics.judge import Judge, Key
from gateway.metrics.live import STEP_S, Live
from gateway.metrics.observer import Observer
from gateway.metrics.workers import Parent
from gateway.pace import Pace

_LAST_S: Final = 1.0
"""How long a stopping worker waits until its judgements are stored."""

T = TypeVar("T")
_Judgements = tuple[Mapping[Key, Judged], Mapping[tuple[str, str], VersionAccuracy]]


class Publisher:
    """Shows an observer's numbers; with several workers, those of all that have the same ``parent``.

    ``new_pace`` makes the function that the thread calls between small pieces of work.
    """

    def __init__(
        self, observer: Observer, parent: Parent | None = None, *, new_pace: Callable[[], Callable[[], None]] = Pace,
        is_full: bool = False, judge: Judge | None = None, accuracy: Accuracy | None = None,
    ) -> None:  # fmt: skip
        self._is_full = is_full
        self._observer = observer
        self._parent = parent
        self._new_pace = new_pace
        self._live = Live(observer.failures)
        self._curves = Curves(observer.failures)
        self._judge = judge or Judge()
        self._versions = versions.Versions(self._judge.alarm_days)
        self._compared: Sequence[Mapping[str, Any]] = ()
        """How canaries compare with stable versions, if this process judges."""
        self._accuracy = accuracy or Accuracy()
        self._judges = False
        # With several workers, process metrics would describe only one of them.
        self._process = exposition.process_metrics() if parent is None else None
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="metrics")

    async def run(self) -> None:
        """Keep the other workers and the page up to date until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sample())
            if self._parent is not None:
                tasks.create_task(self._parent.run(self._own))

    async def close(self) -> None:
        """Store the judgements with the last counts, and report those to the parent."""
        with contextlib.suppress(Exception):  # closed already, or the disk or the parent hangs
            async with asyncio.timeout(_LAST_S):
                await self._read(self._end_judging)
        self._reader.shutdown(wait=False)
        if self._parent is not None:
            self._parent.close(self._own())

    async def metrics(self, accept: str, is_full: bool | None = None) -> tuple[bytes, str]:
        """Return the text of ``/metrics`` in the form that ``accept`` asks for, and its content type.

        ``is_full`` overrides the configured level of detail. Raises ``InternalError`` if the workers' numbers cannot be
        added up.
        """
        shows_all = self._is_full if is_full is None else is_full
        brief = None if shows_all else self._observer.watch.declared

        def respond(snapshot: Snapshot, pause: Callable[[], None]) -> tuple[bytes, str]:
            return exposition.respond(accept, exposition.Numbers(snapshot, self._process, pause, brief))

        return await self._read(respond, is_newest=True)

    async def statistics(self) -> list[dict[str, Any]]:
        """Return the statistics of the Open Inference Protocol; see ``statistics``. Raises as ``metrics``."""
        return await self._read(statistics.of_snapshot, is_newest=True)

    async def last_minute(self) -> dict[str, Any]:
        """Return ``last_minute``, ``drift``, ``compared``, ``accuracy`` and ``objectives`` of ``/v1/status``.

        See ``Live``, ``versions`` and ``accuracy``.
        """
        return await self._read(self._last_minute)

    async def curves(self, endpoints: Sequence[str]) -> dict[str, Any]:
        """Return the curves of each of the endpoints; see ``Curves``."""
        now = time.monotonic()
        return {name: self._curves.of(name, now) for name in endpoints}

    def _last_minute(self, snapshot: Snapshot, pause: Callable[[], None]) -> dict[str, Any]:
        now = time.monotonic()
        return {
            "last_minute": self._live.rows(now, snapshot, pause), "drift": self._live.drift(snapshot, pause),
            "compared": list(snapshot.compared), "accuracy": accuracy.of_gauges(snapshot),
            "objectives": self._live.objectives(now, snapshot),
        }  # fmt: skip

    def _own(self) -> Snapshot:
        return replace(self._observer.snapshot(), compared=self._compared)

    async def _read(self, work: Callable[[Snapshot, Callable[[], None]], T], *, is_newest: bool = False) -> T:
        """Call ``work(snapshot, pause)`` in the thread, with the numbers of all workers."""
        for _ in self._observer.settling():
            await asyncio.sleep(0)  # counting is spread over many loop steps; copying takes one
        own = self._own()
        summed = None if self._parent is None else await self._parent.ask(own, is_newest=is_newest)

        def in_thread() -> T:
            pause = self._new_pace()
            return work(own if self._parent is None or summed is None else self._parent.read(summed, pause), pause)

        return await asyncio.get_running_loop().run_in_executor(self._reader, in_thread)

    def _judged(self, snapshot: Snapshot, pause: Callable[[], None]) -> _Judgements | None:
        self._live.sample(time.monotonic(), snapshot, pause)
        self._curves.sample(time.monotonic(), snapshot, pause)
        drifts = self._judge.update(time.time(), snapshot, pause)
        # The worker that judges drift also keeps the labels; the others show its gauges.
        self._judges = drifts is not None
        if drifts is None:
            return None
        self._compared = self._versions.update(time.time(), snapshot, self._observer.watch.declared, pause)
        return drifts, self._accuracy.update(time.time(), snapshot, pause)

    def _end_judging(self, snapshot: Snapshot, pause: Callable[[], None]) -> None:
        if self._judges:
            # Count what came since the last time: counters start from zero after a restart.
            self._accuracy.update(time.time(), snapshot, pause)
            self._accuracy.save()
        self._judge.close()

    async def _sample(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # the page misses one step; `/metrics` reports the cause
                found = await self._read(self._judged)
                if found is not None:
                    drifts, accuracies = found
                    self._observer.drifts(drifts, self._judge.alarm_days)
                    self._observer.compared(versions.evidence(self._compared))
                    self._observer.accuracies(accuracies)
            await asyncio.sleep(STEP_S)
