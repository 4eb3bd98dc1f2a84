"""Local copies of the registry's content: verified model folders and code, and the last configuration that worked.

The gateway's assembly and model sync use it; several processes may share one folder. An entry is a folder whose name is
a hash of what identifies the content. It is made under a temporary name by the process that holds its lock, and renamed
when it is complete (download → verify → fsync → rename), so a crash leaves nothing or a whole entry. Then it never
changes. What a process does not need and nobody has used for an hour, it deletes: processes do not know each other, so
each touches what it needs again and again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from gateway import durable, locks
from gateway.errors import ArtifactCorrupt, ContentChanged, RegistryUnavailable, SpecFault
from gateway.manifest import is_weights
from gateway.registry.parts import Remote
from gateway.registry.port import Parts, Registry
from gateway.registry.unpack import unpack
from gateway.spec import CONTENT_HASH, ArtifactRef, Content, ModelRecord, ServingTask, contents, overwritten, records_of

_log = logging.getLogger("triton_gateway.cache")

UNTOUCHED_S: Final = 3600.0
"""An entry that was used within this time stays: another process may need it."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_MANIFEST: Final = "manifest.json"

WHOLE: Final = "sha256"
PARTS: Final = "parts"
"""What a hash covers: the file as stored, or the parts of it that gateways read (see ``unpack``)."""

Hashes = Mapping[str, str]
"""Hashes of a stored file, by ``WHOLE`` and ``PARTS``."""


