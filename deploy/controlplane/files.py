"""The content-addressed file store: bytes under their SHA-256, names and versions in the database.

It owns the directories `blobs/` and `tmp/`. `fileserver` (HTTP) calls it, and the API does when it records a URI
(`pin`). A path means its latest upload; a versioned address (see `uris`) always means the bytes of one upload. A blob
is on disk and synced before its row is written, so a row never points to missing bytes. Blobs without a row are removed
at the next start.
"""

import hashlib
import mimetypes
import os
import re
import threading
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO
from urllib.parse import quote, unquote

from deploy.controlplane import uris
from deploy.controlplane.clock import Clock
from deploy.controlplane.protections import PROTECTED, Protections
from deploy.controlplane.store import Reader, Store, Writer

# Seconds that an upload may wait for the API call that records its URI. Replaced uploads without references are then
# removed.
GRACE = timedelta(days=1)

_REFERENCE = re.compile(rf"\.v/([0-9a-f]{{{uris.VERSION_DIGITS}}})/([^\"\\]+)")


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
    """Stores, finds, deletes and pins files. Thread-safe."""

    def __init__(self, *, store: Store, directory: Path, clock: Clock, protections: Protections = PROTECTED) -> None:
        self._store = store
        self._protections = protections
        self._clock = clock
        self._blobs = directory / "blobs"
        self._temporary = directory / "tmp"
        # held while a blob is placed and its row committed, and while rows and then their blobs are removed
        self._lock = threading.Lock()
        for path in (self._blobs, self._temporary):
            path.mkdir(parents=True, exist_ok=True)

    def begin(self) -> Upload:
        """Start an upload."""
        return Upload(self._temporary)

    def commit(self, upload: Upload, path: str, *, session: str | None) -> str:
        """Make a finished upload the current content of `path`; its SHA-256. Earlier uploads keep their versions.

        Raises:
            uris.BadPath: the path is refused.
            StoreBusy: try again.
            OSError: the disk refused.
        """
        path = uris.normalised(path)
        sha = upload.finish()
        content_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
        with self._lock:
            self._place(upload.location, sha)
            with self._store.write() as tx:
                tx.execute("UPDATE uploads SET current = 0 WHERE path = ?", (path,))
                tx.execute(
                    "INSERT INTO uploads (path, version, sha, size, content_type, session, created, current)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, 1) ON CONFLICT (path, version) DO UPDATE"
                    " SET session = excluded.session, created = excluded.created, current = 1",
                    (path, sha[: uris.VERSION_DIGITS], sha, upload.size, content_type, session, self._clock.stamp()),
                )
        return sha

    def find(self, path: str) -> Found | None:
        """The file at a decoded request path, versioned or not."""
        plain, version = uris.split_version(path)
        plain = plain.strip("/")
        with self._store.read() as tx:
            row = tx.one(
                "SELECT sha, size, content_type FROM uploads"
                " WHERE path = :path AND CASE WHEN :version IS NULL THEN current = 1 ELSE version = :version END",
                {"path": plain, "version": version},
            )
        if row is None:
            return None
        sha, size, content_type = row
        return Found(
            location=self._blob(sha), name=plain.rpartition("/")[2], sha=sha, size=size, content_type=content_type
        )

    def delete(self, path: str) -> bool:
        """Delete a path or one version of it; return False if there is nothing.

        Bytes that a model or a Task still refers to are kept (`keeps_shared_files`): only the unversioned name is
        removed.
        """
        plain, version = uris.split_version(path)
        plain = plain.strip("/")
        orphans: list[str] = []
        with self._lock:
            with self._store.write() as tx:
                rows = tx.rows(
                    "SELECT seq, version, sha FROM uploads"
                    " WHERE path = :path AND version = COALESCE(:version, version)",
                    {"path": plain, "version": version},
                )
                for seq, row_version, sha in rows:
                    if self._protections.keeps_shared_files and _is_referenced(tx, plain, row_version):
                        if version is None:
                            tx.execute("UPDATE uploads SET current = 0 WHERE seq = ?", (seq,))
                    else:
                        tx.execute("DELETE FROM uploads WHERE seq = ?", (seq,))
                        if tx.one("SELECT 1 FROM uploads WHERE sha = ?", (sha,)) is None:
                            orphans.append(sha)
            for sha in orphans:
                self._blob(sha).unlink(missing_ok=True)
        return bool(rows)

    def pin(self, tx: Reader, uri: str, *, session: str | None, sha: str | None = None) -> str:
        """`uri` in a form that keeps meaning the bytes it means now; other addresses come back as they are.

        Which upload is meant, best evidence first: the one with the recorded hash, the caller's own latest, the
        current one. Without `pins_addresses` every address stays as it is sent.
        """
        address = uris.parse(uri)
        if address is None or not self._protections.pins_addresses:
            return uri
        if address.version is not None:
            return str(address)
        path = address.path.strip("/")
        row = None
        if sha:
            row = tx.one("SELECT version FROM uploads WHERE path = ? AND sha = ?", (path, sha))
        if row is None and session is not None:
            row = tx.one(
                "SELECT version FROM uploads WHERE path = ? AND session = ? ORDER BY created DESC LIMIT 1",
                (path, session),
            )
        if row is None:
            row = tx.one("SELECT version FROM uploads WHERE path = ? AND current = 1", (path,))
        if row is None:
            # not stored here (yet): only make sure that the address can be requested
            return uri.replace("#", "%23").replace("?", "%3F")
        return str(uris.Address(prefix=address.prefix, path=path, version=row[0]))

    def clean(self) -> None:
        """Remove leftovers of crashes and overwrites. Called once, before the first request."""
        for leftover in self._temporary.iterdir():
            leftover.unlink()
        with self._lock:
            with self._store.write() as tx:
                self._drop_superseded(tx)
                known = {row[0] for row in tx.rows("SELECT DISTINCT sha FROM uploads")}
            for blob in self._blobs.glob("*/*"):
                if blob.name not in known:
                    blob.unlink()

    def _drop_superseded(self, tx: Writer) -> None:
        before = (self._clock.now() - GRACE).isoformat(timespec="microseconds")
        superseded = tx.rows("SELECT seq, path, version FROM uploads WHERE current = 0 AND created < ?", (before,))
        if not superseded:
            return
        referenced = {
            (version, unquote(path))
            for (doc,) in tx.rows("SELECT doc FROM documents WHERE instr(doc, '/.v/')")
            for version, path in _REFERENCE.findall(doc)
        }
        for seq, path, version in superseded:
            if (version, path) not in referenced:
                tx.execute("DELETE FROM uploads WHERE seq = ?", (seq,))

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


def _is_referenced(tx: Reader, path: str, version: str) -> bool:
    needle = f'.v/{version}/{quote(path, safe="/")}"'
    return tx.one("SELECT 1 FROM documents WHERE instr(doc, ?) LIMIT 1", (needle,)) is not None


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
