"""Publishes the numbers: ``/metrics``, the last minutes for the page, statistics, and files for the other workers.

The event loop only copies its own numbers (well below a millisecond). One thread reads the other workers' numbers, adds
them up and formats them; it releases the interpreter lock every millisecond (``gateway.pace``). A second thread writes
this process's numbers for the others, so that a worker that waits for the others still answers them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from gateway.metrics import accuracy, exemplars, exposition, sharing, statistics, versions
from gateway.metrics.accumulator import Snapshot
from gateway.metrics.accuracy import Accuracy, VersionAccuracy
from gateway.metrics.births import Births
from gateway.metrics.evidence import Judged
from gateway.metrics.judge import Judge, Key
from gateway.metrics.live import STEP_S, Live
from gateway.metrics.observer import Observer
from gateway.pace import Pace

LOOK_S: Final = 0.02
"""How often a worker checks whether it was asked for its numbers."""
UNASKED_S: Final = 0.25
"""How often a worker writes its numbers without being asked: a killed worker loses at most this much."""
_WAIT_S: Final = 0.005
_ANSWER_S: Final = 0.25
"""How long to wait for the other workers' numbers; of a worker that is slower, the last numbers are used."""

_LAST_S: Final = 1.0
"""How long a stopping worker waits until its last numbers are written."""

T = TypeVar("T")
_Looked = tuple[Mapping[Key, Judged], Mapping[tuple[str, str], VersionAccuracy]]


