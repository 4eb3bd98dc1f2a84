"""Writes files and folders atomically, locks files, and makes their names of text from outside."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from gateway import durable, file_names, locks

hold = locks.lock
held = locks.held
replace_file = durable.replace
sync = durable.sync
file_name = file_names.file_name
path_within = file_names.path_within


def create_file(path: Path, content: Callable[[], str]) -> None:
    """Write a file that only its owner may read, unless there is one: of several processes, the first one's stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with held(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            replace_file(path, content())


@contextlib.contextmanager
def aside(root: Path, final: Path) -> Iterator[Path]:
    """Yield a temporary folder in ``root`` to fill.

    If the block ends without an error, it replaces the folder ``final`` (in the same file system); otherwise it is
    deleted.
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
