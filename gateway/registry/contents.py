"""What the bytes of every model were when anybody first saw them: others under the same id are refused.

A real file server stores a folder under the serving Task by its base name, so a second upload from a folder of the same
name replaces the file of a published model. Whoever has the first bytes would go on with them, and a new replica would
serve the other model under the same id. So the SHA-256 of each download (the file as it is stored, a folder's zip) is
recorded in the ledger the first time, and every download is compared with it. Called by ``cache`` from worker threads.

A record is found by the model's id, its address and the hash its metadata may carry: a model that somebody gives
another address or another hash is another model, which all replicas follow. There is no compare-and-set: each hash has
a key of its own, and the earliest one counts for everybody (at the same instant the smaller).
"""

from __future__ import annotations

import hashlib
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gateway.errors import ContentChanged, GatewayError, RegistryRefused
from gateway.registry.ledger import Ledger, Record
from gateway.registry.port import Registry
from gateway.spec import CONTENT_HASH, ModelRecord, SeenContent, overwritten, records_of, seen_contents

WHOLE: Final = ""
PARTS: Final = "/parts"
"""What a hash is of: the file as it is stored, or what gateways read of it (see ``parts``)."""


class _Batch:
    """Records of several threads that are written together, and what came of it."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.is_over = False
        self.error: GatewayError | None = None


class Contents:
    """Compares what was downloaded with what was seen first. Safe between threads; ``clock`` counts Unix seconds."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = time.time) -> None:
        self._ledger = ledger
        self._clock = clock
        self._known: Mapping[str, SeenContent] = {}
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        """Held while the ledger is asked; what is known does not wait for that."""
        self._found: tuple[float, Mapping[str, SeenContent]] = (-math.inf, {})
        """When the ledger was last asked, and what it said."""
        self._batch = _Batch()
        """What is recorded by the next write."""
        self._writing = threading.Lock()
        self._has_learned = False
        self.problem = ""
        """Why hashes cannot be recorded or read, for people; empty: they can."""

    def learn(self, task: Mapping[str, Any]) -> None:
        """Take over what was just read from the registry with the serving Task."""
        known = seen_contents(records_of(task, CONTENT_HASH))
        with self._lock:
            self._known, self._has_learned = known, True

    def has_whole(self, record: ModelRecord) -> bool:
        """Whether the hash of the model's whole file is known, but none of its parts: they cannot be compared yet."""
        identity = identity_of(record)
        return identity in self._known and identity + PARTS not in self._known

    def agrees(self, record: ModelRecord, sha256: str, part: str = WHOLE) -> bool:
        """Whether these bytes, which were compared when they came, are known to be right without asking anybody."""
        seen = self._known.get(identity_of(record) + part)
        if seen is None:
            return not self._has_learned
        return seen.sha256 == sha256 and not seen.overwritten_by

    def check(self, record: ModelRecord, hashes: Mapping[str, str], *, is_new: bool) -> None:
        """Raise ``ContentChanged`` if the model's bytes were others when they were first seen.

        ``hashes``: of the ``WHOLE`` file, of its ``PARTS``, or of both. ``is_new``: they were just downloaded; the
        first ones are recorded, and ``RegistryUnavailable`` is raised when nobody can say whether they are. What lies
        on disk was compared when it came and waits for nobody. Where records cannot be read or written for good,
        everything is accepted and ``problem`` says so.
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
        """Record hashes; those of several threads at once, as far as they come while another write is under way."""
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
        """Return what the ledger says now, by the identities of the hashes, and remember it.

        A change of a thousand endpoints has a thousand to ask about, from several threads: who waits while somebody
        else begins to read takes what that one finds, and what others have recorded is asked for once.
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
        if seen is not None:  # whatever the clocks of two machines say, what is known came first
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
    """Whether there is nothing to ask or to record about these bytes."""
    return seen is not None and seen.sha256 == sha256 and not seen.overwritten_by


def _is_settled(seen: SeenContent | None, sha256: str) -> bool:
    """Whether the records say already what was found: the first bytes, or the others that came after them."""
    return seen is not None and (seen.sha256 == sha256) != bool(seen.overwritten_by)


def namesakes(registry: Registry, records: Iterable[ModelRecord]) -> dict[str, tuple[str, ...]]:
    """Return the models that share an address with one of ``records``: address → name and id of each.

    Raises as the registry's methods do.
    """
    uris = {record.uri for record in records if record.has_data}
    found: dict[str, list[str]] = {}
    for model in registry.models_at(uris) if uris else ():
        found.setdefault(str(model["uri"]), []).append(f"{model.get('name')} ({model['id']})")
    return {uri: tuple(sorted(names)) for uri, names in found.items() if len(names) > 1}


def identity_of(record: ModelRecord) -> str:
    """Return the name under which a model's hashes are recorded."""
    where = hashlib.sha256(json.dumps([record.uri, record.sha256]).encode()).hexdigest()[:16]
    return f"{record.id}/{where}"
