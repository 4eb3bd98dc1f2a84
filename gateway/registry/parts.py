"""A file of the registry as ``zipfile`` reads one, so that a gateway fetches only the members that it reads.

``cache`` calls this from worker threads.
"""

from __future__ import annotations

import io
from typing import Any, Final

from gateway.errors import ArtifactCorrupt, RegistryUnavailable
from gateway.registry.port import Parts

_AHEAD: Final = 128 << 10
"""Bytes that a request reads at least: some too many cost less than a second request for the next member."""
_MAX_READ: Final = 64 << 20


class Remote(io.RawIOBase):
    """``parts`` as a file ``name``, for reading."""

    def __init__(self, parts: Parts, name: str) -> None:
        self._parts = parts
        self.name, self.size = name, parts.size
        self._at = 0

    def buffered(self) -> io.BufferedReader:
        """Return it with a buffer, so that small reads are few requests."""
        return io.BufferedReader(self, _AHEAD)

    def readable(self) -> bool:
        """See ``io.IOBase``."""
        return True

    def seekable(self) -> bool:
        """See ``io.IOBase``."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """See ``io.IOBase``. Raises ``ValueError`` before the file."""
        self._at = offset + (0, self._at, self.size)[whence]
        if self._at < 0:
            raise ValueError("an offset before the file")
        return self._at

    def readinto(self, buffer: Any) -> int:
        """See ``io.RawIOBase``. Raises ``ArtifactCorrupt`` for more than 64 MiB, and as the store."""
        count = max(min(len(buffer), self.size - self._at), 0)
        if count > _MAX_READ:
            raise ArtifactCorrupt("the directory of the zip is larger than 64 MiB", hint="upload the folder again")
        found = b"".join(self._parts.read(self._at, count)) if count else b""
        if len(found) != count:
            raise RegistryUnavailable(f"reading a part of the model stopped after {len(found)} of {count} bytes")
        buffer[:count] = found
        self._at += count
        return count
