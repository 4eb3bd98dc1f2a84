"""The registry port: what serving needs of ClearML, in a handful of blocking calls.

Implemented by ``registry/clearml.py`` (real) and ``gateway.testing.FakeRegistry``; called from worker threads of the
reconcile loop and of model sync, never from the event loop. A contract test runs one suite over both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gateway.registry.ledger import Ledger


class Registry(Protocol):
    """Reads the serving Task, models and files. Safe to call from several threads at once.

    Every method raises ``RegistryUnavailable`` when nothing answers (a retry can help) and ``RegistryRefused`` when
    the answer is no (wrong credentials, unknown id), both within a bounded time.
    """

    @property
    def ledger(self) -> Ledger:
        """Our records beside the serving Task."""
        ...

    def marker(self) -> str:
        """Return a cheap value that changes whenever the serving Task or our records of it change."""
        ...

    def task(self) -> Mapping[str, Any]:
        """Return the serving Task's fields as ``tasks.get_by_id`` answers them (input of ``spec.decode``).

        Our records are added as the field ``spec.RECORDS``. They are read after the Task: who changes both writes the
        record first, so whoever sees the change sees its record.
        """
        ...

    def model(self, model_id: str) -> Mapping[str, Any]:
        """Return one model's fields as ``models.get_by_id`` answers them (input of ``spec.decode_model``)."""
        ...

    def records(self, model_ids: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
        """Return those of these models that exist by id, in few calls: at least what ``spec.MODEL_FIELDS`` names."""
        ...

    def models_at(self, uris: Collection[str]) -> Sequence[Mapping[str, Any]]:
        """Return ``id``, ``name`` and ``uri`` of every model, archived or not, whose address is one of these."""
        ...

    def download(self, uri: str, folder: Path) -> Path:
        """Store the file behind ``uri`` in ``folder``, keeping its base name, and return its path.

        Always fetches the current bytes (no cache by address); the caller verifies hashes. ``uri`` may be anything
        the ClearML storage layer reads: http(s), file, s3, gs, azure.
        """
        ...
