"""File locks between processes; the kernel releases them when a process ends in any way.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


def lock(file: IO[Any], *, waits: bool = True) -> None:
    """Lock the open ``file`` for this process until it is closed.

    Waits for another holder, or raises ``BlockingIOError`` if ``waits`` is false.
    """
    fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock on the file at ``path`` during the block; makes it if it is missing, waits for other holders."""
    with path.open("a") as file:
        lock(file)
        yield
