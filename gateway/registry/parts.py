"""Fetches the parts of a model that a gateway reads: everything but the weights, which only Triton reads.

A folder is stored as a zip: its directory (at the end) is read first, then the needed members, in few requests. Of a
single file of weights nothing is fetched. A hash over the parts covers each member's name, size and checksum, and the
SHA-256 of each member that a gateway reads. Replicas with the whole file and replicas with parts compute the same hash,
so they can tell whether they serve the same model. ``cache`` calls this from worker threads and decides what may be
used.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from gateway import manifest
from gateway.errors import ArtifactCorrupt, RegistryUnavailable
from gateway.registry.port import Parts

_BLOCK: Final = 64 << 10
_GAP: Final = 256 << 10
"""Largest gap in bytes between two members that are read in one request; the gap costs less than a second request."""
_MAX_DIRECTORY: Final = 64 << 20
_MAX_SIZE: Final = 1 << 50


def is_read(name: str) -> bool:
    """Whether gateways need a file of a model."""
    return not manifest.is_weights(name)


def fetch(parts: Parts, archive: Path) -> None:
    """Write the members of a zip that gateways need to ``archive``, at their offsets; the rest of the file is a hole.

    Raises ``ArtifactCorrupt`` if it is no zip or cannot be read, ``RegistryUnavailable`` and ``RegistryRefused`` like
    its store, ``OSError`` if the disk is full.
    """
    size = parts.size
    if size > _MAX_SIZE:
        raise ArtifactCorrupt(f"{archive.name} claims {size:,} bytes", hint="upload the folder again")
    remote = _Remote(parts)
    try:
        with zipfile.ZipFile(remote) as packed:
            members, directory = packed.infolist(), packed.start_dir
    except zipfile.BadZipFile as error:
        raise ArtifactCorrupt(f"{archive.name} cannot be unpacked: {error}", hint="upload the folder again") from error
    with archive.open("wb") as out:
        out.truncate(size)
        for start, end in _runs(members, directory, size):
            if start < remote.begin:
                out.seek(start)
                _copy(parts, start, min(end, remote.begin) - start, out)
        out.seek(remote.begin)
        out.write(remote.tail)


def fingerprint(archive: Path, files: Path) -> str:
    """Return the hash over a zip's parts; ``files`` has the members that gateways read.

    The zip may have holes. Raises ``OSError``.
    """
    with zipfile.ZipFile(archive) as packed:
        members = packed.infolist()
    told: list[tuple[str, int, int, str]] = [("", archive.stat().st_size, len(members), "")]
    for member in sorted(members, key=lambda one: one.filename):
        if not member.is_dir():
            sha256 = ""
            if is_read(member.filename):
                with (files / member.filename).open("rb") as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            told.append((member.filename, member.file_size, member.CRC, sha256))
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _runs(members: Sequence[zipfile.ZipInfo], directory: int, size: int) -> list[tuple[int, int]]:
    """Return the byte ranges of the members that gateways read; neighbouring ones are merged."""
    offsets = sorted({member.header_offset for member in members} | {directory})
    after = dict(zip(offsets, [*offsets[1:], size], strict=True))
    runs: list[tuple[int, int]] = []
    for start in sorted(member.header_offset for member in members if is_read(member.filename)):
        end = after[start]
        if not 0 <= start < end <= size:
            raise ArtifactCorrupt("a member of the zip lies outside it", hint="upload the folder again")
        if runs and start - runs[-1][1] <= _GAP:
            start, _ = runs.pop()
        runs.append((start, end))
    return runs


def _copy(parts: Parts, start: int, count: int, out: IO[bytes]) -> None:
    copied = 0
    for chunk in parts.read(start, count) if count else ():
        out.write(chunk)
        copied += len(chunk)
    if copied != count:
        raise RegistryUnavailable(f"reading a part of the model stopped after {copied} of {count} bytes")


class _Remote(io.RawIOBase):
    """A remote zip for ``zipfile``, which reads the directory at the end; blocks that were read are kept."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._at = 0
        self.begin = parts.size
        self.tail = b""
        """The bytes from ``begin`` to the end of the file."""

    def seekable(self) -> bool:
        """See ``io.IOBase``."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """See ``io.IOBase``."""
        self._at = offset + (0, self._at, self._parts.size)[whence]
        if self._at < 0:
            raise OSError("an offset before the file")
        return self._at

    def tell(self) -> int:
        """See ``io.IOBase``."""
        return self._at

    def read(self, count: int = -1) -> bytes:
        """See ``io.IOBase``. Raises ``ArtifactCorrupt`` if the directory claims more than 64 MiB."""
        end = self._parts.size if count < 0 else min(self._at + count, self._parts.size)
        if self._parts.size - self._at > _MAX_DIRECTORY:
            raise ArtifactCorrupt("the directory of the zip is larger than 64 MiB", hint="upload the folder again")
        if self._at < self.begin:
            start = max(0, min(self._at, self.begin - _BLOCK))
            held = io.BytesIO()
            _copy(self._parts, start, self.begin - start, held)
            self.tail, self.begin = held.getvalue() + self.tail, start
        found = self.tail[self._at - self.begin : end - self.begin]
        self._at += len(found)
        return found
