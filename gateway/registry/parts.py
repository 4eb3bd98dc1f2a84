"""A file of the registry as ``zipfile`` reads one, so that a gateway fetches only the members that it reads.

The directory lies at the end of a zip; it and most small members are there after one request. ``cache`` calls this from
worker threads.
"""

from __future__ import annotations

import io
from typing import Final

from gateway.errors import ArtifactCorrupt, RegistryUnavailable
from gateway.registry.port import Parts

_TAIL: Final = 64 << 10
_AHEAD: Final = 128 << 10
"""Bytes that a request reads at least: some too many cost less than a second request for the next member."""
_MAX_READ: Final = 64 << 20


class Remote(io.RawIOBase):
    """``parts`` as a file ``name``, for reading. The last answer is kept."""

    def __init__(self, parts: Parts, name: str) -> None:
        self._parts = parts
        self.name, self.size = name, parts.size
        self._at = self._begin = 0
        self._held = b""
        """The bytes from ``_begin`` on."""

    def seekable(self) -> bool:
        """See ``io.IOBase``."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """See ``io.IOBase``. Raises ``ValueError`` before the file."""
        self._at = offset + (0, self._at, self.size)[whence]
        if self._at < 0:
            raise ValueError("an offset before the file")
        return self._at

    def tell(self) -> int:
        """See ``io.IOBase``."""
        return self._at

    def read(self, count: int = -1) -> bytes:
        """See ``io.IOBase``. Raises ``ArtifactCorrupt`` for more than 64 MiB, ``RegistryUnavailable`` as the store."""
        left = max(self.size - self._at, 0)
        count = left if count < 0 else min(count, left)
        if count > _MAX_READ:
            raise ArtifactCorrupt("the directory of the zip is larger than 64 MiB", hint="upload the folder again")
        if not self._begin <= self._at <= self._at + count <= self._begin + len(self._held):
            start = min(self._at, max(self.size - _TAIL, 0))
            wanted = min(max(self._at - start + count, _AHEAD), self.size - start)
            held = b"".join(self._parts.read(start, wanted))
            if len(held) != wanted:
                raise RegistryUnavailable(f"reading a part of the model stopped after {len(held)} of {wanted} bytes")
            self._begin, self._held = start, held
        found = self._held[self._at - self._begin : self._at - self._begin + count]
        self._at += count
        return found
