"""The key file and its pepper, read again when they change.

A file may be replaced by a rename, by the swap of a symlink above it (a mounted Secret), or be written in place and be
read half-written. A file that cannot be used is reported, and read again until it can.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gateway.callers.keys import BadKeys, Keys, read_file, read_pepper, usable

_MAX_BYTES: Final = 32 << 20


class KeyFile:
    """A key file. Blocking; for one thread at a time.

    ``pepper``: the pepper's file; empty: ``NAME.pepper`` beside the keys.
    """

    def __init__(self, path: str, pepper: str = "") -> None:
        self.path = Path(path)
        self.pepper = Path(pepper or default_pepper(path))
        self._seen: object = None

    def look(self) -> Keys | None:
        """Return the keys; None if nothing has changed since the last call.

        Raises ``BadKeys``.
        """
        try:
            now = (_mark(self.path), _mark(self.pepper))
            if now == self._seen:
                return None
            pepper = _read(self.pepper)
            content = _read(self.path)
        except OSError as error:
            raise BadKeys(f"{error.filename or self.path} cannot be read: {error.strerror}") from error
        try:
            found = usable(*read_file(content), read_pepper(pepper))
        except BadKeys as error:
            raise BadKeys(f"{self.path} cannot be used: {error}") from error
        self._seen = now
        return found

    def at_first(self) -> None:
        """See ``following.Source``: without its file nobody is known."""

    def hurry(self) -> None:
        """See ``following.Source``: every look reads a changed file anyway."""


def default_pepper(path: str | Path) -> str:
    """Return the default pepper file of a key file."""
    return f"{path}.pepper"


def _mark(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES)
