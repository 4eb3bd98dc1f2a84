"""Local copies of the registry's content: verified model folders and code, and the last configuration that worked.

The gateway's assembly and model sync use it; several processes may share one folder. An entry gets its final name only
when it is complete (download aside → verify → fsync → rename), so a crash leaves nothing or a whole entry. Entries are
immutable; their names are hashes of what identifies the content.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from gateway import durable, locks
from gateway.errors import ArtifactCorrupt, ContentChanged, RegistryUnavailable, SpecFault
from gateway.registry import parts, sweep
from gateway.registry.port import Registry
from gateway.registry.unpack import unpack
from gateway.spec import CONTENT_HASH, ArtifactRef, Content, ModelRecord, ServingTask, contents, overwritten, records_of

_log = logging.getLogger("triton_gateway.cache")

_CHUNK = 1 << 20
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_MANIFEST = sweep.MARK
_BELOW_VOLUME: Final = 0.8
"""Largest share of its volume for a cache; kubelets and quotas act when a volume is nearly full."""

WHOLE: Final = "sha256"
PARTS: Final = "parts"
"""What a hash covers: the file as stored, or the parts of it that gateways read (see ``parts``)."""

Check = Callable[[Mapping[str, str]], None]
"""Takes the hashes of stored files, by ``WHOLE`` and ``PARTS``. Raises if they must not be used."""


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
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Use the folder ``root``; above ``max_bytes`` (0: no limit), unneeded entries are deleted (see ``sweep``).

        If ``max_bytes`` is set, the cache also takes at most 80 % of its volume. ``clock`` returns Unix seconds.
        """
        self._root = root
        self._registry = registry
        self._wanted_bytes = max_bytes
        self._clock = clock
        self._needed: frozenset[str] | None = None
        """The entries (``kind/key``) that are needed; replaced as a whole. None, and nothing is deleted, before that is
        known."""
        self._contents: Mapping[str, Content] = {}
        """The recorded contents by model id; replaced as a whole, as threads read it."""
        self._has_told = False
        self._used: int | None = None
        """Approximate size in bytes; None if it was not counted yet."""
        self._whole_stores: set[str] = set()
        """Stores that are known not to support reading in parts."""

    def learn(self, task: ServingTask) -> None:
        """Take over the recorded contents from the serving Task that was just read.

        A real file server stores a folder under the serving Task by its base name. A second upload from a folder of the
        same name therefore replaces the file of a published model. Replicas with the first bytes would go on serving
        them, and new ones would serve the other model under the same id. So the controller records one content per
        model, as soon as a model sync reports it or it has looked itself, and downloads of other bytes are refused.
        """
        self._contents = contents(records_of(task, CONTENT_HASH))

    def keep(self, models: Iterable[ModelRecord], artifacts: Iterable[ArtifactRef] = ()) -> None:
        """Set what is needed from now on, also by the next start; other entries may be deleted. Never raises."""
        entries = [f"models/{key}" for record in models for key in (_key_of_model(record), _key_of_parts(record))]
        entries += [f"code/{_key_of_artifact(ref)}" for ref in artifacts]
        self._needed = frozenset(entries)
        for entry in self._needed:
            self._touch(self._root / entry)
        try:
            if self._wanted_bytes and self._root.is_dir():
                self._sweep(self._limit())
        except OSError as error:
            _log.warning("the download cache %s cannot be tidied: %s", self._root, error.strerror or error)

    def _limit(self) -> int:
        """Return the largest size of the cache in bytes. Raises ``OSError``."""
        most = int(_BELOW_VOLUME * shutil.disk_usage(self._root).total)
        if most < self._wanted_bytes and not self._has_told:
            self._has_told = True
            _log.info("the download cache %s has %.1f GB at most: 80 %% of its volume", self._root, most / 1e9)
        return min(self._wanted_bytes, most)

    def _make_room(self, more: int) -> None:
        """Delete unneeded entries before ``more`` bytes arrive: a kubelet evicts a pod that exceeds its limit."""
        if not self._wanted_bytes:
            return
        if self._used is None:
            self._used = sweep.size_of(self._root)
        self._used += more
        if self._used > (limit := self._limit()):
            self._sweep(max(limit - more, 0))
            self._used = None

    def _touch(self, entry: Path) -> None:
        sweep.touch(entry, self._clock())

    def _sweep(self, max_bytes: int) -> bool:
        if self._needed is None:
            return False
        gone = sweep.sweep(self._root, self._needed, max_bytes, self._clock())
        for entry in gone:
            _log.info("the download cache is full: %s is deleted, no program needs it", entry)
        return bool(gone)

    def model_of(self, model_id: str) -> Path:
        """Return the folder with a model's files; see ``model``."""
        return self.model(self._registry.model(model_id))

    def model(self, record: ModelRecord) -> Path:
        """Return the folder with the model's files; downloads and unpacks them on first use.

        A package (folder upload) is unpacked; a single file keeps its base name. Do not change the folder. Raises
        ``SpecFault`` (the model has no data), ``RegistryUnavailable``, ``RegistryRefused``, ``ArtifactCorrupt``,
        ``ContentChanged`` (the file is not the one first seen under this id).
        """
        _require_data(record)
        key, check = _key_of_model(record), self._check_of(record)
        return self._entry("models", key, record.uri, record.sha256, is_archive=record.is_package, check=check)

    def without_weights(self, record: ModelRecord) -> Path:
        """Return the folder with what a gateway reads of the model: everything but its weights, which are not fetched.

        Returns the whole model if that is on disk, or if parts cannot be used: its store cannot read parts, or its
        metadata has a hash of the whole. Raises as ``model``.
        """
        _require_data(record)
        if (found := self.at_hand(record, weights=False)) is not None:
            return found
        if record.sha256 is None and (found := self._parts(record)) is not None:
            return found
        return self.model(record)

    def at_hand(self, what: ModelRecord | ArtifactRef, *, weights: bool = True) -> Path | None:
        """Return what ``model`` or ``artifact`` would return, if it is on disk and needs no question to the registry.

        With ``weights`` False, what ``without_weights`` would return.
        """
        if isinstance(what, ArtifactRef):
            entry = self._root / "code" / _key_of_artifact(what)
            if _hashes_of(entry) is None:
                return None
            self._touch(entry)
            return _code_in(entry / "files", what)
        for key in (_key_of_model(what), *([] if weights else [_key_of_parts(what)])):
            entry = self._root / "models" / key
            if what.has_data and _is_usable(entry, self._check_of(what)):
                self._touch(entry)
                return entry / "files"
        return None

    def hashes(self, record: ModelRecord) -> Mapping[str, str]:
        """Return the hashes of the whole model on disk (``WHOLE``, ``PARTS``); empty if it is not there."""
        return _hashes_of(self._root / "models" / _key_of_model(record)) or {}

    def _check_of(self, record: ModelRecord) -> Check:
        """Return a check that raises ``ContentChanged`` for bytes that are not the recorded ones of this model.

        What nobody has recorded is accepted.
        """

        def check(hashes: Mapping[str, str]) -> None:
            known = self._contents.get(record.id)
            if known is None or not known.is_of(record):
                return
            for part, recorded in ((WHOLE, known.sha256), (PARTS, known.parts)):
                if recorded and (found := hashes.get(part)) is not None and recorded != found:
                    message, hint = overwritten(recorded, found)
                    raise ContentChanged(f"model {record.name} ({record.id}) {message}", hint=hint, found=found)

        return check

    def artifact(self, ref: ArtifactRef) -> Path:
        """Return the preprocess code: a ``.py`` file, or the folder of an uploaded package.

        Raises as ``model``; the recorded sha256 is always checked.
        """
        folder = self._entry("code", _key_of_artifact(ref), ref.uri, ref.sha256, is_archive=ref.is_archive)
        return _code_in(folder, ref)

    def _parts(self, record: ModelRecord) -> Path | None:
        """Return the folder with the model's parts; None if the whole must be fetched."""
        entry, check = self._root / "models" / _key_of_parts(record), self._check_of(record)
        with self._filled(entry, record.uri, check) as is_missing:
            if not is_missing:
                return entry / "files"
            if not record.is_package:
                if parts.is_read(record.uri):
                    return None
                self._put(entry, record.uri, lambda _: {})
                return entry / "files"
            stored = self._registry.parts(record.uri)
            if stored is None:
                self._say_whole(record.uri)
                return None

            def fill(part: Path) -> Mapping[str, str]:
                archive = part / "archive.zip"
                parts.fetch(stored, archive)
                unpack(archive, part / "files", wanted=parts.is_read)
                hashes = {PARTS: parts.fingerprint(archive, part / "files")}
                archive.unlink()
                check(hashes)
                return hashes

            self._put(entry, record.uri, fill)
            return entry / "files"

    def _say_whole(self, uri: str) -> None:
        store = "{0.scheme}://{0.netloc}".format(urlsplit(uri))
        if store not in self._whole_stores:
            self._whole_stores.add(store)
            _log.info("%s does not support reading parts of a file: models are fetched with their weights", store)

    def _entry(
        self, kind: str, key: str, uri: str, sha256: str | None, *, is_archive: bool, check: Check | None = None
    ) -> Path:
        entry = self._root / kind / key

        def fill(part: Path) -> Mapping[str, str]:
            files = part / "files"
            if kind == "models" and (stored := self._registry.parts(uri)) is not None:
                self._make_room(2 * stored.size if is_archive else stored.size)  # packed and unpacked
            place = part / "download" if is_archive else files  # the archive has a name of its own, maybe "files"
            place.mkdir(exist_ok=True)
            got = self._registry.download(uri, place)
            hashes = {WHOLE: _sha256(got)}
            if sha256 is not None and hashes[WHOLE] != sha256:
                raise ArtifactCorrupt(
                    f"{uri} does not match its recorded hash (expected {sha256[:12]}…, got {hashes[WHOLE][:12]}…)",
                    hint="it was changed or damaged after the upload: upload it again",
                )
            if is_archive:
                unpack(got, files)
                if check is not None:
                    hashes[PARTS] = parts.fingerprint(got, files)
                shutil.rmtree(place)
            if not any(files.iterdir()):
                raise ArtifactCorrupt(f"{uri} is an empty archive", hint="upload the folder again")
            if check is not None:
                check(hashes)
            return hashes

        with self._filled(entry, uri, check) as is_missing:
            if is_missing:
                self._put(entry, uri, fill)
        return entry / "files"

    @contextlib.contextmanager
    def _filled(self, entry: Path, uri: str, check: Check | None) -> Iterator[bool]:
        """Yield, under the entry's lock, whether it must be filled.

        If the disk is full or cannot be written, ``RegistryUnavailable`` is raised.
        """
        if _is_usable(entry, check):
            self._touch(entry)
            yield False
            return
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            with locks.held(entry.parent / f"{entry.name}.lock"):
                yield not _is_usable(entry, check)  # another process may have filled it meanwhile
        except OSError as error:
            do = "free disk space" if error.errno in _FULL else "give this user write access"
            raise RegistryUnavailable(
                f"cannot store {uri} in {self._root}: {error.strerror or error}",
                hint=f"{do} or set another cache folder",
            ) from error

    def _put(self, entry: Path, uri: str, fill: Callable[[Path], Mapping[str, str]]) -> None:
        """Let ``fill`` create an entry; again after a sweep if the disk is full."""
        try:
            self._fill(entry, uri, fill)
        except OSError as error:
            if error.errno not in _FULL or not self._sweep(0):
                raise
            self._fill(entry, uri, fill)

    def _fill(self, entry: Path, uri: str, fill: Callable[[Path], Mapping[str, str]]) -> None:
        # One fixed name, since the lock admits one process at a time; leftovers need no search through the folder.
        part = entry.with_name(f"{entry.name}{sweep.PART}")
        shutil.rmtree(part, ignore_errors=True)
        try:
            files = part / "files"
            files.mkdir(parents=True)
            hashes = fill(part)
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