class Publisher:
    """Shows an observer's numbers; with several workers, those of all that share ``folder``.

    ``new_pace`` makes the function that the threads call between small pieces of work.
    """

    def __init__(
        self, observer: Observer, folder: Path | None = None, *, new_pace: Callable[[], Callable[[], None]] = Pace,
        is_full: bool = False, judge: Judge | None = None, accuracy: Accuracy | None = None,
    ) -> None:  # fmt: skip
        self._is_full = is_full
        self._observer = observer
        self._folder = folder
        self._new_pace = new_pace
        self._births = Births(observer.failures, folder)
        self._live = Live(observer.failures)
        self._judge = judge or Judge()
        self._versions = versions.Versions(self._judge.alarm_days)
        self._compared: list[dict[str, Any]] = []
        """How canaries compare with stable versions, if this process judges."""
        self._accuracy = accuracy or Accuracy()
        self._judges = False
        self._workers = sharing.Workers(folder) if folder is not None else None
        self._share = sharing.Share(folder) if folder is not None else None
        # With several workers, process metrics would describe only one of them.
        self._process = exposition.process_metrics() if folder is None else None
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="metrics-share")

    async def run(self) -> None:
        """Keep the other workers and the page up to date until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sample())
            if self._share is not None:
                tasks.create_task(self._answer_others())

    def close(self) -> None:
        """Write the last numbers for the other workers."""
        with contextlib.suppress(RuntimeError, TimeoutError):  # closed already, or the disk hangs
            if self._share is not None:
                numbers, seen = self._observer.snapshot(), self._observer.exemplars.seen()
                self._writer.submit(self._write, numbers, seen, 0).result(_LAST_S)
            # In the judging thread, after what it is doing.
            self._reader.submit(self._end_judging, self._observer.snapshot()).result(_LAST_S)
        for pool in (self._reader, self._writer):
            pool.shutdown(wait=False)

    async def metrics(self, accept: str, is_full: bool | None = None) -> tuple[bytes, str]:
        """Return the text of ``/metrics`` in the form that ``accept`` asks for, and its content type.

        ``is_full`` overrides the configured level of detail. Raises ``InternalError`` if the workers' folder is gone.
        """
        await self._ask_others()
        own = self._observer.snapshot()  # also counts exemplars that wait, so it comes first
        shows_all = self._is_full if is_full is None else is_full
        brief = None if shows_all else self._observer.watch.declared
        return await self._read(partial(self._respond, accept, self._observer.exemplars.seen(), brief), own)

    async def statistics(self) -> list[dict[str, Any]]:
        """Return the statistics of the Open Inference Protocol; see ``statistics``. Raises as ``metrics``."""
        await self._ask_others()
        return await self._read(statistics.of_snapshot)

    async def last_minute(self) -> dict[str, Any]:
        """Return ``last_minute``, ``drift``, ``compared``, ``accuracy`` and ``objectives`` of ``/v1/status``.

        See ``Live``, ``versions`` and ``accuracy``.
        """
        return await self._read(self._last_minute)

    def _respond(
        self, accept: str, seen: dict[exemplars.Key, exemplars.Seen], brief: exposition.Declared | None,
        snapshot: Snapshot, pause: Callable[[], None],
    ) -> tuple[bytes, str]:  # fmt: skip
        if self._folder is not None:
            seen = exemplars.gathered(self._folder, seen)
        numbers = exposition.Numbers(snapshot, seen, self._process, pause, brief, self._births)
        return exposition.respond(accept, numbers)

    def _last_minute(self, snapshot: Snapshot, pause: Callable[[], None]) -> dict[str, Any]:
        now = time.monotonic()
        return {
            "last_minute": self._live.rows(now, snapshot, pause), "drift": self._live.drift(snapshot, pause),
            "compared": self._compared if self._judges or self._folder is None else versions.gathered(self._folder),
            "accuracy": accuracy.of_gauges(snapshot),
            "objectives": self._live.objectives(now, snapshot),
        }  # fmt: skip

    async def _read(self, work: Callable[[Snapshot, Callable[[], None]], T], own: Snapshot | None = None) -> T:
        """Call ``work(snapshot, pause)`` in the thread, with the numbers of all workers."""
        if own is None:
            for _ in self._observer.settling():
                await asyncio.sleep(0)  # counting is spread over many loop steps; copying takes one
        mine = self._observer.snapshot() if own is None else own

        def in_thread() -> T:
            pause = self._new_pace()
            return work(mine if self._workers is None else self._workers.merged(mine, pause), pause)

        return await asyncio.get_running_loop().run_in_executor(self._reader, in_thread)

    async def _ask_others(self) -> None:
        """Wait until the other workers have written what they had counted when this was called."""
        if self._folder is None or self._workers is None:
            return
        try:
            since = sharing.ask(self._folder)
        except OSError:
            return  # `merged` raises if the folder is gone
        until = time.monotonic() + _ANSWER_S
        have_answered = partial(self._workers.have_answered, since)
        while not await asyncio.get_running_loop().run_in_executor(self._reader, have_answered):
            if time.monotonic() > until:
                return
            await asyncio.sleep(_WAIT_S)

    async def _answer_others(self) -> None:
        assert self._folder is not None  # noqa: S101 - see `run`
        loop = asyncio.get_running_loop()
        # This worker may replace one that ended.
        await loop.run_in_executor(self._writer, self._fold, self._folder)
        seen, due = 0, 0.0
        while True:
            asked, now = sharing.asked(self._folder), time.monotonic()
            if asked != seen or now >= due:
                seen, due = asked, now + UNASKED_S
                snapshot, news = self._observer.snapshot(), self._observer.exemplars.news(now)
                await loop.run_in_executor(self._writer, self._write, snapshot, news, asked)
            await asyncio.sleep(LOOK_S)

    def _write(self, snapshot: Snapshot, news: dict[exemplars.Key, exemplars.Seen] | None, asked: int) -> None:
        assert self._share is not None  # noqa: S101 - as above
        try:
            self._share.write(snapshot, asked, self._new_pace())
            if news:
                exemplars.share(news, self._share.path)
        except Exception:  # noqa: BLE001 - a full disk or a removed folder: the others keep the last numbers
            self._observer.complain()

    def _fold(self, folder: Path) -> None:
        try:
            sharing.fold(folder)
        except Exception:  # noqa: BLE001 - as in `_write`; the numbers remain, in more files
            self._observer.complain()

    def _look(self, snapshot: Snapshot, pause: Callable[[], None]) -> _Looked | None:
        self._live.sample(time.monotonic(), snapshot, pause)
        drifts = self._judge.look(time.time(), snapshot, pause)
        # The worker that judges drift also keeps the labels; the others show its gauges.
        self._judges = drifts is not None
        if drifts is not None:
            declared = self._observer.watch.declared
            self._compared = self._versions.look(time.time(), snapshot, declared, pause)
            if self._share is not None:
                with contextlib.suppress(OSError):  # the other workers do without these comparisons
                    versions.share(self._compared, self._share.path)
        return None if drifts is None else (drifts, self._accuracy.look(time.time(), snapshot, pause))

    def _end_judging(self, own: Snapshot) -> None:
        if self._judges:
            # Count what came since the last look: counters start from zero after a restart.
            self._accuracy.look(time.time(), own if self._workers is None else self._workers.merged(own))
            self._accuracy.save()
        self._judge.close()

    async def _sample(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # the page misses one step; `/metrics` reports the cause
                found = await self._read(self._look)
                if found is not None:
                    drifts, accuracies = found
                    self._observer.drifts(drifts, self._judge.alarm_days)
                    self._observer.compared(versions.evidence(self._compared))
                    self._observer.accuracies(accuracies)
            await asyncio.sleep(STEP_S)
