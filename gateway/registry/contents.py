"""Refuses models whose files were overwritten: compares each download with the bytes that the controller recorded.

A real file server stores a folder under the serving Task by its base name. A second upload from a folder of the same
name therefore replaces the file of a published model. Replicas with the first bytes would go on serving them, and new
replicas would serve the other model under the same id. So the controller records one content per model, as soon as a
model sync reports it or, for models that no Triton runs, as soon as it has looked itself (``deploy/controller``).
``cache`` calls this from worker threads; it never writes, and never waits for the registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.errors import ContentChanged
from gateway.spec import CONTENT_HASH, Content, ModelRecord, ServingTask, contents, overwritten, records_of

WHOLE: Final = "sha256"
PARTS: Final = "parts"
"""What a hash covers: the file as stored, or the parts of it that gateways read (see ``parts``)."""


class Contents:
    """The recorded contents, by model id. Thread-safe: each change replaces the whole mapping."""

    def __init__(self) -> None:
        self._known: Mapping[str, Content] = {}

    def learn(self, task: ServingTask) -> None:
        """Take over the contents from the serving Task that was just read."""
        self._known = contents(records_of(task, CONTENT_HASH))

    def check(self, record: ModelRecord, hashes: Mapping[str, str]) -> None:
        """Raise ``ContentChanged`` if the model's bytes are not the recorded ones.

        ``hashes`` has the hash of the ``WHOLE`` file, of its ``PARTS``, or both. What nobody has recorded is accepted.
        """
        known = self._known.get(record.id)
        if known is None or not known.is_of(record):
            return
        recorded = {WHOLE: known.sha256, PARTS: known.parts}
        for part, found in hashes.items():
            if recorded[part] and recorded[part] != found:
                message, hint = overwritten(recorded[part], found)
                raise ContentChanged(f"model {record.name} ({record.id}) {message}", hint=hint, found=found)
