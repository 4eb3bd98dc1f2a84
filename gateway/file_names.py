"""Makes file names of text from outside: of addresses, endpoints, archives and manifests. Nothing else does.

Such a text is somebody else's: it may be a path to another folder, empty, too long, or no text at all for a file
system. ``file_name`` turns any text into the name of one file. ``path_within`` takes over a path that is meant as one,
and refuses it if it could lead out of its folder.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath
from typing import Final

_UNFIT: Final = re.compile(r'[\x00-\x1f\x7f-\x9f<>:"/\\|?*\ud800-\udfff]+')
"""Characters that some file system does not take, or takes for more than a name."""
_ENDS: Final = " .-~"
"""Characters with a meaning of their own at the beginning or end of a name."""
_MOST: Final = 200
"""Bytes. File systems take 255; programs add endings of their own."""
_KEPT: Final = re.compile(r"\.[A-Za-z0-9]{1,12}")
"""An ending that says what a file is."""
_MOST_PART, _MOST_PATH = 255, 2000
"""Bytes in a part of a path, and in the whole path."""


def file_name(text: str) -> str:
    """Return a name for a file, with which it stays in its folder whatever ``text`` is.

    An ordinary name is returned as it is. Any other one becomes what is readable of it, with a hash of the whole, so
    that two texts do not get the same name, and with its ending.
    """
    safe = _UNFIT.sub("-", text).strip(_ENDS)
    size = len(safe.encode())
    if safe == text and 0 < size <= _MOST:
        return text
    ending = _KEPT.search(safe, max(0, safe.rfind(".")))
    kept = ending[0] if ending is not None and ending.end() == len(safe) else ""
    stem = safe.removesuffix(kept).encode()[:100].decode(errors="ignore").strip(_ENDS) or "file"
    return f"{stem}-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:12]}{kept}"


def path_within(text: str) -> PurePosixPath:
    """Return ``text`` as the path of a file below a folder. Raises ``ValueError``, with the reason, if it is none."""
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\\" in text or "\0" in text or not path.parts:
        raise ValueError(f"the unsafe path {ascii(text)[:200]}")
    try:
        sizes = [len(part.encode()) for part in path.parts]
    except UnicodeEncodeError:
        raise ValueError(f"a name that is not Unicode: {ascii(text)[:200]}") from None
    if max(sizes) > _MOST_PART or sum(sizes) + len(sizes) > _MOST_PATH:
        raise ValueError(f"a name that is too long: {ascii(text)[:100]}…")
    return path