class Saved(NamedTuple):
    """What ``SpecStore.save`` was given."""

    task: ServingTask
    models: dict[str, ModelRecord]
    last_good: Mapping[str, Any]
    served: frozenset[str]


class SpecStore:
    """The last serving Task and model records that were fetched, for a start without the registry."""

    def __init__(self, root: Path) -> None:
        self._path = root / "last-good.json"

    def save(
        self,
        task: ServingTask,
        models: Mapping[str, ModelRecord],
        last_good: Mapping[str, Any] = MappingProxyType({}),
        served: Sequence[str] = (),
    ) -> None:
        """Replace the stored state atomically; an unchanged state is not written again. Pauses for other threads.

        ``last_good``: JSON values of versions that are served although the Task wants others. ``served``: urls that are
        or were served.
        """
        stored = {name: asdict(model) for name, model in models.items()}
        text = _in_pieces({"task": asdict(task), "models": stored, "last_good": last_good}, served)
        with contextlib.suppress(OSError):
            if self._path.read_text() == text:
                return
        durable.replace(self._path, text)

    def load(self) -> Saved | None:
        """Return what was saved; None without a readable state."""
        try:
            state = json.loads(self._path.read_text())
            artifacts = {key: ArtifactRef(**ref) for key, ref in state["task"]["artifacts"].items()}
            task = ServingTask(**{**state["task"], "artifacts": artifacts})
            models = {model_id: model_from(stored) for model_id, stored in state["models"].items()}
            return Saved(task, models, dict(state["last_good"]), frozenset(map(str, state["served"])))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def model_from(stored: Mapping[str, Any]) -> ModelRecord:
    """Return a model from its fields, as ``asdict`` has them. Raises ``KeyError`` and ``TypeError``."""
    return ModelRecord(**{**stored, "tags": tuple(stored["tags"])})


def _in_pieces(state: Mapping[str, Mapping[str, Any]], served: Sequence[str]) -> str:
    # One `json.dumps` would hold the interpreter lock for its whole time: tens of milliseconds for a thousand models.
    parts = [f'"served": {json.dumps(list(served))}']
    for name, entries in state.items():
        written = [
            f"{json.dumps(key)}: {json.dumps(value, sort_keys=True, default=str)}"
            for key, value in sorted(entries.items())
        ]
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


def _hashes_of(entry: Path) -> Mapping[str, str] | None:
    """Return the hashes of a complete entry's download by ``WHOLE`` and ``PARTS``; None if it is not complete."""
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
        check(hashes)
    except ContentChanged as error:
        _log.warning("the cached copy is fetched again: %s", error.message)
        return False
    return True


def _require_data(record: ModelRecord) -> None:
    if not record.has_data:
        raise SpecFault(
            f"model {record.id} ({record.name}) has no data: its upload did not finish ({record.uri or '-'})",
            hint="upload it again: clearml-serving model upload …",
        )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
