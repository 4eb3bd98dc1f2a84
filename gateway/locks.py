"""File locks between processes; the kernel releases them when a process ends in any way.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    import msvcrt


def lock(file: IO[Any], *, waits: bool = True) -> None:
    """Lock the open ``file`` for this process until it is closed.

    Waits for another holder, or raises ``BlockingIOError`` if ``waits`` is false.
    """
    try:
        flock, how = fcntl.flock, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB)
    except NameError:
        _lock_on_windows(file, waits=waits)
        return
    flock(file, how)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock on the file at ``path`` during the block; makes it if it is missing, waits for other holders."""
    with path.open("a") as file:
        lock(file)
        yield


def _lock_on_windows(file: IO[Any], *, waits: bool) -> None:
    while True:
        try:
            file.seek(0)
            # Locks one byte, which need not exist. LK_LOCK gives up after ten seconds, so it is repeated.
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if waits else msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError as error:
            if waits:
                continue
            raise BlockingIOError(error.errno, error.strerror) from error
        return
