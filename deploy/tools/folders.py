"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gateway import durable, locks

hold = locks.lock
held = locks.held
replace_file = durable.replace
sync = durable.sync


@contextlib.contextmanager
def aside(root: Path, final: Path) -> Iterator[Path]:
    """Give a folder in ``root`` to fill, which gets its final name (in the same file system) when the block ends well,
    instead of what has that name, and disappears when it does not.
    """
    folder = Path(tempfile.mkdtemp(dir=root, prefix=".", suffix=".part"))
    try:
        folder.chmod(0o755)
        yield folder
        for path in folder.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        if final.exists():
            shutil.rmtree(final)
        folder.rename(final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
