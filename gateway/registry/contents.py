"""Detects models whose files were overwritten: compares each download with the bytes first seen under its id.

A real file server stores a folder under the serving Task by its base name. A second upload from a folder of the same
name therefore replaces the file of a published model. Replicas with the first bytes would go on serving them, and new
replicas would serve the other model under the same id. So the SHA-256 of each download (the file as stored, a folder's
zip) is recorded in the ledger the first time, and each later download is compared with it. ``cache`` calls this from
worker threads.

A record is keyed by the model's id, its address, and the hash in its metadata if there is one: a model with a new
address or a new hash is a new model, which all replicas follow. There is no compare-and-set: each hash has a key of its
own, and the earliest one is valid for all (of two at the same instant, the smaller hash).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from gateway.errors import ContentChanged, GatewayError, RegistryRefused
from gateway.registry.ledger import Ledger, Record
from gateway.registry.port import Registry
from gateway.spec import (
    CONTENT_HASH,
    ModelRecord,
    SeenContent,
    ServingTask,
    overwritten,
    records_of,
    seen_contents,
)

WHOLE: Final = ""
PARTS: Final = "/parts"
"""What a hash covers: the file as stored, or the parts that gateways read (see ``parts``)."""

_NAMES_CONTENT: Final = re.compile(r"-[0-9a-f]{16}\.zip$")
"""The end of an address that says what is there, because ``pack`` made its name."""


class _Batch:
    """Records of several threads that are written together, and the error of the write."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.is_over = False
        self.error: GatewayError | None = None


class Contents:
    """Compares downloads with what was seen first. Thread-safe; ``clock`` returns Unix seconds."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = time.time) -> None:
        self._ledger = ledger
        self._clock = clock
        self._known: Mapping[str, SeenContent] = {}
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        """Held while the ledger is being read; known hashes can be used meanwhile."""
        self._found: tuple[float, Mapping[str, SeenContent]] = (-math.inf, {})
        """When the ledger was last read, and its hashes."""
        self._batch = _Batch()
        """The records of the next write."""
        self._writing = threading.Lock()
        self._has_learned = False
        self.problem = ""
        """Why hashes cannot be recorded or read, for people; empty if they can."""

    def learn(self, task: ServingTask) -> None:
        """Take over the hashes from the serving Task that was just read."""
        known = seen_contents(records_of(task, CONTENT_HASH))
        with self._lock:
            self._known, self._has_learned = known, True

    def has_whole(self, record: ModelRecord) -> bool:
        """Whether the hash of the whole file is known but not that of the parts, so parts cannot be compared yet."""
        identity = identity_of(record)
        return identity in self._known and identity + PARTS not in self._known

    def agrees(self, record: ModelRecord, sha256: str, part: str = WHOLE) -> bool:
        """Whether these bytes, which were compared after their download, are valid without asking the registry."""
        seen = self._known.get(identity_of(record) + part)
        if seen is None:
            return not self._has_learned
        return seen.sha256 == sha256 and not seen.overwritten_by

    def check(self, record: ModelRecord, hashes: Mapping[str, str], *, is_new: bool) -> None:
        """Raise ``ContentChanged`` if the model's bytes differ from those first seen.

        ``hashes`` has the hash of the ``WHOLE`` file, of its ``PARTS``, or both. ``is_new``: they were just downloaded;
        first hashes are recorded, and ``RegistryUnavailable`` is raised if the registry cannot be asked. Files on disk
        were compared after their download, so for them nothing waits for the registry. If records cannot be read or
        written for lack of rights, everything is accepted and ``problem`` says so.
        """
        base = identity_of(record)
        found = {base + part: sha256 for part, sha256 in hashes.items()}
        if not is_new:
            for identity in found.keys() & self._known.keys():
                self._compare(record, self._known[identity], found.pop(identity))
            if not self._has_learned:
                return
        if all(_is_told(self._known.get(identity), sha256) for identity, sha256 in found.items()):
            return
        known: Mapping[str, SeenContent] = self._known
        try:
            known = self._read()
            missing = [
                self._record(record, identity, known.get(identity), sha256)
                for identity, sha256 in found.items()
                if not _is_settled(known.get(identity), sha256)
            ]
            if missing:
                self._write(missing)
                known = self._read()
        except RegistryRefused as error:
            self.problem = f"{error.message}; {error.hint}" if error.hint else error.message
        else:
            self.problem = ""
        for identity, sha256 in found.items():
            if (seen := known.get(identity)) is not None:
                self._compare(record, seen, sha256)

    def _write(self, records: Iterable[Record]) -> None:
        """Record hashes. Records of several threads that arrive during one write share the next one."""
        with self._lock:
            batch = self._batch
            batch.records += records
        with self._writing:
            if not batch.is_over:
                with self._lock:
                    self._batch = _Batch()
                batch.is_over = True
                try:
                    self._ledger.write(batch.records)
                except GatewayError as error:
                    batch.error = error
        if batch.error is not None:
            raise batch.error

    def _read(self) -> Mapping[str, SeenContent]:
        """Return the hashes in the ledger by identity, and remember them.

        A change of a thousand endpoints asks a thousand times, from several threads. A thread that waits while another
        one begins to read uses that one's result.
        """
        asked = time.monotonic()
        with self._reading:
            began, found = self._found
            if began <= asked:
                began = time.monotonic()
                found = seen_contents(self._ledger.read().get(CONTENT_HASH, {}))
                self._found = began, found
                with self._lock:
                    self._known = {**self._known, **found}
        return found

    def _record(self, record: ModelRecord, identity: str, seen: SeenContent | None, sha256: str) -> Record:
        now = round(self._clock(), 3)
        if seen is not None:  # a known hash came first, whatever the clocks of two machines say
            now = max(now, round(seen.last + 0.001, 3))
        first = seen.at if seen is not None and seen.sha256 == sha256 else now
        value = {
            "identity": identity, "sha256": sha256, "at": first, "last": now, "by": socket.gethostname(),
            "model": record.id, "name": record.name, "uri": record.uri,
        }  # fmt: skip
        return Record(CONTENT_HASH, f"{identity}/{sha256}", value)

    def _compare(self, record: ModelRecord, seen: SeenContent, sha256: str) -> None:
        if seen.sha256 != sha256:
            message, hint = overwritten(seen.sha256, sha256)
            raise ContentChanged(f"model {record.name} ({record.id}) {message}", hint=hint)


def _is_told(seen: SeenContent | None, sha256: str) -> bool:
    """Whether these bytes are known, so nothing must be asked or recorded."""
    return seen is not None and seen.sha256 == sha256 and not seen.overwritten_by


def _is_settled(seen: SeenContent | None, sha256: str) -> bool:
    """Whether the records already say what was found: the first bytes, or the later ones."""
    return seen is not None and (seen.sha256 == sha256) != bool(seen.overwritten_by)


@dataclass(frozen=True, slots=True)
class Shared:
    """Models that have the same address, and could therefore have overwritten each other's file."""

    uri: str
    names: tuple[str, ...]
    """Name and id of each."""
    unseen: ModelRecord | None
    """The newest of them, if its bytes decide: those of the others are known and equal, and nobody has seen its own."""


