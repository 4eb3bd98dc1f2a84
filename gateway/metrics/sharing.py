"""Adds up the numbers of several workers: each writes its own to a file in a shared folder.

A worker writes its file under a temporary name and renames it, so a reader sees a complete state. On a full disk a
worker loses its newest numbers; a write to a mapped file would crash its process. The file has three parts: a header,
the series in the order of their creation (one JSON line each), and the arrays of the snapshot as they are in memory.
Series are only ever added, so a reader that knows a worker reads the new lines and the arrays. Adding up takes a few
array operations per worker, whatever the number of series.

Counts of ended workers stay in the sum; their gauges (such as requests in flight) do not. ``fold`` merges the files of
ended workers into one, so that the folder stays small.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

from gateway import locks
from gateway.errors import InternalError
from gateway.metrics.accumulator import Floats, Series, Snapshot
from gateway.metrics.catalog import IN_FLIGHT
from gateway.pace import unhurried

_HEADER: Final = struct.Struct("<q5Q")
"""When the worker was last asked (see ``asked``), the length of the series' lines in bytes, and the sizes of the
arrays: counters, gauges, buckets, histograms."""
_SUFFIX: Final = ".numbers"
EXEMPLARS: Final = ".exemplars"
COMPARED: Final = ".compared"
ASIDE: Final = ".new"
"""Suffix of files that are being written."""
_OF_PROCESSES: Final = (_SUFFIX, EXEMPLARS, COMPARED, ASIDE)
_ASKED: Final = "asked"

_ENDED: Final = "ended"
"""Name of the file with the merged numbers of ended workers."""
_COUNTER, _GAUGE, _HISTOGRAM, _FOLDED = range(4)
"""Kinds of lines: three kinds of series, and the names of workers that are merged into the file."""
_TRIES: Final = 10
"""Attempts to read all files while ``fold`` changes them."""

Positions = NDArray[np.intp]


def ask(folder: Path) -> int:
    """Ask the other workers to write their numbers; return the time in ns since 1970. Raises ``OSError``."""
    path, now = folder / _ASKED, time.time_ns()
    path.touch()
    os.utime(path, ns=(now, now))  # exact to the nanosecond; touch rounds to ticks of the kernel
    return now


def asked(folder: Path) -> int:
    """Return when a worker last asked, in ns since 1970; 0 if never."""
    try:
        return (folder / _ASKED).stat().st_mtime_ns
    except OSError:
        return 0


class Share:
    """Writes one process's numbers for the other workers. Not thread-safe."""

    def __init__(self, folder: Path, name: str = "", folded: Iterable[str] = ()) -> None:
        """``name`` defaults to this process's; ``folded`` are workers whose numbers are merged into the file."""
        self.path = folder / f"{name or this_process()}{_SUFFIX}"
        self._aside = self.path.with_suffix(ASIDE)
        self._lines = bytearray(b"".join(_line(_FOLDED, name) for name in folded))
        self._begun = [0, 0, 0]
        """Number of series of each kind that have a line."""
        self._written: tuple[object, ...] = ()

    def write(self, snapshot: Snapshot, answers: int = 0, pause: Callable[[], None] = unhurried) -> None:
        """Write a snapshot if it differs from the last one. ``answers`` is the value of ``asked`` before it was made.

        Raises ``OSError``.
        """
        for kind, series in _kinds(snapshot):
            for one in series[self._begun[kind] :]:
                pause()
                self._lines += _line(kind, *one)
                self._begun[kind] += 1
        header = _HEADER.pack(
            answers, len(self._lines), len(snapshot.counts), len(snapshot.values), len(snapshot.buckets),
            len(snapshot.since),
        )  # fmt: skip
        numbers = np.concatenate(_columns(snapshot)).tobytes()
        if (header, numbers) == self._written:
            return
        try:
            with self._aside.open("wb") as file:
                file.write(header)
                file.write(self._lines)
                file.write(numbers)
            self._aside.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                self._aside.unlink()
            raise
        self._written = header, numbers


