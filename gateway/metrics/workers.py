"""The numbers of several workers: each reports to its parent, which adds up for the worker that is scraped.

A worker and its parent have a pair of Unix sockets. A message is a word and a number, and may come with an open file
that has no name and holds a snapshot (``Writer``), so that no message is ever sent or read in part. Each worker reports
its numbers about once a second. A worker that is asked for ``/metrics`` sends its own and asks for the sum of the
``newest``; the parent asks the others to ``report`` and answers with the ``sum`` when all have ``reported``, or after
``WAIT_S`` with the last ones it has. Whatever ``/metrics`` has shown was reported before, so no counter of it falls.

Counts of ended workers stay in the sum; their gauges (such as requests in flight) do not. Of a killed worker, what it
counted after its last report is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import IO, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from gateway.errors import InternalError
from gateway.metrics.accumulator import Series, Snapshot
from gateway.metrics.catalog import IN_FLIGHT

REPORT_S: Final = 1.0
"""How often a worker reports without being asked: a killed one loses at most about this much."""
WAIT_S: Final = 0.25
"""How long the parent waits for the numbers of all workers."""
_GIVE_UP_S: Final = 10.0
"""How long a worker waits for its parent."""
_LAST_S: Final = 10.0
"""How long a worker that stops waits until its last report is sent."""

_SIZES: Final = struct.Struct("<6Q")
"""The number of counters, gauges, numbers of histograms and histograms; the bytes of the series and of the rest."""
_COUNTER, _GAUGE, _HISTOGRAM = range(3)
_NONE: Final = np.zeros(0)
_NOTHING: Final = Snapshot((), (), (), _NONE, _NONE, _NONE, _NONE, _NONE)

_log = logging.getLogger("triton_gateway.metrics")


class Writer:
    """Writes snapshots of one origin as bytes: sizes, arrays, a JSON line per series, and the rest as JSON.

    Series are only ever added, so their lines are made once.
    """

    def __init__(self) -> None:
        self._lines = bytearray()
        self._begun = [0, 0, 0]

    def write(self, snapshot: Snapshot) -> bytes:
        """Return a snapshot as bytes."""
        for kind, series in enumerate((snapshot.counters, snapshot.gauges, snapshot.histograms)):
            for one in series[self._begun[kind] :]:
                self._lines += orjson.dumps((kind, *one)) + b"\n"
            self._begun[kind] = len(series)
        columns = (snapshot.counts, snapshot.values, snapshot.times, snapshot.buckets, snapshot.since)
        rest = orjson.dumps([(*key, *seen) for key, seen in snapshot.exemplars.items()])
        sizes = _SIZES.pack(*(len(columns[i]) for i in (0, 1, 3, 4)), len(self._lines), len(rest))
        return b"".join((sizes, *(column.tobytes() for column in columns), self._lines, rest))


class Reader:
    """Reads what one ``Writer`` has written; known series are not read again."""

    def __init__(self) -> None:
        self._lines = b""
        self._series: tuple[list[Series], ...] = ([], [], [])

    def read(self, content: bytes) -> Snapshot:
        """Return the snapshot."""
        counts, gauges, buckets, histograms, length, _ = _SIZES.unpack_from(content)
        lengths = (counts, gauges, gauges, buckets, histograms)
        numbers = np.frombuffer(content, np.float64, sum(lengths), _SIZES.size)
        counted, values, times, seen, since = np.split(numbers, np.cumsum(lengths[:-1]))
        start = _SIZES.size + numbers.nbytes
        lines = content[start : start + length]
        if not lines.startswith(self._lines):
            self._lines, self._series = b"", ([], [], [])  # another origin
        for line in lines[len(self._lines) :].splitlines():
            kind, name, labels, bounds = orjson.loads(line)
            self._series[kind].append(Series(name, (*labels,), (*bounds,)))
        self._lines = lines
        exemplars = orjson.loads(content[start + length :])
        counters, shown, distributed = map(tuple, self._series)
        return Snapshot(
            counters, shown, distributed, counted, values, times, seen, since,
            {(*labels, bucket): (trace, seconds, at) for *labels, bucket, trace, seconds, at in exemplars},
        )  # fmt: skip


class Sum:
    """Adds up snapshots of several origins; a series keeps its position in the sum."""

    def __init__(self) -> None:
        self._places: tuple[dict[Series, int], ...] = ({}, {}, {})
        self._starts: list[int] = []
        self._width = 0
        self._at: dict[object, tuple[list[int], ...]] = {}
        """Positions of each origin's counters, gauges, histograms, and numbers of histograms."""

    def of(self, parts: Iterable[tuple[object, Snapshot]]) -> Snapshot:
        """Return the sum; each part has the name of its origin, whose series are only ever added."""
        named = dict(parts)
        for origin in self._at.keys() - named.keys():
            del self._at[origin]
        placed = [(self._placed(origin, snapshot), snapshot) for origin, snapshot in named.items()]
        counters, gauges, histograms = self._places
        counts, values, times = np.zeros(len(counters)), np.zeros(len(gauges)), np.zeros(len(gauges))
        buckets, since = np.zeros(self._width), np.zeros(len(histograms))
        adds_up = np.array([series.metric == IN_FLIGHT.name for series in gauges], dtype=bool)
        exemplars: dict[tuple[str, str, str, int], tuple[str, float, float]] = {}
        for (to_counts, to_gauges, to_histograms, to_buckets), one in placed:
            # All series of one origin differ, so no position occurs twice.
            counts[to_counts] += one.counts
            buckets[to_buckets] += one.buckets
            since[to_histograms] = np.maximum(since[to_histograms], one.since)
            summed, is_newer = adds_up[to_gauges], one.times > times[to_gauges]
            values[to_gauges[summed]] += one.values[summed]
            times[to_gauges[is_newer]] = one.times[is_newer]
            values[to_gauges[is_newer & ~summed]] = one.values[is_newer & ~summed]
            for key, seen in one.exemplars.items():
                if key not in exemplars or seen[2] > exemplars[key][2]:
                    exemplars[key] = seen
        return Snapshot(
            tuple(counters), tuple(gauges), tuple(histograms), counts, values, times, buckets, since, exemplars,
        )  # fmt: skip

    def _placed(self, origin: object, snapshot: Snapshot) -> tuple[NDArray[np.intp], ...]:
        known = self._at.setdefault(origin, ([], [], [], []))
        for kind, series in enumerate((snapshot.counters, snapshot.gauges, snapshot.histograms)):
            places = self._places[kind]
            for one in series[len(known[kind]) :]:
                position = places.setdefault(one, len(places))
                known[kind].append(position)
                if kind == _HISTOGRAM:
                    if position == len(self._starts):
                        self._starts.append(self._width)
                        self._width += one.width
                    known[3].extend(range(self._starts[position], self._starts[position] + one.width))
        return tuple(np.array(positions, dtype=np.intp) for positions in known)


