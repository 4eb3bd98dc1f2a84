"""Writes records as JSON lines to files in a folder, readable by their owner only, with bounds on size and age.

A file that is being written ends in ``.jsonl.part`` and is locked; when it is large or old enough, it is renamed to
``.jsonl``. Every writer also renames files left by writers that died, and deletes the oldest files if all together are
too large, and files that are too old. Several workers and gateways can therefore share a folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from gateway import locks
from gateway.payloads.sink import DISK_FULL, NOT_WRITABLE, WRITTEN, Record, dumps

_PREFIX: Final = "payloads-"
_PART: Final = ".part"
_SWEEP_S: Final = 60.0
_MAX_FILE_BYTES: Final = 64 << 20
_MAX_FILE_AGE_S: Final = 3600.0
_MIN_FREE_BYTES: Final = 256 << 20
"""Bytes to leave free on the volume, for models and the gateway's state."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Folder:
    """Writes to ``folder``: at most ``max_bytes`` in all files, none older than ``keep`` seconds.

    ``writers`` is the number of processes that share the folder. ``free()`` returns the free bytes of its volume.
    """

    max_records = 500

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        keep: float,
        writers: int = 1,
        free: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.destination = str(folder)
        self._folder = folder
        self._max_bytes = max_bytes
        self._keep = keep
        # Deleting the oldest file loses at most an eighth of the log. Unfinished files are never deleted: those of all
        # writers together take at most an eighth too.
        self._file_bytes = max(1, min(_MAX_FILE_BYTES, max_bytes // (8 * writers)))
        self._file_age = min(_MAX_FILE_AGE_S, keep / 8)
        self._free = free or (lambda: shutil.disk_usage(folder).free)
        self._clock = clock
        self._file: BinaryIO | None = None
        self._path = folder
        self._size = 0
        self._began = 0.0
        self._sweep_at = 0.0

    def encode(self, record: Record) -> bytes:
        """See ``Sink.encode``."""
        return dumps(record, newline=True)

    def write(self, encoded: Sequence[bytes]) -> tuple[str, str]:
        """See ``Sink.write``."""
        data = b"".join(encoded)
        try:
            if self._file is not None and self._size and self._size + len(data) > self._file_bytes:
                self._finish()
            file = self._open_file()
            if self._free() < _MIN_FREE_BYTES:
                return DISK_FULL, f"less than {_MIN_FREE_BYTES >> 20} MiB are left on the volume of {self.destination}"
            try:
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
            except OSError:
                with contextlib.suppress(OSError):  # remove the incomplete line
                    os.ftruncate(file.fileno(), self._size)
                raise
        except OSError as error:
            return DISK_FULL if error.errno in _FULL else NOT_WRITABLE, f"{self.destination}: {error.strerror}"
        self._size += len(data)
        self.idle()
        return WRITTEN, ""

    def idle(self) -> None:
        """See ``Sink.idle``: finishes a file that is old enough, and sweeps."""
        now = self._clock()
        with contextlib.suppress(OSError):
            if self._file is not None and (self._size >= self._file_bytes or now - self._began >= self._file_age):
                self._finish()
            if now >= self._sweep_at:
                self._sweep(now)

    def close(self) -> None:
        """See ``Sink.close``."""
        with contextlib.suppress(OSError):
            self._finish()
            self._sweep(self._clock())

    def _open_file(self) -> BinaryIO:
        file = self._file
        if file is not None:
            if os.fstat(file.fileno()).st_nlink:
                return file
            file.close()  # somebody deleted it: further records would be lost
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        now = self._clock()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        self._path = self._folder / f"{_PREFIX}{stamp}-{os.getpid()}-{secrets.token_hex(4)}.jsonl{_PART}"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._file = file = os.fdopen(descriptor, "wb", buffering=0)
        locks.lock(file, waits=False)
        self._size, self._began = 0, now
        return file

    def _finish(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        with file:  # stays locked until it has its final name
            _rename(self._path) if self._size else self._path.unlink(missing_ok=True)
        self._sweep_at = 0.0

    def _sweep(self, now: float) -> None:
        self._sweep_at = now + _SWEEP_S
        for part in self._folder.glob(f"{_PREFIX}*{_PART}"):
            with contextlib.suppress(OSError), part.open("ab") as file:
                locks.lock(file, waits=False)  # succeeds only if its writer has ended
                _rename(part)
        files = []
        for path in self._folder.glob(f"{_PREFIX}*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                files.append((status.st_mtime, path.name, path, status.st_size))
        total = sum(size for *_, size in files)
        for changed, _, path, size in sorted(files):
            if path.suffix != _PART and (total > self._max_bytes or now - changed > self._keep):
                path.unlink(missing_ok=True)
                total -= size


def _rename(part: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        part.rename(part.with_suffix(""))