def replace(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` atomically, without a sync to disk. Raises ``OSError``."""
    aside = path.with_name(f"{path.name}{ASIDE}")
    aside.write_bytes(content)
    aside.replace(path)


def _line(kind: int, name: str, labels: tuple[str, ...] = (), bounds: tuple[float, ...] = ()) -> bytes:
    return orjson.dumps((kind, name, labels, bounds)) + b"\n"


def _kinds(snapshot: Snapshot) -> tuple[tuple[int, tuple[Series, ...]], ...]:
    return (_COUNTER, snapshot.counters), (_GAUGE, snapshot.gauges), (_HISTOGRAM, snapshot.histograms)


def _columns(snapshot: Snapshot) -> tuple[Floats, ...]:
    return snapshot.counts, snapshot.values, snapshot.times, snapshot.buckets, snapshot.since


class Workers:
    """Adds up the numbers of all workers that share a folder, and remembers their series. Not thread-safe.

    ``is_alive`` takes a file's stem and returns whether its process is running.
    """

    def __init__(self, folder: Path, own: str = "", is_alive: Callable[[str], bool] | None = None) -> None:
        """``own`` is the stem of this process's file."""
        self._folder = folder
        self._own = own or this_process()
        self._is_alive = is_alive or _is_running
        self._known: dict[str, _Worker] = {}
        self._sum = _Sum()

    def have_answered(self, since: int) -> bool:
        """Whether all running workers have written their numbers since they were asked at ``since``."""
        return all(
            _answers(path) >= since
            for path in self._folder.glob(f"*{_SUFFIX}")
            if path.stem != self._own and self._is_alive(path.stem)
        )

    def merged(self, own: Snapshot, pause: Callable[[], None] = unhurried) -> Snapshot:
        """Return the sum over all workers; ``own`` are this process's current numbers.

        ``pause`` is called between small pieces of work. Raises ``InternalError`` if the folder does not exist.
        """
        if not self._folder.is_dir():
            # Without this check the numbers of all other workers would be missing without notice.
            raise InternalError(
                f"the folder that the workers count in is gone: {self._folder}", hint="restart the gateway"
            )
        mine = self._known.setdefault(self._own, _Worker(self._sum))
        mine.take(own, pause)
        return self._sum.of([mine, *self._read_others(pause)], pause)

    def _read_others(self, pause: Callable[[], None]) -> list[_Worker]:
        ended = self._folder / f"{_ENDED}{_SUFFIX}"
        found: dict[str, _Worker] = {}
        for _ in range(_TRIES):
            before = _stamp(ended)
            found = {}
            for path in self._folder.glob(f"*{_SUFFIX}"):
                if path.stem != self._own:
                    worker = found[path.stem] = self._known.setdefault(path.stem, _Worker(self._sum))
                    worker.is_alive = self._is_alive(path.stem)
                    worker.read(path, pause)
            if _stamp(ended) == before:  # otherwise numbers moved between files during the reading
                break
        folded = found[_ENDED].folded if _ENDED in found else set()
        for name in folded:
            self._known.pop(name, None)
        return [worker for name, worker in found.items() if name not in folded]


def fold(folder: Path, is_alive: Callable[[str], bool] | None = None) -> None:
    """Merge the numbers of ended workers into one file and delete their files. Raises ``OSError``.

    Safe against a kill at any moment: the merged file names the workers it contains, so a file that was not deleted yet
    is not counted again.
    """
    alive = is_alive or _is_running
    with (folder / "fold.lock").open("a") as lock:
        try:
            locks.lock(lock, waits=False)
        except BlockingIOError:
            return  # another worker is doing it
        left = [
            p for p in folder.iterdir() if p.suffix in _OF_PROCESSES and _owner(p) != _ENDED and not alive(_owner(p))
        ]
        gone = [path for path in left if path.suffix == _SUFFIX]
        total = _Sum()
        ended = _Worker(total)
        ended.read(folder / f"{_ENDED}{_SUFFIX}", unhurried)
        new = {path.stem: _Worker(total) for path in gone if path.stem not in ended.folded}
        for name, worker in new.items():
            worker.read(folder / f"{name}{_SUFFIX}", unhurried)
        for worker in (ended, *new.values()):
            worker.is_alive = False
        if new:
            everything = total.of((ended, *new.values()), unhurried)
            Share(folder, _ENDED, sorted({*ended.folded, *new})).write(everything)
        for path in left:
            path.unlink(missing_ok=True)


def _owner(path: Path) -> str:
    """Return the name of the process whose file this is; a file that is being written has two suffixes."""
    return path.name.partition(".")[0]


class _Worker:
    """The last known state of one worker, and the positions of its numbers in the sum."""

    def __init__(self, total: _Sum) -> None:
        self._total = total
        self.is_alive = True
        self.stamp: tuple[int, int] = (0, 0)
        """Inode and time of the file that was read."""
        self.folded: set[str] = set()
        """Workers whose numbers are merged into this one's file."""
        self._taken = [0, 0, 0]
        self._read = 0
        """Bytes of lines that were read."""
        self._at: tuple[list[int], ...]
        self.at: tuple[Positions, ...]
        """Positions of its counters, gauges, buckets and histograms in the sum."""
        self._forget()
        self.columns: tuple[Floats, ...] = tuple(np.zeros(0) for _ in range(5))

    def _forget(self) -> None:
        self._read, self.folded = 0, set()
        self._at = ([], [], [], [])
        self.at = tuple(np.zeros(0, dtype=np.intp) for _ in self._at)

    def read(self, path: Path, pause: Callable[[], None]) -> None:
        """Read what the worker has written since the last time."""
        with contextlib.suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
            stat = os.fstat(file.fileno())
            if (stamp := (stat.st_ino, stat.st_mtime_ns)) == self.stamp:
                return
            if path.stem == _ENDED:  # its lines may have another order now
                self._forget()
            _, length, *sizes = _HEADER.unpack(file.read(_HEADER.size))
            counts, gauges, buckets, _ = sizes
            start = _HEADER.size + self._read
            lines = os.pread(file.fileno(), length - self._read, start)
            numbers = np.frombuffer(os.pread(file.fileno(), stat.st_size, _HEADER.size + length), dtype=np.float64)
            pause()
            for line in lines.splitlines():
                kind, name, labels, bounds = orjson.loads(line)
                if kind == _FOLDED:
                    self.folded.add(name)
                else:
                    self._add(kind, Series(name, (*labels,), (*bounds,)))
                pause()
            self._fix()
            self._read, self.stamp = length, stamp
            self.columns = tuple(np.split(numbers, np.cumsum((counts, gauges, gauges, buckets))))

    def take(self, own: Snapshot, pause: Callable[[], None]) -> None:
        """Take this process's own numbers."""
        for kind, series in _kinds(own):
            for one in series[self._taken[kind] :]:
                self._add(kind, one)
                self._taken[kind] += 1
                pause()
        self._fix()
        self.columns = _columns(own)

    def _add(self, kind: int, series: Series) -> None:
        position, first = self._total.place(kind, series)
        if kind == _HISTOGRAM:
            self._at[2].extend(range(first, first + series.width))
            self._at[3].append(position)
        else:
            self._at[kind].append(position)

    def _fix(self) -> None:
        if any(len(known) != len(fixed) for known, fixed in zip(self._at, self.at, strict=True)):
            self.at = tuple(np.array(known, dtype=np.intp) for known in self._at)


class _Sum:
    """All series of all workers, and the positions of their numbers."""

    def __init__(self) -> None:
        self._places: tuple[dict[Series, int], ...] = ({}, {}, {})
        self._starts: list[int] = []
        self._width = 0
        self._adds: list[bool] = []
        """For each gauge, whether workers' values are added; otherwise the newest value is used."""

    def place(self, kind: int, series: Series) -> tuple[int, int]:
        """Return a series' position among its kind, and the start of a histogram's numbers."""
        places = self._places[kind]
        position = places.setdefault(series, len(places))
        if kind == _GAUGE and position == len(self._adds):
            self._adds.append(series.metric == IN_FLIGHT.name)
        if kind != _HISTOGRAM:
            return position, 0
        if position == len(self._starts):
            self._starts.append(self._width)
            self._width += series.width
        return position, self._starts[position]

    def of(self, workers: Iterable[_Worker], pause: Callable[[], None]) -> Snapshot:
        """Return the sum over ``workers``."""
        counters, gauges, histograms = self._places
        adds = np.array(self._adds, dtype=bool)
        counts, values, times = np.zeros(len(counters)), np.zeros(len(gauges)), np.zeros(len(gauges))
        buckets, since = np.zeros(self._width), np.zeros(len(histograms))
        for worker in workers:
            pause()
            to_counts, to_gauges, to_buckets, to_histograms = worker.at
            its_counts, its_values, its_times, its_buckets, its_since = worker.columns
            # All series of one worker differ, so no position occurs twice.
            counts[to_counts] += its_counts
            buckets[to_buckets] += its_buckets
            since[to_histograms] = np.maximum(since[to_histograms], its_since)
            if worker.is_alive:
                summed = adds[to_gauges]
                values[to_gauges[summed]] += its_values[summed]
                is_newer = its_times > times[to_gauges]
                times[to_gauges[is_newer]] = its_times[is_newer]
                is_newer &= ~summed
                values[to_gauges[is_newer]] = its_values[is_newer]
        return Snapshot(tuple(counters), tuple(gauges), tuple(histograms), counts, values, times, buckets, since)


def _stamp(path: Path) -> tuple[int, int]:
    """Return inode and modification time of a file; (0, 0) if it does not exist."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_ino, stat.st_mtime_ns


def _answers(path: Path) -> int:
    with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
        return int(_HEADER.unpack(file.read(_HEADER.size))[0])
    return 0


def _process(pid: int | str) -> tuple[str, str]:
    """Return a process's state and start time (clock ticks since boot). Raises ``OSError``."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        if Path("/proc/self").exists():
            raise
        return _asked(os.getpid() if pid == "self" else int(pid))
    return state, rest[18]


def _asked(pid: int) -> tuple[str, str]:
    import psutil

    try:
        process = psutil.Process(pid)
        return "Z" if process.status() == psutil.STATUS_ZOMBIE else "S", f"{process.create_time() * 100:.0f}"
    except psutil.Error as error:
        raise ProcessLookupError(errno.ESRCH, str(error)) from error


def this_process() -> str:
    """Return the name of this process's files: its id and start time, because ids are used again."""
    return f"{os.getpid()}-{_process('self')[1]}"


def _is_running(name: str) -> bool:
    pid, _, started = name.partition("-")
    try:
        state, since = _process(pid)
    except OSError:
        return False
    return since == started and state not in "ZX"
