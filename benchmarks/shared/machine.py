"""CPU time, memory and core binding of processes, from ``/proc``. The pure parts take values.

CPU time of threads, and of children that ended and were waited for, is included, as the kernel adds it up.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of ``/proc/<pid>/stat`` used here."""

    parent: int
    cpu_seconds: float
    rss_bytes: int


def parse_stat(line: str, *, ticks: int = _TICKS, page: int = 4096) -> Stat:
    """Read one stat line; the name in it may hold spaces and brackets."""
    fields = line.rpartition(")")[2].split()
    cpu = sum(int(fields[i]) for i in (11, 12, 13, 14))  # utime, stime and those of waited-for children
    return Stat(int(fields[1]), cpu / ticks, int(fields[21]) * page)


def read_all() -> dict[int, Stat]:
    """Return the stat of every process of this machine."""
    found: dict[int, Stat] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                found[int(entry.name)] = parse_stat((entry / "stat").read_text())
    return found


def tree(roots: Iterable[int], stats: Mapping[int, Stat]) -> list[int]:
    """Return ``roots`` and all their descendants that live."""
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    found: list[int] = []
    todo = [pid for pid in roots if pid in stats]
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.append(pid)
            todo += children.get(pid, [])
    return found


def cpu_seconds(roots: Sequence[int]) -> float:
    """Return the CPU time the trees of ``roots`` have used so far."""
    stats = read_all()
    return sum(stats[pid].cpu_seconds for pid in tree(roots, stats))


def thread_seconds(pid: int) -> dict[tuple[int, str], float]:
    """Return the CPU time of every living thread of one process by (thread id, name)."""
    found: dict[tuple[int, str], float] = {}
    for task in (_PROC / str(pid) / "task").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            line = (task / "stat").read_text()
            fields = line.rpartition(")")[2].split()
            found[int(task.name), line[line.index("(") + 1 : line.rindex(")")]] = sum(map(int, fields[11:13])) / _TICKS
    return found


def rss_mb(roots: Sequence[int]) -> float:
    """Return the resident memory of the trees of ``roots``; pages shared between processes count for each."""
    stats = read_all()
    return sum(stats[pid].rss_bytes for pid in tree(roots, stats)) / (1 << 20)


def pin(roots: Sequence[int], cores: Iterable[int]) -> None:
    """Bind every thread of the trees of ``roots`` to ``cores``; threads made later inherit it."""
    wanted = set(cores)
    stats = read_all()
    for pid in tree(roots, stats):
        with contextlib.suppress(OSError):
            for task in (_PROC / str(pid) / "task").iterdir():
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(task.name), wanted)


def cpu_model() -> str:
    """Return the processor's name as the kernel gives it."""
    with contextlib.suppress(OSError):
        for line in (_PROC / "cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "unknown"