class ArtifactCache:
    """Local, verified copies of models and preprocess code, downloaded at most once per machine.

    Safe between threads and processes. Methods block (download, unpack, fsync): call them from worker threads.
    """

    def __init__(self, root: Path, registry: Registry) -> None:
        """Use the folder ``root``."""
        self._root = root
        self._registry = registry
        self._contents: Mapping[str, Content] = {}
        """The recorded contents by model id; replaced as a whole, as threads read it."""

    def learn(self, task: ServingTask) -> None:
        """Take over the recorded contents from the serving Task that was just read.

        A real file server stores a folder under the serving Task by its base name. A second upload from a folder of the
        same name therefore replaces the file of a published model. Replicas with the first bytes would go on serving
        them, and new ones would serve the other model under the same id. So the controller records one content per
        model, as soon as a model sync reports it or it has looked itself, and downloads of other bytes are refused.
        """
        self._contents = contents(records_of(task, CONTENT_HASH))

    def keep(self, models: Iterable[ModelRecord], artifacts: Iterable[ArtifactRef] = ()) -> None:
        """Delete what is not among these and was not used for an hour, and what killed processes have left.

        They are needed from now on, also by the next start.
        """
        entries = [entry for record in models for entry in (self._entry(record), self._entry(record, weights=False))]
        needed = {*entries, *map(self._entry, artifacts)}
        for entry in needed:
            _touch(entry)
        for lock in self._root.glob("*/*.lock"):
            entry = lock.with_suffix("")
            with contextlib.suppress(OSError), lock.open("a") as file:
                locks.lock(file, waits=False)  # else a process is making it
                shutil.rmtree(_part_of(entry), ignore_errors=True)  # a killed one has left it
                if entry not in needed and (entry / _MANIFEST).stat().st_mtime <= time.time() - UNTOUCHED_S:
                    shutil.rmtree(entry / "files", ignore_errors=True)  # first: without its files it is no entry
                    shutil.rmtree(entry, ignore_errors=True)
                    _log.info("%s is deleted: no program has needed it for an hour", entry)

    def model(self, record: ModelRecord) -> Path:
        """Return the folder with the model's files; downloads and unpacks them on first use.

        A package (folder upload) is unpacked; a single file keeps its base name. Do not change the folder. Raises
        ``SpecFault`` (the model has no data), ``RegistryUnavailable``, ``RegistryRefused``, ``ArtifactCorrupt``,
        ``ContentChanged`` (the file is not the recorded one of this id).
        """
        _require_data(record)
        return self._files(self._entry(record), record, partial(self._download, record))

    def without_weights(self, record: ModelRecord) -> Path:
        """Return the folder with what a gateway reads of the model: everything but its weights, which are not fetched.

        Returns the whole model if that is on disk, or if its store cannot read parts. Raises as ``model``.
        """
        _require_data(record)
        entry = self._entry(record, weights=False)
        for known in (self._entry(record), entry):
            if (found := self._usable(known, record)) is not None:
                return found
        if record.is_package and (stored := self._registry.parts(record.uri)) is not None:
            return self._files(entry, record, partial(_fetch_parts, stored, record.uri))
        if not record.is_package and is_weights(record.uri):
            return self._files(entry, record, lambda _: {})
        return self.model(record)

    def artifact(self, ref: ArtifactRef) -> Path:
        """Return the preprocess code: a ``.py`` file, or the folder of an uploaded package.

        Raises as ``model``; the recorded sha256 is always checked.
        """
        files = self._files(self._entry(ref), ref, partial(self._download, ref))
        return files if ref.is_archive else next(p for p in files.iterdir() if p.is_file())

    def hashes(self, record: ModelRecord) -> Hashes:
        """Return the hashes of the whole model on disk; empty if it is not there."""
        return _hashes_of(self._entry(record)) or {}

    # --- entries ------------------------------------------------------------------------------------------------------

    def _entry(self, what: ModelRecord | ArtifactRef, *, weights: bool = True) -> Path:
        if isinstance(what, ArtifactRef):
            kind, identity = "code", [what.key, what.uri, what.sha256]
        else:
            kind, identity = "models", [what.id, what.uri, "whole" if weights else "without weights"]
        return self._root / kind / hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]

    def _usable(self, entry: Path, what: ModelRecord | ArtifactRef) -> Path | None:
        """Return an entry's files, and mark it as in use; None if they are missing, damaged or of other content."""
        hashes = _hashes_of(entry)
        if hashes is None:
            return None
        try:
            self._check(what, hashes)
        except ContentChanged as error:
            _log.warning("the cached copy is fetched again: %s", error.message)
            return None
        _touch(entry)
        return entry / "files"

    def _check(self, what: ModelRecord | ArtifactRef, hashes: Hashes) -> None:
        """Raise ``ContentChanged`` for bytes that are not the recorded ones of a model; accept what nobody recorded."""
        known = self._contents.get(what.id) if isinstance(what, ModelRecord) else None
        if known is None or not isinstance(what, ModelRecord) or not known.is_of(what):
            return
        for part, recorded in ((WHOLE, known.sha256), (PARTS, known.parts)):
            if recorded and (found := hashes.get(part)) is not None and recorded != found:
                message, hint = overwritten(recorded, found)
                raise ContentChanged(f"model {what.name} ({what.id}) {message}", hint=hint, found=found)

    def _files(self, entry: Path, what: ModelRecord | ArtifactRef, fill: Callable[[Path], Hashes]) -> Path:
        """Return the files of an entry. If they are not usable, ``fill(part)`` must make ``part/files``.

        If the disk is full or cannot be written, ``RegistryUnavailable`` is raised.
        """
        if (found := self._usable(entry, what)) is not None:
            return found
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            with locks.held(entry.parent / f"{entry.name}.lock"):
                if self._usable(entry, what) is None:  # else another process has made it meanwhile
                    self._create(entry, what, fill)
        except OSError as error:
            do = "free disk space" if error.errno in _FULL else "give this user write access"
            raise RegistryUnavailable(
                f"cannot store {what.uri} in {self._root}: {error.strerror or error}",
                hint=f"{do} or set another cache folder",
            ) from error
        return entry / "files"

    def _create(self, entry: Path, what: ModelRecord | ArtifactRef, fill: Callable[[Path], Hashes]) -> None:
        part = _part_of(entry)
        shutil.rmtree(part, ignore_errors=True)
        try:
            files = part / "files"
            files.mkdir(parents=True)
            hashes = fill(part)
            self._check(what, hashes)
            stored = sorted(path for path in files.rglob("*") if path.is_file())
            for path in stored:
                durable.sync(path)  # a machine that loses power must not find the right size with other bytes
            sizes = {str(path.relative_to(files)): path.stat().st_size for path in stored}
            manifest = {"uri": what.uri, "hashes": hashes, "files": sizes}
            durable.replace(part / _MANIFEST, json.dumps(manifest, indent=1))
            if entry.exists():  # incomplete or damaged
                shutil.rmtree(entry)
            part.rename(entry)
            durable.sync(entry.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _download(self, what: ModelRecord | ArtifactRef, part: Path) -> Hashes:
        """Download a whole file and unpack it if it is an archive. Raises ``ArtifactCorrupt``."""
        is_archive = what.is_archive if isinstance(what, ArtifactRef) else what.is_package
        files = part / "files"
        place = part / "download" if is_archive else files  # the archive has a name of its own, maybe "files"
        place.mkdir(exist_ok=True)
        got = self._registry.download(what.uri, place)
        with got.open("rb") as file:
            hashes = {WHOLE: hashlib.file_digest(file, "sha256").hexdigest()}
        recorded = what.sha256 if isinstance(what, ArtifactRef) else None
        if recorded is not None and hashes[WHOLE] != recorded:
            raise ArtifactCorrupt(
                f"{what.uri} does not match its recorded hash (expected {recorded[:12]}…, got {hashes[WHOLE][:12]}…)",
                hint="it was changed or damaged after the upload: upload it again",
            )
        if is_archive:
            hashes[PARTS] = unpack(got, files)
            shutil.rmtree(place)
        if not any(files.iterdir()):
            raise ArtifactCorrupt(f"{what.uri} is an empty archive", hint="upload the folder again")
        return hashes


@dataclass(frozen=True, slots=True)
class Saved:
    """What a process leaves to the next one, for a start without the registry."""

    task: ServingTask
    models: dict[str, ModelRecord]
    former: Mapping[str, Any] = field(default_factory=dict)
    """By url, the plans (JSON, dataclasses) of versions that are served although the Task wants others."""
    served: frozenset[str] = frozenset()
    """Urls that are or were served."""


_SAVED: Final = TypeAdapter(Saved)


class SpecStore:
    """The last state that worked, on disk."""

    def __init__(self, root: Path) -> None:
        self._path = root / "last-good.json"
        self._lock = threading.Lock()
        self._saved: Saved | None = None

    def save(self, saved: Saved) -> None:
        """Replace the stored state atomically; an unchanged state is not written again. Raises ``OSError``."""
        with self._lock:
            if saved != self._saved:
                # Three milliseconds for a thousand models, in which no other thread runs.
                durable.replace(self._path, _SAVED.dump_json(saved, warnings=False).decode())
                self._saved = saved

    def load(self) -> Saved | None:
        """Return what was saved; None without a readable state."""
        try:
            return _SAVED.validate_python(json.loads(self._path.read_text()))
        except (OSError, ValueError):
            return None


def _fetch_parts(stored: Parts, uri: str, part: Path) -> Hashes:
    return {PARTS: unpack(Remote(stored, uri.rpartition("/")[2]), part / "files", weights=False)}


def _touch(entry: Path) -> None:
    with contextlib.suppress(OSError):  # not there
        os.utime(entry / _MANIFEST)


def _part_of(entry: Path) -> Path:
    """Return where an entry is made: one fixed name, since its lock admits one process at a time."""
    return entry.with_name(f"{entry.name}.part")


def _hashes_of(entry: Path) -> Hashes | None:
    """Return the hashes of a complete entry's download; None if it is not complete."""
    try:
        manifest = json.loads((entry / _MANIFEST).read_text())
        if any((entry / "files" / name).stat().st_size != size for name, size in manifest["files"].items()):
            return None
        return dict(manifest["hashes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _require_data(record: ModelRecord) -> None:
    if not record.has_data:
        raise SpecFault(
            f"model {record.id} ({record.name}) has no data: its upload did not finish ({record.uri or '-'})",
            hint="upload it again: clearml-serving model upload …",
        )
