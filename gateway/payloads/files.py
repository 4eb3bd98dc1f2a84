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
from typing import BinaryIO, Final

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
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


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
        self._file: BinaryIO | None = None
        self._in_progress = path
        self._size = 0
        self._began = self._sweep_at = 0.0

    def write(self, lines: bytes) -> tuple[str, str]:
        """Write lines or none of them; return the outcome, and the reason if they are lost, else ``""``."""
        try:
            if self._size and self._size + len(lines) > self._file_bytes:
                self._finish()
            file = self._open_file()
            if self._free() < _MIN_FREE_BYTES:
                return DISK_FULL, f"less than {_MIN_FREE_BYTES >> 20} MiB are left on the volume of {self.path}"
            try:
                left = memoryview(lines)
                while left:
                    left = left[file.write(left) :]
            except OSError:
                with contextlib.suppress(OSError):  # remove the incomplete line
                    os.ftruncate(file.fileno(), self._size)
                raise
        except OSError as error:
            return DISK_FULL if error.errno in _FULL else NOT_WRITABLE, f"{self.path}: {error.strerror}"
        self._size += len(lines)
        return WRITTEN, ""

    def idle(self) -> None:
        """Finish a file that is old enough, and delete what must go; called about twice a second."""
        now = self._clock()
        with contextlib.suppress(OSError):
            if self._size >= self._file_bytes or now - self._began >= self._file_age:
                self._finish()
            if now >= self._sweep_at:
                self._sweep(now)

    def close(self) -> None:
        """Finish the current file."""
        with contextlib.suppress(OSError):
            self._finish()
            self._sweep(self._clock())

    def _open_file(self) -> BinaryIO:
        file = self._file
        if file is not None:
            if os.fstat(file.fileno()).st_nlink:
                return file
            file.close()  # somebody deleted it: further records would be lost
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        now = self._clock()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        self._in_progress = self.path / f"{_PREFIX}{stamp}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        descriptor = os.open(self._in_progress, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._file = file = os.fdopen(descriptor, "wb", buffering=0)
        self._size, self._began = 0, now
        return file

    def _finish(self) -> None:
        if self._file is not None:
            self._file.close()
            if not self._size:
                self._in_progress.unlink(missing_ok=True)
        self._file, self._size, self._sweep_at = None, 0, 0.0

    def _sweep(self, now: float) -> None:
        self._sweep_at = now + _SWEEP_S
        files = []
        for path in self.path.glob(f"{_PREFIX}*.jsonl"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                files.append((status.st_mtime, path.name, path, status.st_size))
        total = sum(size for *_, size in files)
        for changed, _, path, size in sorted(files):
            is_in_progress = self._file is not None and path == self._in_progress
            if not is_in_progress and (total > self._max_bytes or now - changed > self._keep):
                path.unlink(missing_ok=True)
                total -= size
