"""The numbers of several workers: each reports its own to its parent, which adds them up, and shows the sum.

A worker and its parent have a pair of Unix sockets. A message is a word and a number, and may come with an open file
that has no name and holds the content, so that no message is ever sent or read in part. A worker that is asked for
``/metrics`` reports the numbers that have changed and passes the question on; the parent lets the others report, and
answers when all have, or after ``WAIT_S``. Whatever was shown was reported before, so no counter falls.

Counts of ended workers stay in the sum; their gauges (such as requests in flight) do not. Of a killed worker, what it
counted since anybody last asked is lost: with the page's own question (``publisher``) at most ``views.STEP_S``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import operator
import os
import pickle
import socket
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from gateway.errors import InternalError
from gateway.metrics.accumulator import Gauge, Histogram, Series, Snapshot, Value
from gateway.metrics.catalog import IN_FLIGHT, POOL_WAITING, QUEUED, WORK
from gateway.metrics.views import Views

WAIT_S: Final = 0.25
"""How long the parent waits for the numbers of all workers."""
_GIVE_UP_S: Final = 10.0
"""How long a worker waits for its parent."""
_LAST_S: Final = 10.0
"""How long a worker that stops waits until its last report is sent."""

_PARTS: Final = frozenset(metric.name for metric in (IN_FLIGHT, QUEUED, WORK, POOL_WAITING))
"""Gauges of what each worker has of its own: of several workers, they add up."""

_log = logging.getLogger("triton_gateway.metrics")


def together(series: Series, one: Any, other: Any) -> Any:
    """Return two workers' values of a series as one: their sum, or of most gauges the newest.

    Of histograms whose bounds differ, the newest is used: its worker has the newest declaration.
    """
    if isinstance(one, float):
        return one + other
    if isinstance(one, Histogram) and one.bounds == other.bounds:
        numbers = array("d", map(operator.add, array("d", one.numbers), array("d", other.numbers)))
        marks = sorted((*one.exemplars.items(), *other.exemplars.items()), key=lambda mark: mark[1].at)
        return Histogram(one.bounds, max(one.at, other.at), numbers.tobytes(), dict(marks))
    newest = max(one, other, key=lambda value: float(value.at))
    return newest._replace(value=one.value + other.value) if series.metric in _PARTS else newest


@dataclass
class _Question:
    """What a worker has asked: until when and for whom its answer waits."""

    worker: socket.socket
    number: int
    asked: tuple[Any, ...]
    until: float
    awaited: set[socket.socket]


class Totals:
    """In the parent: the sum of what workers have reported, and who waits for it. No call blocks for long."""

    def __init__(self, views: Views, clock: Callable[[], float] = time.monotonic) -> None:
        self._views = views
        self._clock = clock
        self._living: dict[socket.socket, dict[Series, Value]] = {}
        self._ended: dict[Series, Value] = {}
        """The sum of the workers that have ended, without their gauges."""
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Question] = {}

    def add(self, worker: socket.socket) -> None:
        """Listen to a new worker."""
        worker.setblocking(False)
        self._living[worker] = {}

    def hear(self, worker: socket.socket) -> list[str]:
        """Take what a worker has said, and answer; return the words."""
        words = []
        while (message := _receive(worker)) is not None:
            word, number, content = message
            words.append(word)
            if word == "asks":
                asked = pickle.loads(content)  # noqa: S301 - of a child that has this process's rights anyway
                others, mine = self._living.keys() - {worker}, next(self._numbers)
                awaited = {other for other in others if _send(other, "report", mine)}
                self._asked[mine] = _Question(worker, number, asked, self._clock() + WAIT_S, awaited)
            elif word == "reports":
                if content:
                    known = self._living[worker] | pickle.loads(content)  # noqa: S301 - as above
                    self._living[worker] = {key: value for key, value in known.items() if value is not None}
                if number in self._asked:
                    self._asked[number].awaited.discard(worker)
        if words:
            self.answer()
        return words

    def answer(self) -> float:
        """Answer whoever has waited enough; return the seconds until this must be called again."""
        now = self._clock()
        due = [number for number, one in self._asked.items() if not one.awaited or now >= one.until]
        for number in due:
            one = self._asked.pop(number)
            _send(one.worker, "answer", one.number, self._shown(*one.asked))
        return min((one.until for one in self._asked.values()), default=math.inf) - now

    def _shown(self, question: Callable[..., Any], *asked: Any) -> bytes:
        try:
            return pickle.dumps(question(self._views, self.sum(), *asked))
        except Exception:  # noqa: BLE001 - the parent must go on: who has asked gets an error
            _log.exception("the workers' numbers cannot be shown")
            return b""

    def sum(self) -> Snapshot:
        """Return the sum of what all workers have reported."""
        return _sum(self._ended, *self._living.values())

    def end(self, worker: socket.socket) -> None:
        """Keep the counts of a worker that has ended."""
        self.hear(worker)
        counted = {key: value for key, value in self._living.pop(worker).items() if not isinstance(value, Gauge)}
        self._ended = _sum(self._ended, counted)
        self._asked = {number: one for number, one in self._asked.items() if one.worker is not worker}
        for one in self._asked.values():
            one.awaited.discard(worker)


class Parent:
    """In a worker: the way to its parent. For use by one event loop."""

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        self._link = link
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics-report")
        self._reported: Snapshot = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that listens to the parent."""
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    def listen(self, snapshot: Callable[[], Snapshot]) -> None:
        """Report this worker's numbers whenever the parent asks, until ``close``."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._link, self._hear, snapshot)

    async def ask(self, own: Snapshot, *question: object) -> Any:
        """Return the parent's answer to a question (a method of ``Views`` and its arguments) for all workers.

        Raises ``InternalError`` if the parent does not answer: without the others' numbers, counters would fall.
        """
        number, loop = next(self._numbers), asyncio.get_running_loop()
        answer = self._waiting[number] = loop.create_future()
        try:
            if not await loop.run_in_executor(self._thread, self._ask, number, own, question):
                raise TimeoutError
            if not (content := await asyncio.wait_for(answer, _GIVE_UP_S)):
                raise TimeoutError
            return pickle.loads(content)  # noqa: S301 - of the parent
        except TimeoutError as error:
            raise InternalError(
                "the gateway's parent process does not add up its workers' numbers",
                hint="if that lasts, restart the gateway",
            ) from error
        finally:
            del self._waiting[number]

    def close(self, own: Snapshot) -> None:
        """Report for the last time."""
        if self._loop is not None:
            self._loop.remove_reader(self._link)
        with contextlib.suppress(RuntimeError, TimeoutError):  # closed already, or the machine hangs
            self._thread.submit(self._write, own, 0).result(_LAST_S)
        self._thread.shutdown(wait=False)

    def _hear(self, snapshot: Callable[[], Snapshot]) -> None:
        while (message := _receive(self._link)) is not None:
            word, number, content = message
            if word == "report":
                self._thread.submit(self._write, snapshot(), number)  # in the order in which they are copied
            elif (answer := self._waiting.get(number)) is not None and not answer.done():
                answer.set_result(content)

    def _ask(self, number: int, own: Snapshot, question: tuple[object, ...]) -> bool:
        return self._write(own, 0) and _send(self._link, "asks", number, pickle.dumps(question))

    def _write(self, own: Snapshot, number: int) -> bool:
        before = self._reported
        report = {series: value for series, value in own.items() if before.get(series) != value}
        report |= dict.fromkeys(before.keys() - own.keys())  # type: ignore[arg-type]  # gauges that are gone: None
        content = pickle.dumps(report) if report else b""
        is_sent = not (report or number) or _send(self._link, "reports", number, content)
        if is_sent:
            self._reported = own
        return is_sent


def _sum(first: Snapshot, *others: Snapshot) -> dict[Series, Value]:
    found = dict(first)
    for other in others:
        for series, value in other.items():
            found[series] = together(series, found[series], value) if series in found else value
    return found


def _send(to: socket.socket, word: str, number: int, content: bytes = b"") -> bool:
    """Send a message; return whether the other side can get it. Never blocks."""
    message = [f"{word} {number}".encode()]
    try:
        if not content:
            to.sendmsg(message, (), socket.MSG_DONTWAIT)
            return True
        with os.fdopen(os.memfd_create("triton-gateway-numbers"), "w+b") as file:
            file.write(content)
            file.flush()
            socket.send_fds(to, message, [file.fileno()], socket.MSG_DONTWAIT)
    except OSError as error:  # it has ended, or hangs and its messages wait
        _log.debug("numbers could not be sent: %s", error)
        return False
    return True


def _receive(link: socket.socket) -> tuple[str, int, bytes] | None:
    """Return the next message: word, number and content; None if none waits."""
    try:
        message, files, _, _ = socket.recv_fds(link, 64, 1, socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return None
    content = b""
    for one in files:
        with os.fdopen(one, "rb") as file:
            file.seek(0)
            content = file.read()
    word, _, number = message.decode().partition(" ")
    return (word, int(number or 0), content) if word else None
