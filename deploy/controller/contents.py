"""Records one content per model, so that every replica notices when another upload has overwritten its file.

The bytes that a model sync reports first are the model's. If one reports others later, that is a fault that every
gateway shows. Models that no Triton runs are looked at here, once. Files are read in a thread of its own, one at a
time: a large one must not cost the lead.
"""

from __future__ import annotations

import hashlib
import logging
import re
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from deploy.controller.wanted import Wanted
from deploy.tools.errors import GatewayError
from gateway import registry, spec
from gateway.registry import Record, Records, RegistryWriter
from gateway.spec import ServingTask

log = logging.getLogger("triton_gateway.controller")

EVERY_S: Final = 30.0
SOON_S: Final = 5.0
"""Pause while a model has no content yet."""
_MAX_NAMED: Final = 6
"""Models that a record names of those at one address: each of hundreds would otherwise name all others."""
_NAMES_CONTENT: Final = re.compile(r"-[0-9a-f]{16}\.zip$")
"""The end of an address that says what is there, because ``registry/clearml/upload`` made its name."""

Reported = Callable[[], Mapping[str, Sequence[tuple[str, str]]]]
"""Returns the hashes (of the file, of its parts) that model syncs report, by the model's name in Triton."""


def reported(records: Records) -> dict[str, list[tuple[str, str]]]:
    """Return these hashes from the reports of all model syncs."""
    found: dict[str, list[tuple[str, str]]] = {}
    for _, models in sorted(registry.reports.read(records).items()):
        for one in models:
            if one.sha256:
                found.setdefault(one.name, []).append((one.sha256, one.parts))
    return found


class ContentKeeper:
    """Called with the serving Task after every look, on one thread. ``wall``: Unix seconds."""

    def __init__(
        self, store: RegistryWriter, reported: Reported, *, wall: Callable[[], float] = time.time,
        start: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._reported = reported
        self._wall = wall
        self._start = start or (lambda work: threading.Thread(target=work, name="contents", daemon=True).start())
        self._due = 0.0
        self._looking = ""
        self._seen: dict[str, str] = {}
        """Address → the hash of the file there."""

    def __call__(self, task: ServingTask) -> Wanted | None:
        """Return the contents that are new or were overwritten."""
        if task.problem or self._wall() < self._due:
            return None
        self._due = self._wall() + EVERY_S
        changed, is_open = self._changed(task)
        if is_open:
            self._due = self._wall() + SOON_S
        return Wanted(changed)

    def _changed(self, task: ServingTask) -> tuple[list[Record], bool]:
        serving = spec.decode(task)
        known = spec.contents(spec.records_of(task, spec.CONTENT_HASH))
        models = [model for model in self._store.records(serving.model_ids).values() if model.has_data]
        others = self._store.models_at({model.uri for model in models if not _NAMES_CONTENT.search(model.uri)})
        told, changed, is_open = self._reported(), [], False
        for model in models:
            runs = [e for e in serving.endpoints.values() if e.model_id == model.id and e.engine == "triton"]
            hashes = [one for e in runs for one in told.get(spec.triton_model_name(e, model), ())]
            newer = sorted(
                (m for m in others if m.uri == model.uri and m.id != model.id and m.created >= model.created),
                key=lambda m: (m.created, m.id),
            )
            content = known.get(model.id)
            if content is not None and content.is_of(model):
                content = replace(content, found=next((one for one, _ in hashes if one != content.sha256), ""))
            else:
                sha256, parts = hashes[0] if hashes else ("" if runs else self._look(model.uri), "")
                names = tuple(f"{m.name} ({m.id})" for m in newer[:_MAX_NAMED])
                content = spec.Content(
                    model.id, model.name, model.uri, sha256, parts, newer=names,
                    at=round(self._wall(), 3),
                ) if sha256 else None  # fmt: skip
            is_open = is_open or content is None or bool(self._looking)
            if content is not None and content != known.get(model.id):
                changed.append(Record("content_hash", model.id, _value(content)))
                if content.found:
                    log.warning("the file of model %s (%s) was overwritten by another upload", model.name, model.id)
        return changed, is_open

    def _look(self, uri: str) -> str:
        """Return the hash of the file at ``uri``; empty until it is known."""
        if uri not in self._seen and not self._looking:
            self._looking = uri
            self._start(lambda: self._read(uri))
        return self._seen.get(uri, "")

    def _read(self, uri: str) -> None:
        try:
            with tempfile.TemporaryDirectory() as folder, self._store.download(uri, Path(folder)).open("rb") as file:
                self._seen[uri] = hashlib.file_digest(file, "sha256").hexdigest()
        except (GatewayError, OSError) as error:
            log.info("the file at %s cannot be read: %s", uri, error)
        finally:
            self._looking = ""


def _value(content: spec.Content) -> dict[str, object]:
    return {name: value for name, value in asdict(content).items() if name != "model" and value not in ("", ())}
