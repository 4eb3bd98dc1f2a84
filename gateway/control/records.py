"""Model records by id, as last read from the registry.

The event loop reads them while threads change them, so each change replaces the whole mapping. A record that vanishes
from the registry is kept, because its model may still be served.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

from gateway.errors import RegistryRefused, SpecFault
from gateway.pace import Pace
from gateway.registry.contents import shared
from gateway.registry.port import Registry
from gateway.spec import ModelRecord, SeenContent, decode_model

_log = logging.getLogger("triton_gateway.control")

Raw = Mapping[str, Any]
"""A record's fields as the registry returns them."""


class ModelRecords:
    """Model records by id. Safe to call from any thread; methods that block say so."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._records: Mapping[str, Raw] = MappingProxyType({})
        self._namesakes: Mapping[str, Sequence[str]] = {}
        self._seeing: dict[str, Future[None]] = {}
        """Fetches of models only to see their bytes, by model id."""

    def _change(self, change: Callable[[Mapping[str, Raw]], dict[str, Raw]]) -> None:
        # Never change in place: the event loop reads it. The lock keeps two changes from losing one of them.
        with self._lock:
            self._records = MappingProxyType(change(self._records))

    def at_hand(self, model_id: str) -> ModelRecord | None:
        """Return a known record that has data; None if the registry must be asked."""
        raw = self._records.get(model_id)
        record = decode_model(raw) if raw is not None else None
        return record if record is not None and record.has_data else None

    def get(self, model_id: str) -> ModelRecord:
        """Return a record; ask the registry if it is unknown or has no data yet. Blocks. Raises ``SpecFault``."""
        record = self.at_hand(model_id)
        if record is not None:
            return record
        try:
            raw = self._registry.model(model_id)
        except RegistryRefused as error:
            raise SpecFault(
                f"model {model_id} is not in the registry ({error.message})",
                hint="add the endpoint again with an existing --model-id",
            ) from error
        self._change(lambda known: {**known, model_id: raw})
        return decode_model(raw)

    def refresh(
        self, model_ids: Collection[str], seen: Mapping[str, SeenContent], see: Callable[[ModelRecord], Future[None]]
    ) -> None:
        """Read these records again, as a model's files can be replaced, and find models that share an address. Blocks.

        ``seen`` are the known contents. ``see`` begins to fetch a model so that its content becomes known; until then
        it is open whether a model at the same address was overwritten. Raises ``RegistryUnavailable``.
        """
        read = self._registry.records(model_ids)
        self._change(lambda known: {**known, **read})
        records = self._records
        known = [decode_model(records[i]) for i in model_ids if i in records]
        try:
            found = shared(self._registry, known, seen)
        except RegistryRefused as error:
            _log.info("models that share an address cannot be looked up: %s", error.message)
            return
        for group in found:
            if group.unseen is not None and group.unseen.id not in self._seeing:
                self._seeing[group.unseen.id] = see(group.unseen)
        self._namesakes = {
            group.uri: group.names for group in found
            if group.unseen is None or self._seeing[group.unseen.id].done()
        }  # fmt: skip

    def namesakes(self) -> Mapping[str, Sequence[str]]:
        """Return, for each address in use at which a model was or may have been overwritten, the name and id of each
        model.
        """
        return self._namesakes

    def raw(self, model_id: str | None) -> Raw | None:
        """Return a record's fields as last read; None if it was never read."""
        return self._records.get(model_id or "")

    def known(self) -> dict[str, ModelRecord]:
        """Return every known record, decoded. Slow if there are many."""
        pause, found = Pace(), {}
        for model_id, raw in self._records.items():
            found[model_id] = decode_model(raw)
            pause()
        return found

    def learn(self, stored: Mapping[str, Raw]) -> None:
        """Add stored records, for a start without the registry; known records stay."""
        self._change(lambda known: {**stored, **known})

    def snapshot(self) -> Mapping[str, Raw]:
        """Return all known records, for the last-good store. The mapping never changes."""
        return self._records
