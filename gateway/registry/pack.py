"""Packs a model's folder for an upload: the same files become the same bytes, and the name says which ones.

A file server keeps one file per name, and a later upload under that name replaces it. An upload whose name has the hash
of its content can only be replaced by itself. The counterpart of ``unpack``.
"""

from __future__ import annotations

import hashlib
import shutil
import stat
import zipfile
from pathlib import Path
from typing import Final

from gateway.file_names import file_name

_TIME: Final = (1980, 1, 1, 0, 0, 0)
_CHUNK: Final = 1 << 20


def pack(folder: Path, into: Path, name: str) -> Path:
    """Write the files of ``folder`` to a zip in the folder ``into``; return its path, ``NAME-HASH.zip``.

    The bytes depend on the names and contents of the files alone. Raises ``OSError`` if the disk is full.
    """
    aside = into / "packing.zip"
    # Not compressed: weights hardly shrink, and gateways read single files of it.
    with zipfile.ZipFile(aside, "w", zipfile.ZIP_STORED) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _TIME)
                entry.external_attr = (stat.S_IFREG | 0o644) << 16
                entry.file_size = path.stat().st_size
                with path.open("rb") as source, packed.open(entry, "w") as target:
                    shutil.copyfileobj(source, target, _CHUNK)
    with aside.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return aside.rename(into / file_name(f"{name}-{digest[:16]}.zip"))
