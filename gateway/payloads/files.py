"""Records as JSON lines in a folder: one file per writer at a time, only its owner may read it, all files bounded.

A file that is being written ends in ``.jsonl.part`` and is locked; when it is large or old enough it is renamed to
``.jsonl``. Every writer renames what writers that died have left, and deletes the oldest files while all of them
together are too large, or when they are too old; so several workers and gateways can share a folder.
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
_LARGEST: Final = 64 << 20
_LONGEST_S: Final = 3600.0
_KEEP_FREE: Final = 256 << 20
"""Bytes of the volume that are left to others: models and the state of the gateway lie on it too."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Folder:
    """Writes to ``folder``: at most ``max_bytes`` in all of its files, none older than ``keep`` seconds.

    ``writers`` share the folder, so that each may have a file that is not finished. ``free()``: bytes left there.
    """

    most = 500

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
        self.where = str(folder)
        self._folder = folder
        self._max_bytes = max_bytes
        self._keep = keep
        # Deleting the oldest file must never take more than an eighth of what is kept, nor all writers fill the room.
        self._file_bytes = max(1, min(_LARGEST, max_bytes // (8 * writers)))
        self._file_age = min(_LONGEST_S, keep / 8)
        self._free = free or (lambda: shutil.disk_usage(folder).free)
        self._clock = clock
        self._file: BinaryIO | None = None
        self._path = folder
        self._size = 0
        self._began = 0.0
        self._sweep_at = 0.0

    def framed(self, record: Record) -> bytes:
        """See ``Sink.framed``."""
        return dumps(record, ends=True)

    def write(self, frames: Sequence[bytes]) -> tuple[str, str]:
        """See ``Sink.write``."""
        data = b"".join(frames)
        try:
            if self._file is not None and self._size and self._size + len(data) > self._file_bytes:
                self._finish()
            file = self._opened()
            if self._free() < _KEEP_FREE:
                return DISK_FULL, f"less than {_KEEP_FREE >> 20} MiB are left on the volume of {self.where}"
            try:
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
            except OSError:
                with contextlib.suppress(OSError):  # half a line is of no use to anybody
                    os.ftruncate(file.fileno(), self._size)
                raise
        except OSError as error:
            return DISK_FULL if error.errno in _FULL else NOT_WRITABLE, f"{self.where}: {error.strerror}"
        self._size += len(data)
        self.idle()
        return WRITTEN, ""

    def idle(self) -> None:
        """See ``Sink.idle``: finish a file that is old enough, and sweep."""
        now = self._clock()
        with contextlib.suppress(OSError):
            if self._file is not None and (self._size >= self._file_bytes or now - self._began >= self._file_age):
                self._finish()
            if now >= self._sweep_at:
                self._sweep(now)

    def stop(self) -> None:
        """See ``Sink.stop``; a disk is waited for."""

    def close(self) -> None:
        """See ``Sink.close``."""
        with contextlib.suppress(OSError):
            self._finish()
            self._sweep(self._clock())

    def _opened(self) -> BinaryIO:
        file = self._file
        if file is not None:
            if os.fstat(file.fileno()).st_nlink:
                return file
            file.close()  # somebody has deleted it: what was written on would be nowhere
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
        with file:  # it is locked until it has its name
            _rename(self._path) if self._size else self._path.unlink(missing_ok=True)
        self._sweep_at = 0.0

    def _sweep(self, now: float) -> None:
        self._sweep_at = now + _SWEEP_S
        for part in self._folder.glob(f"{_PREFIX}*{_PART}"):
            with contextlib.suppress(OSError), part.open("ab") as left:
                locks.lock(left, waits=False)  # its writer has ended
                _rename(part)
        found = []
        for path in self._folder.glob(f"{_PREFIX}*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime, path.name, path, status.st_size))
        total = sum(size for *_, size in found)
        for changed, _, path, size in sorted(found):
            if path.suffix != _PART and (total > self._max_bytes or now - changed > self._keep):
                path.unlink(missing_ok=True)
                total -= size


def _rename(part: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        part.rename(part.with_suffix(""))
