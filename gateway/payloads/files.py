"""Writes records as JSON lines to files in a folder, readable by their owner only, with bounds on size and age.

Each writer has files of its own. When one is large or old enough, it begins another; it also deletes the oldest files
if all together are too large, and files that are too old. Several workers and gateways can therefore share a folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

# Outcomes of a record: with every outcome except WRITTEN, the record is lost.
WRITTEN: Final = "written"
QUEUE_FULL: Final = "queue_full"
DISK_FULL: Final = "disk_full"
TOO_LARGE: Final = "too_large"
NOT_JSON: Final = "not_json"
NOT_WRITABLE: Final = "not_writable"

_PREFIX: Final = "payloads-"
_SWEEP_S: Final = 60.0
_MAX_FILE_BYTES: Final = 64 << 20
_MAX_FILE_AGE_S: Final = 3600.0
_MIN_FREE_BYTES: Final = 256 << 20
"""Bytes to leave free on the volume, for models and the gateway's state."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW


class Folder:
    """Writes to the folder ``path``: at most ``max_bytes`` in all files, none older than ``keep`` seconds.

    ``writers`` is the number of processes that share the folder. ``free()`` returns the free bytes of its volume. One
    thread calls it.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        keep: float,
        writers: int = 1,
        free: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        # Deleting the oldest file loses at most an eighth of the log, and the files in progress of all writers together
        # take at most an eighth too.
        self._file_bytes = max(1, min(_MAX_FILE_BYTES, max_bytes // (8 * writers)))
        self._file_age = min(_MAX_FILE_AGE_S, keep / 8)
        self._free = free or (lambda: shutil.disk_usage(path).free)
        self._clock = clock
        self._file: Path | None = None
        """The file that is written to; opened for each write, so that one which somebody deletes is begun anew."""
        self._size = 0
        self._began = self._sweep_at = 0.0

    def write(self, lines: bytes) -> tuple[str, str]:
        """Write lines or none of them; return the outcome, and the reason if they are lost, else ``""``."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._free() < _MIN_FREE_BYTES:
                return DISK_FULL, f"less than {_MIN_FREE_BYTES >> 20} MiB are left on the volume of {self.path}"
            descriptor = os.open(self._next_file(len(lines)), _FLAGS, 0o600)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                before = file.seek(0, os.SEEK_END)
                try:
                    left = memoryview(lines)
                    while left:
                        left = left[file.write(left) :]
                except OSError:
                    with contextlib.suppress(OSError):  # remove the incomplete line
                        file.truncate(before)
                    raise
        except OSError as error:
            return DISK_FULL if error.errno in _FULL else NOT_WRITABLE, f"{self.path}: {error.strerror}"
        self._size = before + len(lines)
        return WRITTEN, ""

    def _next_file(self, size: int) -> Path:
        """Return the file for ``size`` more bytes: the last one, or a new one if that is large or old enough."""
        now = self._clock()
        is_full = self._size > 0 and self._size + size > self._file_bytes
        if self._file is None or is_full or now - self._began >= self._file_age:
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
            self._file = self.path / f"{_PREFIX}{stamp}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
            self._size, self._began, self._sweep_at = 0, now, 0.0
        return self._file

    def sweep(self) -> None:
        """Delete what must go, the oldest first; may be called often."""
        now = self._clock()
        if now < self._sweep_at:
            return
        self._sweep_at = now + _SWEEP_S
        files = []
        for path in self.path.glob(f"{_PREFIX}*.jsonl"):
            with contextlib.suppress(OSError):  # another writer has deleted it
                status = path.stat()
                files.append((status.st_mtime, path.name, path, status.st_size))
        total = sum(size for *_, size in files)
        for changed, _, path, size in sorted(files):
            if total > self._max_bytes or now - changed > self._keep:
                with contextlib.suppress(OSError):
                    path.unlink()
                    total -= size
