"""Reads what the serving Task wants of this Triton, and keeps the last answers, also on disk.

``reconcile`` calls it in its own thread. What cannot be read is never taken for deleted: a known record stays valid
while the registry is away, and an unreadable entry keeps the models that serve it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from deploy.sync.errors import Verdict
from deploy.sync.settings import SyncSettings
from gateway import pools, registry, spec

log = logging.getLogger("triton_gateway.sync")


@dataclass(frozen=True, slots=True)
class Target:
    """A wanted model with everything needed to build it."""

    url: str
    recipe: str
    """It changes if the model would be written differently."""
    unload_after: float
    """Seconds without a request after which it is unloaded until the next request; 0: never."""
    endpoint: spec.EndpointSpec
    record: spec.ModelRecord


@dataclass(frozen=True, slots=True)
class Desired:
    """What the serving Task asks for, as far as it could be read."""

    revision: str = ""
    targets: Mapping[str, Target] = field(default_factory=dict)
    unresolved: Mapping[str, tuple[str, Verdict]] = field(default_factory=dict)
    """Endpoint url → (model id, why there is no model for it)."""
    elsewhere: frozenset[str] = frozenset()
    """Urls of endpoints that belong to other pools."""
    load_requests: Mapping[str, Any] = field(default_factory=dict)
    """Gateways' latest requests to load a model, by model name."""
    held_urls: frozenset[str] = frozenset()
    is_readable: bool = True


class Follower:
    """Reads the registry and keeps the last answers: the desired state. Use it from one thread at a time."""

    def __init__(self, source: registry.Registry, store: registry.SpecStore, sync_settings: SyncSettings,
                 recipe: Callable[[], str], clock: Callable[[], float],
                 learn: Callable[[spec.ServingTask], None] = lambda _task: None) -> None:  # fmt: skip
        self._learn = learn
        self._registry = source
        self._store = store
        self._settings = sync_settings
        self._recipe = recipe
        self._clock = clock
        self._marker: str | None = None
        self._task: spec.ServingTask | None = None
        self._spec = spec.ServingSpec("", "")
        self._records: Mapping[str, spec.ModelRecord] = {}
        self._records_read_at = 0.0

    def remembered(self) -> Desired | None:
        """Return the last desired state from disk, for a start without the registry."""
        stored = self._store.load()
        if stored is None:
            return None
        self._task, self._records = stored.task, stored.models
        self._spec = spec.decode(self._task)
        return self._desired()

    def poll(self) -> Desired | None:
        """Return the desired state if something may have changed, else None. Raises the registry's errors."""
        marker = self._registry.marker()
        now = self._clock()
        has_changed = marker != self._marker
        if has_changed:
            self._task = self._registry.task()
            self._spec = spec.decode(self._task)
        if self._task is None:
            return None
        if has_changed:
            self._learn(self._task)
        ids = sorted({e.model_id for e in self._spec.endpoints.values() if e.engine == "triton" and e.model_id})
        if not has_changed and (not ids or now - self._records_read_at < self._settings.records_s):
            return None
        self._records = self._registry.records(ids)
        self._records_read_at = now
        self._marker = marker
        with contextlib.suppress(OSError):
            self._store.save(registry.Saved(self._task, dict(self._records)))
        return self._desired()

    def _is_ours(self, named: Collection[str]) -> bool:
        ours = self._settings.pools
        return pools.ANY in ours or not ours.isdisjoint(named)

    def _desired(self) -> Desired:
        serving = self._spec
        targets: dict[str, Target] = {}
        unresolved: dict[str, tuple[str, Verdict]] = {}
        elsewhere: set[str] = set()
        for url, endpoint in serving.endpoints.items():
            if endpoint.engine != "triton":
                continue
            record = self._records.get(endpoint.model_id or "")
            if (record or endpoint.option("pool")) and not self._is_ours(spec.pools_of(endpoint, record)):
                elsewhere.add(url)
            elif record is None or not record.has_data:
                unresolved[url] = (endpoint.model_id or "", self._why_missing(endpoint.model_id, record))
            else:
                name = spec.triton_model_name(endpoint, record)
                targets[name] = Target(url, self._recipe(), endpoint.unload_after, endpoint, record)
        faults = [fault.subject for fault in serving.faults]
        faulty = {one.removeprefix("endpoint ").strip("/") for one in faults if one.startswith("endpoint ")}
        return Desired(
            revision=serving.revision,
            targets=targets,
            unresolved=unresolved,
            elsewhere=frozenset(elsewhere),
            load_requests=spec.records_of(self._task, "load_request") if self._task is not None else {},
            held_urls=frozenset(unresolved) | faulty,
            is_readable=not serving.unreadable,
        )

    def _why_missing(self, model_id: str | None, record: spec.ModelRecord | None) -> Verdict:
        """Return why a model cannot be fetched, as far as its record tells."""
        if not model_id:
            why = "the endpoint names no model: add it with --model-id or --name/--project"
        elif record is not None:
            why = (f"model {model_id} ({record.name}) has no data: its upload did not finish; upload it again: "
                   "clearml-serving model upload …")  # fmt: skip
        elif self._marker is None:
            return Verdict(f"the record of model {model_id} has not been read yet", is_final=False)
        else:
            why = f"there is no model {model_id}: it was deleted, or never existed"
        return Verdict(why, is_final=True)
