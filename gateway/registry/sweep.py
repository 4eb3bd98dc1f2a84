"""Keeps the artifact cache from growing without end: what nobody needs any more leaves, the longest unused first.

Called by ``cache``. Processes share a cache without knowing of each other, so needs are written down: every program
that uses the cache lists its entries in ``keep/NAME.json``, which outlives it (a start without the registry needs
them), and touches them while it runs. An entry leaves when no list names it, nobody has touched it for an hour, and
the cache is larger than it may be.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from gateway import durable
from gateway.pace import unhurried

UNTOUCHED_S: Final = 3600.0
"""An entry that was used this lately stays: who fetched it may not have listed it yet."""
FORGOTTEN_S: Final = 30 * 86400.0
"""A list this old belongs to a program that is gone."""
LEFT_S: Final = 86400.0
"""What was put together this long ago was left behind when a process was killed."""
MARK: Final = "manifest.json"
PART: Final = ".part"
"""Behind the name of an entry that is being put together, or taken away."""

_KEEP: Final = "keep"


def need(root: Path, name: str, entries: Iterable[str], now: float, pause: Callable[[], None] = unhurried) -> None:
    """Write down that the program ``name`` needs these entries (``kind/key``), and touch them.

    ``pause`` is called between entries. Raises ``OSError``.
    """
    wanted = sorted(set(entries))
    path = root / _KEEP / f"{name}.json"
    text = json.dumps(wanted)
    with contextlib.suppress(OSError):
        if path.read_text() == text:
            text = ""
    if text:
        durable.replace(path, text)
    os.utime(path, (now, now))
    for entry in wanted:
        with contextlib.suppress(OSError):
            os.utime(root / entry / MARK, (now, now))
        pause()


def needed(root: Path, now: float) -> set[str]:
    """Return the entries that any program has written down."""
    found: set[str] = set()
    for path in (root / _KEEP).glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            if now - path.stat().st_mtime < FORGOTTEN_S:
                found.update(str(entry) for entry in json.loads(path.read_text()))
    return found


def sweep(root: Path, max_bytes: int, now: float, pause: Callable[[], None] = unhurried) -> list[str]:
    """Delete what nobody needs until the cache has ``max_bytes`` at most, and return what was deleted.

    What is needed stays, however large it is; what a process left unfinished goes in any case. ``pause`` is called
    between entries.
    """
    kept = needed(root, now)
    total = 0
    for left in root.glob(f"*/*{PART}*"):
        pause()
        with contextlib.suppress(OSError):
            if now - left.stat().st_mtime >= LEFT_S:
                shutil.rmtree(left, ignore_errors=True)
    unneeded: list[tuple[float, int, Path]] = []
    for mark in root.glob(f"*/*/{MARK}"):
        entry = mark.parent
        pause()
        try:
            used, size = mark.stat().st_mtime, _size(entry)
        except OSError:
            continue  # another process was faster
        total += size
        if f"{entry.parent.name}/{entry.name}" not in kept and now - used >= UNTOUCHED_S:
            unneeded.append((used, size, entry))
    gone = []
    for _, size, entry in sorted(unneeded):
        if total <= max_bytes:
            break
        # Renamed first: a reader finds it whole or not at all.
        aside = Path(tempfile.mkdtemp(prefix=f"{entry.name}{PART}-", dir=entry.parent))
        try:
            entry.rename(aside / "old")
        except OSError:
            continue
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        total -= size
        gone.append(f"{entry.parent.name}/{entry.name}")
    return gone


def size_of(root: Path) -> int:
    """Return how many bytes the entries have. Raises ``OSError``."""
    return sum(_size(mark.parent) for mark in root.glob(f"*/*/{MARK}"))


def _size(entry: Path) -> int:
    return sum(path.stat().st_size for path in entry.rglob("*") if path.is_file())
