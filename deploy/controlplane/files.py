"""The content-addressed file store: bytes under their SHA-256, paths in the database.

It owns the directories `blobs/` and `tmp/`. `fileserver` (HTTP) calls it. A path means its latest upload, as on a
ClearML server. A blob is on disk and synced before its row is written, so a row never points to missing bytes. Blobs
without a row are removed at the next start.
"""

import hashlib
import mimetypes
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from deploy.controlplane.store import Store


class BadPath(ValueError):
    """The path leaves the store, or is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A stored file ready to be sent."""

    location: Path
    name: str
    sha: str
    size: int
    content_type: str


class Upload:
    """An upload in progress: hashed while it is written, invisible until `Files.commit`."""

    def __init__(self, directory: Path) -> None:
        self._file: IO[bytes] = NamedTemporaryFile(dir=directory, prefix="upload-", delete=False)  # noqa: SIM115 - lives across calls
        self._digest = hashlib.sha256()
        self.location = Path(self._file.name)
        self.size = 0

    def write(self, data: bytes) -> None:
        """Append."""
        self._file.write(data)
        self._digest.update(data)
        self.size += len(data)

    def finish(self) -> str:
        """Sync to disk; the SHA-256 in hex."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._digest.hexdigest()

    def discard(self) -> None:
        """Remove the written bytes unless they were committed."""
        self._file.close()
        self.location.unlink(missing_ok=True)


class Files:
    """Stores, finds and deletes files. Thread-safe."""

    def __init__(self, *, store: Store, directory: Path) -> None:
        self._store = store
        self._blobs = directory / "blobs"
        self._temporary = directory / "tmp"
        # held while a blob is placed and its row committed, and while rows and then their blobs are removed
        self._lock = threading.Lock()
        for path in (self._blobs, self._temporary):
            path.mkdir(parents=True, exist_ok=True)

    def begin(self) -> Upload:
        """Start an upload."""
        return Upload(self._temporary)

    def commit(self, upload: Upload, path: str) -> str:
        """Make a finished upload the content of `path`; its SHA-256.

        Raises:
            BadPath: the path is refused.
            StoreBusy: try again.
            OSError: the disk refused.
        """
        path = normalised(path)
        sha = upload.finish()
        content_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
        with self._lock:
            self._place(upload.location, sha)
            with self._store.write() as tx:
                before = tx.one("SELECT sha FROM uploads WHERE path = ?", (path,))
                tx.execute(
                    "INSERT INTO uploads (path, sha, size, content_type) VALUES (?, ?, ?, ?) ON CONFLICT (path)"
                    " DO UPDATE SET sha = excluded.sha, size = excluded.size, content_type = excluded.content_type",
                    (path, sha, upload.size, content_type),
                )
                is_orphan = before is not None and tx.one("SELECT 1 FROM uploads WHERE sha = ?", before) is None
            if before is not None and is_orphan:
                self._blob(before[0]).unlink(missing_ok=True)
        return sha

    def find(self, path: str) -> Found | None:
        """The file at a decoded request path."""
        path = path.strip("/")
        with self._store.read() as tx:
            row = tx.one("SELECT sha, size, content_type FROM uploads WHERE path = ?", (path,))
        if row is None:
            return None
        sha, size, content_type = row
        return Found(
            location=self._blob(sha), name=path.rpartition("/")[2], sha=sha, size=size, content_type=content_type
        )

    def delete(self, path: str) -> bool:
        """Delete a path, whoever refers to it; return False if there is nothing."""
        path = path.strip("/")
        with self._lock:
            with self._store.write() as tx:
                row = tx.one("SELECT sha FROM uploads WHERE path = ?", (path,))
                if row is None:
                    return False
                tx.execute("DELETE FROM uploads WHERE path = ?", (path,))
                is_orphan = tx.one("SELECT 1 FROM uploads WHERE sha = ?", row) is None
            if is_orphan:
                self._blob(row[0]).unlink(missing_ok=True)
        return True

    def clean(self) -> None:
        """Remove leftovers of crashes. Called once, before the first request."""
        for leftover in self._temporary.iterdir():
            leftover.unlink()
        with self._store.read() as tx:
            known = {row[0] for row in tx.rows("SELECT DISTINCT sha FROM uploads")}
        for blob in self._blobs.glob("*/*"):
            if blob.name not in known:
                blob.unlink()

    def _place(self, source: Path, sha: str) -> None:
        target = self._blob(sha)
        if target.exists():
            source.unlink()
            return
        target.parent.mkdir(exist_ok=True)
        source.replace(target)
        for directory in (target.parent, self._blobs):
            _sync_directory(directory)

    def _blob(self, sha: str) -> Path:
        return self._blobs / sha[:2] / sha


def normalised(path: str) -> str:
    """The path as it is stored: without leading or doubled slashes.

    Raises BadPath for an empty path, `.` or `..` segments, or NUL.
    """
    segments = [segment for segment in path.split("/") if segment]
    if not segments or any(segment in (".", "..") for segment in segments) or "\0" in path or "\\.." in path:
        raise BadPath(f"not a file path: {path!r}")
    return "/".join(segments)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
