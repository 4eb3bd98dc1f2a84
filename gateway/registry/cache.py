"""What the registry holds, kept on local disk: verified model folders and code, and the last spec that worked.

Used by the gateway's assembly and by model sync; several processes may share one folder. An entry appears under its
final name only when it is complete (download aside → verify → fsync → rename), so a crash at any moment leaves either
nothing or a whole entry. Entries are immutable: their name is a hash of what identifies the content.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from gateway import durable, locks
from gateway.errors import ArtifactCorrupt, ContentChanged, RegistryUnavailable, SpecFault
from gateway.pace import Pace
from gateway.registry import parts, sweep
from gateway.registry.contents import PARTS, WHOLE, Contents
from gateway.registry.port import Registry
from gateway.registry.unpack import MAX_BYTES, unpack
from gateway.spec import ArtifactRef, ModelRecord, decode_model

_log = logging.getLogger("triton_gateway.cache")

_CHUNK = 1 << 20
_MANIFEST = sweep.MARK
_LAST_GOOD: Final = "kept"
"""Its name in the file, as earlier versions wrote it."""

_BELOW_VOLUME: Final = 0.8
"""Share of its volume that a cache may have: a kubelet, or a user's quota, looks at the rest."""

Check = Callable[[Mapping[str, str], bool], None]
"""Takes the hashes of what is stored (see ``Contents.check``), and whether it was just downloaded; raises if it may not
be used."""


