"""Writes what is to appear complete or not at all: the first of several files, and folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from gateway import durable
from gateway.locks import held


def create_file(path: Path, content: Callable[[], str]) -> None:
    """Write a file that only its owner may read, unless there is one: of several processes, the first one's stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with held(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            durable.replace(path, content())


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
