"""Limits the size of the artifact cache: deletes entries that are no longer needed, the longest unused first.

``cache`` calls it. Processes share a cache without knowing each other, so each touches what it needs again and again.
An entry is deleted if the caller does not need it, nobody has touched it for an hour, and the cache is too large.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Final

UNTOUCHED_S: Final = 3600.0
"""An entry that was used within this time stays: another process may need it."""
LEFT_S: Final = 86400.0
"""An unfinished entry of this age was left by a process that was killed."""
MARK: Final = "manifest.json"
PART: Final = ".part"
"""Suffix of an entry that is being created or deleted."""


def touch(entry: Path, now: float) -> None:
    """Mark an entry as in use; no matter if it is not there."""
    with contextlib.suppress(OSError):
        os.utime(entry / MARK, (now, now))


def sweep(root: Path, needed: Collection[str], max_bytes: int, now: float) -> list[str]:
    """Delete unneeded entries until the cache has at most ``max_bytes``; return what was deleted.

    Entries that are ``needed`` (``kind/key``) stay whatever their size. Unfinished entries of killed processes are
    always deleted.
    """
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
        if f"{entry.parent.name}/{entry.name}" not in needed and now - used >= UNTOUCHED_S:
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