def shared(registry: Registry, records: Iterable[ModelRecord], seen: Mapping[str, SeenContent]) -> Sequence[Shared]:
    """Return the models that share an address with one of ``records``, unless all are known to have the same bytes.

    ``seen`` are the known hashes by identity. Raises like the registry's methods.
    """
    uris = {record.uri for record in records if record.has_data and not _NAMES_CONTENT.search(record.uri)}
    at: dict[str, list[ModelRecord]] = {}
    for model in registry.models_at(uris) if uris else ():
        at.setdefault(model.uri, []).append(model)
    found = []
    for uri, models in sorted(at.items()):
        if len(models) == 1:
            continue
        models.sort(key=lambda model: model.created)
        agreement = {_agreement(models, seen, part) for part in (WHOLE, PARTS)}
        if "same" not in agreement:
            names = tuple(sorted(f"{one.name} ({one.id})" for one in models))
            found.append(Shared(uri, names, models[-1] if "open" in agreement else None))
    return found


def _agreement(
    models: Sequence[ModelRecord], seen: Mapping[str, SeenContent], part: str
) -> Literal["same", "open", "unknown"]:
    """Return what is known of the bytes of ``models``, the oldest first.

    ``same``: each model's bytes were seen before the next one was registered, and are equal; ``open``: if those of the
    newest are, too.
    """
    contents = [seen.get(identity_of(model) + part) for model in models]
    for content, after in zip(contents, models[1:], strict=False):
        if content is None or content.overwritten_by or not content.at <= _created(after):
            return "unknown"
    known = {content.sha256 for content in contents if content is not None}
    if len(known) > 1:
        return "unknown"
    newest = contents[-1]
    return "open" if newest is None else "unknown" if newest.overwritten_by else "same"


def _created(model: ModelRecord) -> float:
    """Return when a model was registered (Unix seconds); nan, which compares with nothing, if that is unknown."""
    try:
        return datetime.fromisoformat(model.created).timestamp()
    except ValueError:
        return math.nan


def identity_of(record: ModelRecord) -> str:
    """Return the key of a model's hashes."""
    where = hashlib.sha256(json.dumps([record.uri, record.sha256]).encode()).hexdigest()[:16]
    return f"{record.id}/{where}"