class ArtifactCache:
    """Local, verified copies of models and preprocess code, downloaded at most once per machine.

    Safe between threads and processes. Methods block (download, unpack, fsync): call them from worker threads.
    """

    def __init__(
        self,
        root: Path,
        registry: Registry,
        *,
        max_bytes: int = 0,
        max_unpacked: int = MAX_BYTES,
        name: str = "gateway",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Use the folder ``root``; above ``max_bytes`` (0: never) what nobody needs is deleted (see ``sweep``).

        Whatever ``max_bytes`` says, a cache has at most 80 % of the volume that it lies on.
        An archive that holds more than ``max_unpacked`` bytes is refused (see ``unpack``).
        ``name`` is this program's among those that share the folder; ``clock`` counts Unix seconds.
        """
        self._root = root
        self._registry = registry
        self._wanted_bytes = max_bytes
        self._max_unpacked = max_unpacked
        self._name = name
        self._clock = clock
        self._contents = Contents(registry.ledger, clock=clock)
        self._has_told = False
        self._used: int | None = None
        """About how many bytes there are; None: nobody has counted."""
        self._whole_stores: set[str] = set()
        """Stores that give files as a whole only, and are known to."""

    @property
    def problem(self) -> str:
        """Why hashes of what is downloaded cannot be recorded for other replicas; empty: they can."""
        return self._contents.problem

    def learn(self, task: Mapping[str, Any]) -> None:
        """Take over the hashes that were just read from the registry with the serving Task."""
        self._contents.learn(task)

    def keep(self, models: Iterable[ModelRecord], artifacts: Iterable[ArtifactRef] = ()) -> None:
        """Say what is needed from now on, also by the next start; the rest may be deleted. Never raises.

        What is on disk of it is compared with what was seen first: a hash that nobody recorded yet (the copy is from
        before there were records) is recorded while the right bytes are still known.
        """
        models, pause = list(models), Pace()
        for record in models:
            for key in (_key_of_model(record), _key_of_parts(record)):
                _is_usable(self._root / "models" / key, self._check_of(record))
            pause()
        entries = [f"models/{key}" for record in models for key in (_key_of_model(record), _key_of_parts(record))]
        entries += [f"code/{_key_of_artifact(ref)}" for ref in artifacts]
        try:
            sweep.need(self._root, self._name, entries, self._clock(), pause)
            if self._wanted_bytes:
                self._sweep(self._limit())
        except OSError as error:
            _log.warning("the download cache %s cannot be tidied: %s", self._root, error.strerror or error)

    def _limit(self) -> int:
        """Return how many bytes the cache may have. Raises ``OSError``."""
        most = int(_BELOW_VOLUME * shutil.disk_usage(self._root).total)
        if most < self._wanted_bytes and not self._has_told:
            self._has_told = True
            _log.info("the download cache %s has %.1f GB at most: 80 %% of its volume", self._root, most / 1e9)
        return min(self._wanted_bytes, most)

    def _make_room(self, more: int) -> None:
        """Delete what nobody needs before ``more`` bytes come: who counts them for us may end this pod for them."""
        if not self._wanted_bytes:
            return
        if self._used is None:
            self._used = sweep.size_of(self._root)
        self._used += more
        if self._used > (limit := self._limit()):
            self._sweep(max(limit - more, 0))
            self._used = None

    def _sweep(self, max_bytes: int) -> bool:
        gone = sweep.sweep(self._root, max_bytes, self._clock(), Pace())
        for entry in gone:
            _log.info("the download cache is full: %s is deleted, nobody needs it", entry)
        return bool(gone)

    def model_of(self, model_id: str) -> Path:
        """Return the folder holding the files of a model of the registry; see ``model``."""
        return self.model(decode_model(self._registry.model(model_id)))

    def model(self, record: ModelRecord) -> Path:
        """Return the folder holding the model's files, downloading and unpacking them on first use.

        A package (folder upload) is unpacked; a single file keeps its base name. The folder must not be changed.
        Raises ``SpecFault`` (the model has no data), ``RegistryUnavailable``, ``RegistryRefused``,
        ``ArtifactCorrupt``, ``ContentChanged`` (the file is not the one that was first seen under this id).
        """
        _require_data(record)
        key, check = _key_of_model(record), self._check_of(record)
        return self._entry("models", key, record.uri, record.sha256, is_archive=record.is_package, check=check)

    def without_weights(self, record: ModelRecord) -> Path:
        """Return the folder holding what a gateway reads of the model: all but its weights, which are not fetched.

        The whole model if that is on disk already, or if it cannot be had in parts: its store reads nothing in parts,
        it is no zip, its metadata carries a hash of the whole, or only the whole was seen so far. Raises as ``model``.
        """
        _require_data(record)
        whole = self._root / "models" / _key_of_model(record)
        if record.sha256 is None:
            if _is_usable(whole, self._check_of(record)):
                _touch(whole)
                return whole / "files"
            if (found := self._parts(record)) is not None:
                return found
        return self.model(record)

    def at_hand(self, what: ModelRecord | ArtifactRef, *, weights: bool = True) -> Path | None:
        """Return what ``model`` or ``artifact`` would, if it is on disk and nobody has to be asked about it.

        ``weights`` False: what ``without_weights`` would.
        """
        if isinstance(what, ArtifactRef):
            entry = self._root / "code" / _key_of_artifact(what)
            if _hashes_of(entry) is None:
                return None
            _touch(entry)
            return _code_in(entry / "files", what)
        for key in (_key_of_model(what), *([] if weights else [_key_of_parts(what)])):
            entry = self._root / "models" / key
            hashes = _hashes_of(entry) if what.has_data else None
            if hashes is not None and all(self._contents.agrees(what, sha256, part) for part, sha256 in hashes.items()):
                _touch(entry)
                return entry / "files"
        return None

    def _check_of(self, record: ModelRecord) -> Check:
        def check(hashes: Mapping[str, str], is_new: bool) -> None:
            self._contents.check(record, hashes, is_new=is_new)

        return check

    def artifact(self, ref: ArtifactRef) -> Path:
        """Return the preprocess code: the ``.py`` file itself, or the folder of an uploaded package.

        Raises as ``model`` does; the recorded sha256 is always checked.
        """
        folder = self._entry("code", _key_of_artifact(ref), ref.uri, ref.sha256, is_archive=ref.is_archive)
        return _code_in(folder, ref)

    def _parts(self, record: ModelRecord) -> Path | None:
        """Return the folder with the model's parts; None if it has to be fetched whole."""
        entry, check = self._root / "models" / _key_of_parts(record), self._check_of(record)
        with self._filled(entry, record.uri, check) as is_missing:
            if not is_missing:
                return entry / "files"
            if self._contents.has_whole(record):
                return None
            if not record.is_package:
                if parts.is_read(record.uri):
                    return None
                self._put(entry, record.uri, lambda _: {})
                return entry / "files"
            stored = self._registry.parts(record.uri)
            if stored is None:
                self._say_whole(record.uri)
                return None

            def fill(part: Path) -> Mapping[str, str] | None:
                archive = part / "archive.zip"
                if not parts.fetch(stored, archive):
                    return None
                unpack(archive, part / "files", max_bytes=self._max_unpacked, wanted=parts.is_read)
                hashes = {PARTS: parts.fingerprint(archive, part / "files")}
                archive.unlink()
                check(hashes, True)
                return hashes

            return entry / "files" if self._put(entry, record.uri, fill) else None

    def _say_whole(self, uri: str) -> None:
        store = "{0.scheme}://{0.netloc}".format(urlsplit(uri))
        if store not in self._whole_stores:
            self._whole_stores.add(store)
            _log.info("%s gives no parts of a file: models are fetched from it with their weights", store)

    def _entry(
        self, kind: str, key: str, uri: str, sha256: str | None, *, is_archive: bool, check: Check | None = None
    ) -> Path:
        entry = self._root / kind / key

        def fill(part: Path) -> Mapping[str, str]:
            files = part / "files"
            if kind == "models" and (stored := self._registry.parts(uri)) is not None:
                self._make_room(2 * stored.size if is_archive else stored.size)  # packed and unpacked
            got = self._registry.download(uri, part if is_archive else files)
            hashes = {WHOLE: _sha256(got)}
            if sha256 is not None and hashes[WHOLE] != sha256:
                raise ArtifactCorrupt(
                    f"{uri} does not match its recorded hash (expected {sha256[:12]}…, got {hashes[WHOLE][:12]}…)",
                    hint="it was changed or damaged after the upload: upload it again",
                )
            if is_archive:
                unpack(got, files, max_bytes=self._max_unpacked)
                if check is not None and (found := parts.fingerprint(got, files)):
                    hashes[PARTS] = found
                got.unlink()
            if not any(files.iterdir()):
                raise _empty(uri)
            # Last, so that what is broken is never taken for what the model was at first.
            if check is not None:
                check(hashes, True)
            return hashes

        with self._filled(entry, uri, check) as is_missing:
            if is_missing:
                self._put(entry, uri, fill)
        return entry / "files"

    @contextlib.contextmanager
    def _filled(self, entry: Path, uri: str, check: Check | None) -> Iterator[bool]:
        """Say whether an entry has to be filled, under its lock; a disk that is full is ``RegistryUnavailable``."""
        if _is_usable(entry, check):
            _touch(entry)
            yield False
            return
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            with locks.held(entry.parent / f"{entry.name}.lock"):
                yield not _is_usable(entry, check)  # another process may have been faster
        except OSError as error:
            raise RegistryUnavailable(
                f"cannot store {uri} in {self._root}: {error.strerror or error}",
                hint="free disk space or set another cache folder",
            ) from error

    def _put(self, entry: Path, uri: str, fill: Callable[[Path], Mapping[str, str] | None]) -> bool:
        """Let ``fill`` put an entry together; once more after a sweep, if the disk is full. False: it did nothing."""
        try:
            return self._fill(entry, uri, fill)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._sweep(0):
                raise
            return self._fill(entry, uri, fill)

    def _fill(self, entry: Path, uri: str, fill: Callable[[Path], Mapping[str, str] | None]) -> bool:
        # One name, as one process at a time has the lock: to look for others' would be a walk of the folder per entry.
        part = entry.with_name(f"{entry.name}{sweep.PART}")
        shutil.rmtree(part, ignore_errors=True)
        try:
            files = part / "files"
            files.mkdir(parents=True)
            hashes = fill(part)
            if hashes is None:
                return False
            manifest = {
                "uri": uri,
                "sha256": hashes.get(WHOLE),
                "parts": hashes.get(PARTS),
                "files": {str(p.relative_to(files)): p.stat().st_size for p in sorted(files.rglob("*")) if p.is_file()},
            }
            durable.replace(part / _MANIFEST, json.dumps(manifest, indent=1))
            if entry.exists():  # incomplete or damaged
                shutil.rmtree(entry)
            part.rename(entry)
            durable.sync(entry.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return True


class SpecStore:
    """The last serving Task and model records that were fetched, so that a boot without the registry can serve."""

    def __init__(self, root: Path) -> None:
        self._path = root / "last-good.json"

    def save(
        self,
        task: Mapping[str, Any],
        models: Mapping[str, Mapping[str, Any]],
        last_good: Mapping[str, Any] = MappingProxyType({}),
        served: Sequence[str] = (),
    ) -> None:
        """Replace the stored state atomically; unchanged state is not written again.

        Leaves other threads their turn. ``last_good``: JSON values of versions that are served although the Task wants
        others; ``served``: urls that are, or were.
        """
        text = _paced_json({"task": task, "models": models, _LAST_GOOD: last_good}, served)
        with contextlib.suppress(OSError):
            if self._path.read_text() == text:
                return
        durable.replace(self._path, text)

    def load(self) -> tuple[Mapping[str, Any], Mapping[str, Mapping[str, Any]]] | None:
        """Return ``(task, models by id)``, or None when nothing (readable) is stored."""
        state = self._read()
        task, models = state.get("task"), state.get("models")
        return (task, models) if isinstance(task, dict) and isinstance(models, dict) else None

    def last_good(self) -> Mapping[str, Any]:
        """Return the ``last_good`` that was saved; empty if nothing (readable) is stored."""
        stored = self._read().get(_LAST_GOOD)
        return stored if isinstance(stored, dict) else {}

    def served(self) -> frozenset[str] | None:
        """Return the urls that were served; None if nothing (readable) is stored."""
        served = self._read().get("served")
        return frozenset(map(str, served)) if isinstance(served, list) else None

    def _read(self) -> dict[str, Any]:
        try:
            state = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}


def _paced_json(state: Mapping[str, Mapping[str, Any]], served: Sequence[str]) -> str:
    # `json.dumps` keeps the interpreter's lock for as long as it takes: tens of milliseconds for a thousand models.
    pace = Pace()
    parts = [f'"served": {json.dumps(list(served))}']
    for name, entries in state.items():
        written = []
        for key, value in sorted(entries.items()):
            written.append(f"{json.dumps(key)}: {json.dumps(value, sort_keys=True, default=str)}")
            pace()
        parts.append(f'"{name}": {{{", ".join(written)}}}')
    return f"{{{', '.join(parts)}}}"


def _code_in(files: Path, ref: ArtifactRef) -> Path:
    return files if ref.is_archive else next(p for p in files.iterdir() if p.is_file())


def _key_of_model(record: ModelRecord) -> str:
    return _key([record.id, record.uri, record.sha256])


def _key_of_parts(record: ModelRecord) -> str:
    return _key([record.id, record.uri, record.sha256, "without weights"])


def _key_of_artifact(ref: ArtifactRef) -> str:
    return _key([ref.key, ref.uri, ref.sha256])


def _key(identity: list[str | None]) -> str:
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def _touch(entry: Path) -> None:
    with contextlib.suppress(OSError):  # in use: a sweep of another process leaves it alone
        os.utime(entry / _MANIFEST)


def _hashes_of(entry: Path) -> Mapping[str, str] | None:
    """Return the hashes of what was downloaded to a complete entry (see ``Contents.check``); None for any other."""
    try:
        manifest = json.loads((entry / _MANIFEST).read_text())
        if any((entry / "files" / name).stat().st_size != size for name, size in manifest["files"].items()):
            return None
        return {part: str(manifest[key]) for part, key in ((WHOLE, "sha256"), (PARTS, "parts")) if manifest.get(key)}
    except (OSError, ValueError, KeyError):
        return None


def _is_usable(entry: Path, check: Check | None) -> bool:
    hashes = _hashes_of(entry)
    if hashes is None:
        return False
    if check is None:
        return True
    try:
        check(hashes, False)
    except ContentChanged as error:
        _log.warning("what lies on disk is fetched again: %s", error.message)
        return False
    except RegistryUnavailable:
        return True  # it was compared when it came
    return True


def _require_data(record: ModelRecord) -> None:
    if not record.has_data:
        raise SpecFault(
            f"model {record.id} ({record.name}) has no data: its upload did not finish ({record.uri or '-'})",
            hint="upload it again: clearml-serving model upload …",
        )


def _empty(uri: str) -> ArtifactCorrupt:
    return ArtifactCorrupt(f"{uri} is an empty archive", hint="upload the folder again")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
