"""Unpacks zips from the registry into folders; the clearml SDK packs every folder as a zip.

Names, links and sizes are checked: archives are not trusted. Pure except for the two paths given.
"""

from __future__ import annotations

import errno
import lzma
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from gateway.errors import ArtifactCorrupt
from gateway.file_names import path_within

MAX_BYTES: Final = 64 << 30
MAX_MEMBERS: Final = 100_000
MAX_RATIO: Final = 100
"""Most unpacked bytes per byte of the archive. Vocabularies and JSON shrink to a tenth, bombs to a thousandth."""
FREE_BYTES: Final = 256 << 20
"""The ratio is checked only for more unpacked bytes than this, since a few files of zeros are harmless."""
_CHUNK: Final = 1 << 20
_AGAIN: Final = "upload the folder again"
_BROKEN: Final = (
    zipfile.BadZipFile, lzma.LZMAError, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError,
    ValueError, OverflowError,
)  # fmt: skip


def _everything(_name: str) -> bool:
    return True


def unpack(archive: Path, folder: Path, *, wanted: Callable[[str], bool] = _everything) -> None:
    """Unpack a zip into the empty ``folder``; nothing is written outside it.

    Only files whose names are ``wanted`` are read. Only plain files and folders are unpacked, each name once. Raises
    ``ArtifactCorrupt`` with the reason, also if it is no zip, or if its content is larger than ``MAX_BYTES`` or than
    ``MAX_RATIO`` times the archive; ``OSError`` if the disk is full. On an error, files that were written remain: the
    caller deletes the folder.
    """
    budget = _Budget(archive, folder)
    try:
        _unpack_zip(archive, budget, wanted)
    except _BROKEN as error:
        raise ArtifactCorrupt(f"{archive.name} cannot be unpacked: {error}", hint=_AGAIN) from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # an offset that lies outside the archive
            raise
        raise ArtifactCorrupt(f"{archive.name} cannot be unpacked: {error}", hint=_AGAIN) from error


@dataclass(slots=True)
class _Budget:
    """What may still be unpacked, and the target folder."""

    archive: Path
    folder: Path
    members: int = 0
    used: int = 0
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = self.archive.stat().st_size

    def check(self, more: int) -> None:
        """Raise ``ArtifactCorrupt`` if ``more`` bytes are too many, ``OSError`` if the disk has no room."""
        used = self.used + more
        if used > MAX_BYTES:
            raise ArtifactCorrupt(
                f"{self.archive.name} holds more than {_shown(MAX_BYTES)} unpacked",
                hint="upload its files one by one, as a model without an archive",
            )
        if used > max(FREE_BYTES, MAX_RATIO * self.size):
            raise ArtifactCorrupt(
                f"{self.archive.name} has {_shown(self.size)} and would unpack to more than {MAX_RATIO} times as much",
                hint="it looks like a decompression bomb; if it is not, upload the folder uncompressed",
            )
        if more > _CHUNK and more > shutil.disk_usage(self.folder).free:
            raise OSError(errno.ENOSPC, f"no space for the {_shown(more)} that it unpacks to")

    def place(self, name: str) -> Path:
        """Return the target path of a member. Raises ``ArtifactCorrupt`` for an unsafe name or too many members."""
        try:
            path = path_within(name)
        except ValueError as error:
            raise ArtifactCorrupt(f"{self.archive.name} holds {error}", hint=_AGAIN) from error
        self.members += 1
        if self.members > MAX_MEMBERS:
            raise ArtifactCorrupt(f"{self.archive.name} has more than {MAX_MEMBERS:,} members", hint=_AGAIN)
        return self.folder / path

    def twice(self, name: str) -> ArtifactCorrupt:
        """Return the error for a name that another member has too, as far as this file system can tell."""
        return ArtifactCorrupt(
            f"{self.archive.name} holds {ascii(name)[:200]} twice (or as a file and as a folder)", hint=_AGAIN
        )

    def write(self, name: str, content: IO[bytes]) -> None:
        """Write one file. Raises ``ArtifactCorrupt``."""
        target = self.place(name)
        self.make(target.parent, name)
        try:
            out = target.open("xb")
        except (FileExistsError, IsADirectoryError) as error:
            raise self.twice(name) from error
        with out:
            while chunk := content.read(_CHUNK):
                self.check(len(chunk))
                self.used += len(chunk)
                out.write(chunk)

    def make(self, target: Path, name: str) -> None:
        """Make a folder and its parents. Raises ``ArtifactCorrupt``."""
        try:
            target.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise self.twice(name) from error


def _unpack_zip(archive: Path, budget: _Budget, wanted: Callable[[str], bool]) -> None:
    with zipfile.ZipFile(archive) as packed:
        members = packed.infolist()
        if len(members) > MAX_MEMBERS:
            raise ArtifactCorrupt(f"{archive.name} has more than {MAX_MEMBERS:,} members", hint=_AGAIN)
        for member in members:
            if member.flag_bits & 0x1:
                raise ArtifactCorrupt(
                    f"{archive.name} is encrypted ({ascii(member.filename)[:100]})",
                    hint="upload the folder itself, or an archive without a password",
                )
            if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ArtifactCorrupt(
                    f"{archive.name} holds {ascii(member.filename)[:200]}, which is a link or a device, not a file",
                    hint="pack the files themselves: zip without --symlinks",
                )
        # Check the claimed size before writing anything; the real size is counted while writing.
        members = [member for member in members if wanted(member.filename)]
        budget.check(sum(member.file_size for member in members))
        for member in members:
            if member.is_dir():
                budget.make(budget.place(member.filename), member.filename)
            else:
                with packed.open(member) as content:
                    budget.write(member.filename, content)


def _shown(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
