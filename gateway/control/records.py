"""Model records by id, as last read from the registry.

The event loop reads them while threads change them, so each change replaces the whole mapping. A record that vanishes
from the registry is kept, because its model may still be served.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from gateway.registry.port import Registry
from gateway.spec import ModelRecord


class ModelRecords:
    """Model records by id. Safe to call from any thread; methods that block say so."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._records: Mapping[str, ModelRecord] = MappingProxyType({})

    def _change(self, change: Callable[[Mapping[str, ModelRecord]], dict[str, ModelRecord]]) -> None:
        # Never change in place: the event loop reads it. The lock keeps two changes from losing one of them.
        with self._lock:
            self._records = MappingProxyType(change(self._records))

    def refresh(self, model_ids: Collection[str]) -> None:
        """Read these records again, as a model's files can be replaced. Blocks. Raises ``RegistryUnavailable``."""
        read = self._registry.records(model_ids)
        self._change(lambda known: {**known, **read})

    def known(self) -> Mapping[str, ModelRecord]:
        """Return every known record by id. The mapping never changes."""
        return self._records

    def learn(self, stored: Mapping[str, ModelRecord]) -> None:
        """Add stored records, for a start without the registry; known records stay."""
        self._change(lambda known: {**stored, **known})
