"""Writes small files atomically and durably.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace(path: Path, text: str, *, mode: int = 0o600, owner: tuple[int, int] | None = None) -> None:
    """Replace ``path`` with ``text`` atomically; it is on disk when this returns. Readers find the old or the new file.

    ``owner``: user and group of the file, if not ours. Makes ``path.parent`` if it is missing. Raises ``OSError`` (disk
    full, no permission) and then keeps the old file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    aside = Path(name)
    try:
        # paths in a text keep their bytes, whatever the terminal's encoding
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as out:
            if owner is not None:
                os.fchown(out.fileno(), *owner)
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        aside.chmod(mode)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
