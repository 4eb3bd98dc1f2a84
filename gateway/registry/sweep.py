"""Limits the size of the artifact cache: deletes entries that are no longer needed, the longest unused first.

``cache`` calls it. Processes share a cache without knowing each other, so each program lists the entries it needs in
``keep/NAME.json``, and touches them while it runs. The list outlives the program, because a start without the registry
needs these entries. An entry is deleted if no list names it, it was not touched for an hour, and the cache is too
large.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gateway import durable

UNTOUCHED_S: Final = 3600.0
"""An entry that was used within this time stays; the process that fetched it may not have listed it yet."""
FORGOTTEN_S: Final = 30 * 86400.0
"""A list that was not touched for this long belongs to a program that is gone."""
LEFT_S: Final = 86400.0
"""An unfinished entry of this age was left by a process that was killed."""
MARK: Final = "manifest.json"
PART: Final = ".part"
"""Suffix of an entry that is being created or deleted."""

_KEEP: Final = "keep"


def need(root: Path, name: str, entries: Iterable[str], now: float) -> None:
    """Record that the program ``name`` needs these entries (``kind/key``), and touch them.

    Raises ``OSError``.
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


def needed(root: Path, now: float) -> set[str]:
    """Return the entries that any program needs."""
    found: set[str] = set()
    for path in (root / _KEEP).glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            if now - path.stat().st_mtime < FORGOTTEN_S:
                found.update(str(entry) for entry in json.loads(path.read_text()))
    return found


def sweep(root: Path, max_bytes: int, now: float) -> list[str]:
    """Delete unneeded entries until the cache has at most ``max_bytes``; return what was deleted.

    Needed entries stay whatever their size. Unfinished entries of killed processes are always deleted.
    """
    kept = needed(root, now)
    total = 0
    for left in root.glob(f"*/*{PART}*"):
        with contextlib.suppress(OSError):
            if now - left.stat().st_mtime >= LEFT_S:
                shutil.rmtree(left, ignore_errors=True)
    unneeded: list[tuple[float, int, Path]] = []
    for mark in root.glob(f"*/*/{MARK}"):
        entry = mark.parent
        try:
            used, size = mark.stat().st_mtime, _size(entry)
        except OSError:
            continue  # another process has deleted it
        total += size
        if f"{entry.parent.name}/{entry.name}" not in kept and now - used >= UNTOUCHED_S:
            unneeded.append((used, size, entry))
    gone = []
    for _, size, entry in sorted(unneeded):
        if total <= max_bytes:
            break
        # Rename first, so that a reader finds the entry whole or not at all.
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
    """Return the size of all entries in bytes. Raises ``OSError``."""
    return sum(_size(mark.parent) for mark in root.glob(f"*/*/{MARK}"))


def _size(entry: Path) -> int:
    return sum(path.stat().st_size for path in entry.rglob("*") if path.is_file())
