"""Publishes what a process counts: ``/metrics``, the last minutes for the page, statistics, numbers for other workers.

The event loop only copies its own numbers (well below a millisecond). Reading the other workers' numbers, adding them
up and formatting happens in one thread, which gives the interpreter back after every millisecond (``gateway.pace``);
writing this process's numbers for the others in a second one, because whoever waits for others must still answer them.
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

from gateway.metrics import accuracy, exemplars, exposition, sharing, statistics, variables, versions, words
from gateway.metrics.accumulator import Snapshot
from gateway.metrics.accuracy import Accuracy, Standing
from gateway.metrics.births import Births
from gateway.metrics.evidence import Judged
from gateway.metrics.judge import Judge, Key
from gateway.metrics.live import STEP_S, Live
from gateway.metrics.observer import Observer
from gateway.pace import Pace

LOOK_S: Final = 0.02
"""How often a worker looks whether another one is asked for the numbers of all."""
UNASKED_S: Final = 0.25
"""How old numbers get that nobody asks for: what a killed worker takes along at most."""
_WAIT_S: Final = 0.005
_ANSWER_S: Final = 0.25
"""How long the others have to write their numbers down; of one that is busy for longer the last ones count."""

_LAST_S: Final = 1.0
"""How long a worker that ends waits until its last numbers are written down."""

T = TypeVar("T")
_Looked = tuple[Mapping[Key, Judged], Mapping[tuple[str, str], Standing]]


class Publisher:
    """Shows an observer's numbers; with several workers, those of all that share ``folder``.

    ``new_pace`` makes what is called between small pieces of work in the thread.
    """

    def __init__(
        self, observer: Observer, folder: Path | None = None, *, new_pace: Callable[[], Callable[[], None]] = Pace,
        is_full: bool = False, judge: Judge | None = None, kept: Accuracy | None = None,
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
        """How canaries stand beside stable versions, if this process judges."""
        self._moved: dict[words.Pair, words.Moved] = {}
        """Words that have risen and fallen in this process, as the thread has found."""
        self._accuracy = kept or Accuracy()
        self._judges = False
        self._workers = sharing.Workers(folder) if folder is not None else None
        self._share = sharing.Share(folder) if folder is not None else None
        # With several workers these would be one worker's.
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
        """Leave the last numbers to the other workers."""
        with contextlib.suppress(RuntimeError, TimeoutError):  # closed before; or the disk hangs
            if self._share is not None:
                numbers, seen = self._observer.snapshot(), self._observer.exemplars.seen()
                self._writer.submit(self._write, numbers, seen, 0).result(_LAST_S)
            # In the thread that judges: what it is doing it finishes.
            self._reader.submit(self._end_judging, self._observer.snapshot()).result(_LAST_S)
        for pool in (self._reader, self._writer):
            pool.shutdown(wait=False)

    async def metrics(self, accept: str, is_full: bool | None = None) -> tuple[bytes, str]:
        """Return the text of ``/metrics`` in the form that ``accept`` asks for, and its content type.

        ``is_full``: another level of detail than the one that was set. Raises ``InternalError`` if the folder of the
        workers is gone.
        """
        await self._ask_others()
        own = self._observer.snapshot()  # which counts what waits, exemplars included
        shows_all = self._is_full if is_full is None else is_full
        brief = None if shows_all else self._observer.watch.declared
        return await self._read(partial(self._respond, accept, self._observer.exemplars.seen(), brief), own)

    async def statistics(self) -> list[dict[str, Any]]:
        """Return the statistics of the Open Inference Protocol; see ``statistics``. Raises as ``metrics``."""
        await self._ask_others()
        return await self._read(statistics.of_snapshot)

    async def last_minute(self) -> dict[str, Any]:
        """Return what ``/v1/status`` says of requests (``last_minute``) and ``drift``; see ``Live``.

        ``compared``: see ``versions``.
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
        drifts = self._live.drift(snapshot, pause)
        moved = self._moved
        if self._folder is not None and self._share is not None:
            moved = words.gathered(self._folder, moved, self._share.path)
        for drift in drifts:
            told = moved.get((drift["endpoint"], drift["version"]))
            if told is not None and drift["variable"] in variables.OF_WORDS:
                drift["words"] = words.described(told)
        return {
            "last_minute": self._live.rows(now, snapshot, pause), "drift": drifts,
            "compared": self._compared if self._judges or self._folder is None else versions.gathered(self._folder),
            "accuracy": accuracy.told(snapshot),
            "objectives": self._live.objectives(now, snapshot),
        }  # fmt: skip

    async def _read(self, work: Callable[[Snapshot, Callable[[], None]], T], own: Snapshot | None = None) -> T:
        """Call ``work(snapshot, pause)`` in the thread, with the numbers of all workers."""
        if own is None:
            for _ in self._observer.settling():
                await asyncio.sleep(0)  # counting what waits takes many steps of the loop, copying all numbers one
        mine = self._observer.snapshot() if own is None else own

        def in_thread() -> T:
            pause = self._new_pace()
            return work(mine if self._workers is None else self._workers.merged(mine, pause), pause)

        return await asyncio.get_running_loop().run_in_executor(self._reader, in_thread)

    async def _ask_others(self) -> None:
        """Wait until the other workers have written down what they had counted when this was called."""
        if self._folder is None or self._workers is None:
            return
        try:
            since = sharing.ask(self._folder)
        except OSError:
            return  # told by `merged` if the folder is gone
        until = time.monotonic() + _ANSWER_S
        have_answered = partial(self._workers.have_answered, since)
        while not await asyncio.get_running_loop().run_in_executor(self._reader, have_answered):
            if time.monotonic() > until:
                return
            await asyncio.sleep(_WAIT_S)

    async def _answer_others(self) -> None:
        assert self._folder is not None  # noqa: S101 - see `run`
        loop = asyncio.get_running_loop()
        # This worker may have taken the place of one that ended.
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
        except Exception:  # noqa: BLE001 - a full disk, a removed folder: the others see the last numbers
            self._observer.complain()

    def _fold(self, folder: Path) -> None:
        try:
            sharing.fold(folder)
        except Exception:  # noqa: BLE001 - as in `_write`; the numbers are all there, in more files
            self._observer.complain()

    def _look(
        self, recent: Mapping[words.Pair, words.Recent], snapshot: Snapshot, pause: Callable[[], None]
    ) -> _Looked | None:
        self._live.sample(time.monotonic(), snapshot, pause)
        moved = {}
        for pair, one in recent.items():
            pause()
            moved[pair] = one.moved()
        self._moved = moved
        if self._share is not None:
            with contextlib.suppress(OSError):  # the others do without this worker's words
                words.share(moved, self._share.path)
        drifts = self._judge.look(time.time(), snapshot, pause)
        # Who judges drift also keeps the labels: the others show its gauges.
        self._judges = drifts is not None
        if drifts is not None:
            declared = self._observer.watch.declared
            self._compared = self._versions.look(time.time(), snapshot, declared, pause)
            if self._share is not None:
                with contextlib.suppress(OSError):  # as above
                    versions.share(self._compared, self._share.path)
        return None if drifts is None else (drifts, self._accuracy.look(time.time(), snapshot, pause))

    def _end_judging(self, own: Snapshot) -> None:
        if self._judges:
            # What came since the last look would be forgotten: counters begin anew.
            self._accuracy.look(time.time(), own if self._workers is None else self._workers.merged(own))
            self._accuracy.save()
        self._judge.close()

    async def _sample(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # a page without its newest step; `/metrics` says what is wrong
                found = await self._read(partial(self._look, self._observer.watch.recent_words()))
                if found is not None:
                    drifts, accuracies = found
                    self._observer.drifts(drifts, self._judge.alarm_days)
                    self._observer.compared(versions.evidence(self._compared))
                    self._observer.accuracies(accuracies)
            await asyncio.sleep(STEP_S)
