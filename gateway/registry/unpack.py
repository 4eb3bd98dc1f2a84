"""Unpacks zips from the registry into folders; the clearml SDK packs every folder as a zip.

Names, links and sizes are checked: archives are not trusted. Pure except for the file and the folder given.
"""

from __future__ import annotations

import errno
import hashlib
import json
import lzma
import shutil
import stat
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Final

from gateway import manifest
from gateway.errors import ArtifactCorrupt
from gateway.file_names import path_within
from gateway.registry.parts import Remote

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


def unpack(archive: Path | Remote, folder: Path, *, weights: bool = True) -> str:
    """Unpack a zip into the empty ``folder``; nothing is written outside it.

    Only plain files and folders are unpacked, each name once; with ``weights`` False only what gateways read. Returns a
    hash over the parts: each member's name, size and checksum, and the SHA-256 of what gateways read. It is the same
    either way, so replicas with the whole file and replicas with parts can tell whether they serve the same model.
    Raises ``ArtifactCorrupt`` with the reason, also if it is no zip, or if its content is larger than ``MAX_RATIO``
    times the archive; ``OSError`` if the disk has no room for it. On an error, files that were written remain: the
    caller deletes the folder.
    """
    name = archive.name
    try:
        size = archive.stat().st_size if isinstance(archive, Path) else archive.size
        with zipfile.ZipFile(archive if isinstance(archive, Path) else archive.buffered()) as packed:
            members = packed.infolist()
            _check(members, name)
            wanted = [member for member in members if weights or not manifest.is_weights(member.filename)]
            _check_size(sum(member.file_size for member in wanted), name, size, folder)
            hashes = {member.filename: _write(packed, member, name, folder) for member in wanted}
    except (*_BROKEN, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # which is an offset outside the archive
            raise
        raise ArtifactCorrupt(f"{name} cannot be unpacked: {error}", hint=_AGAIN) from error
    told: list[tuple[str, int, int, str]] = [("", size, len(members), "")]
    told += sorted(
        (one.filename, one.file_size, one.CRC, hashes.get(one.filename, "")) for one in members if not one.is_dir()
    )
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _check(members: list[zipfile.ZipInfo], name: str) -> None:
    if len(members) > MAX_MEMBERS:
        raise ArtifactCorrupt(f"{name} has more than {MAX_MEMBERS:,} members", hint=_AGAIN)
    for member in members:
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ArtifactCorrupt(
                f"{name} holds {ascii(member.filename)[:200]}, which is a link or a device, not a file",
                hint="pack the files themselves: zip without --symlinks",
            )


def _check_size(unpacked: int, name: str, size: int, folder: Path) -> None:
    """Check the claimed size; ``zipfile`` reads no more of a member than it claims."""
    if unpacked > max(FREE_BYTES, MAX_RATIO * size):
        raise ArtifactCorrupt(
            f"{name} has {size:,} bytes and would unpack to more than {MAX_RATIO} times as much",
            hint="it looks like a decompression bomb; if it is not, upload the folder uncompressed",
        )
    if unpacked > shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, f"no space for the {unpacked / (1 << 20):.1f} MiB that it unpacks to")


def _write(packed: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, folder: Path) -> str:
    """Write one member; return its SHA-256 if gateways read it. Raises ``ArtifactCorrupt``."""
    try:
        target = folder / path_within(member.filename)
    except ValueError as error:
        raise ArtifactCorrupt(f"{name} holds {error}", hint=_AGAIN) from error
    digest = None if manifest.is_weights(member.filename) else hashlib.sha256()
    try:
        if member.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            return ""
        target.parent.mkdir(parents=True, exist_ok=True)
        out = target.open("xb")
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:  # as far as this file system can tell
        raise ArtifactCorrupt(
            f"{name} holds {ascii(member.filename)[:200]} twice (or as a file and as a folder)", hint=_AGAIN
        ) from error
    with out, packed.open(member) as content:
        while chunk := content.read(_CHUNK):
            out.write(chunk)
            if digest is not None:
                digest.update(chunk)
    return digest.hexdigest() if digest is not None else ""