class Totals:
    """In the parent: what each worker has reported last, and who waits for the sum. No call blocks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._living: dict[socket.socket, bytes] = {}
        self._readers: dict[socket.socket, Reader] = {}
        self._ended = _NOTHING
        self._sum, self._writer = Sum(), Writer()
        self._asked: dict[tuple[socket.socket, int], tuple[float, set[socket.socket]]] = {}
        """Until when to wait, and for whom, by who asked and the number of the question."""

    def add(self, worker: socket.socket) -> None:
        """Listen to a new worker."""
        worker.setblocking(False)
        self._living[worker], self._readers[worker] = b"", Reader()

    def hear(self, worker: socket.socket) -> list[str]:
        """Take what a worker has said, and answer; return the words."""
        words = []
        while (message := _receive(worker)) is not None:
            word, number, content = message
            words.append(word)
            if content and worker in self._living:
                self._living[worker] = content
            if word == "newest":
                asked = {other for other in self._living if other is not worker and _send(other, "report", number)}
                self._asked[worker, number] = (self._clock() + WAIT_S, asked)
            elif word == "reported":
                for (_, question), (_, awaited) in self._asked.items():
                    if question == number:
                        awaited.discard(worker)
        if words:
            self.answer()
        return words

    def answer(self) -> float:
        """Answer whoever has waited enough; return the seconds until the next one has."""
        now = self._clock()
        due = [key for key, (until, awaited) in self._asked.items() if not awaited or now >= until]
        for key in due:
            del self._asked[key]
        if due:
            content = self._writer.write(self.sum())
            for worker, number in due:
                _send(worker, "sum", number, content)
        return min((until - now for until, _ in self._asked.values()), default=_GIVE_UP_S)

    def sum(self) -> Snapshot:
        """Return the sum of what all workers have reported last."""
        return self._sum.of(self._parts(self._living))

    def end(self, worker: socket.socket) -> None:
        """Keep the counts of a worker that has ended."""
        self.hear(worker)
        ended = self._sum.of(self._parts((worker,)))
        # Its gauges say nothing any more.
        self._ended = replace(
            ended, values=np.zeros_like(ended.values), times=np.zeros_like(ended.times)
        )  # fmt: skip
        del self._living[worker], self._readers[worker]
        self._asked = {
            key: (until, awaited - {worker}) for key, (until, awaited) in self._asked.items() if key[0] is not worker
        }

    def _parts(self, of: Iterable[socket.socket]) -> list[tuple[object, Snapshot]]:
        said = [(worker, content) for worker in of if (content := self._living[worker])]
        return [("ended", self._ended), *((worker, self._readers[worker].read(content)) for worker, content in said)]


class Parent:
    """In a worker: the way to its parent. For use by one event loop."""

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        self._link = link
        self._writer = Writer()
        self.read = Reader().read
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics-report")
        self._sent = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that listens to the parent."""
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._reports: set[asyncio.Task[None]] = set()

    async def run(self, snapshot: Callable[[], Snapshot]) -> None:
        """Report this worker's numbers when the parent asks, until ``close``, and now and then, until cancelled."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._link, self._hear, snapshot)
        while True:
            await self._report(snapshot(), 0)
            await asyncio.sleep(REPORT_S)

    async def ask(self, own: Snapshot) -> bytes:
        """Return the sum over all workers, with the others' newest numbers.

        ``read`` makes a snapshot of it, in any one thread. Raises ``InternalError`` if the parent does not answer:
        without the others' numbers, counters would fall.
        """
        number = next(self._numbers) << 24 | os.getpid()  # differs from the other workers' questions
        loop = asyncio.get_running_loop()
        answer = self._waiting[number] = loop.create_future()
        try:
            if not await loop.run_in_executor(self._thread, self._write, "newest", number, own):
                raise TimeoutError
            return await asyncio.wait_for(answer, _GIVE_UP_S)
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
            self._thread.submit(self._write, "reported", 0, own).result(_LAST_S)
        self._thread.shutdown(wait=False)

    def _hear(self, snapshot: Callable[[], Snapshot]) -> None:
        while (message := _receive(self._link)) is not None:
            word, number, content = message
            if word == "report":
                task = asyncio.get_running_loop().create_task(self._report(snapshot(), number))
                self._reports.add(task)
                task.add_done_callback(self._reports.discard)
            elif (answer := self._waiting.get(number)) is not None and not answer.done():
                answer.set_result(content)

    async def _report(self, own: Snapshot, number: int) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, "reported", number, own)

    def _write(self, word: str, number: int, own: Snapshot) -> bool:
        content = self._writer.write(own)
        is_new = content != self._sent
        is_sent = not (is_new or number) or _send(self._link, word, number, content if is_new else b"")
        if is_sent:
            self._sent = content
        return is_sent


def _send(to: socket.socket, word: str, number: int, content: bytes = b"") -> bool:
    """Send a message; return whether the other side can get it. Never blocks."""
    message = [f"{word} {number}".encode()]
    try:
        if not content:
            to.sendmsg(message, (), socket.MSG_DONTWAIT)
            return True
        with _nameless() as file:
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
        message, files, _, _ = socket.recv_fds(link, 64, 1, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
    except OSError:
        return None
    content = b""
    for one in files:
        with os.fdopen(one, "rb") as file:
            file.seek(0)
            content = file.read()
    word, _, number = message.decode().partition(" ")
    return (word, int(number or 0), content) if word else None


def _nameless() -> IO[bytes]:
    """Return a new file in memory, or where there are none, in the temporary folder."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("triton-gateway-numbers"), "w+b")
    return tempfile.TemporaryFile()
