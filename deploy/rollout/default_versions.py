"""Records the default version of each endpoint: automatically the first one added, or the one that somebody chose.

``DefaultsKeeper`` runs inside model sync after every read of the Task, because the stock ``model add`` does not know
default versions. Several of them write the same records (``gateway/default_version``). ``chosen`` is for
``triton-gateway default`` and for promoted rollouts. This code must never make model sync wait or fail.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from deploy.tools.errors import GatewayError
from gateway import default_version, registry, spec

log = logging.getLogger("triton_gateway.sync")

SETTLED_S: Final = 10.0
"""Seconds for which an endpoint must have no version before its default is forgotten: tools remove and add in two
steps.
"""
_UNREADABLE: Final = "section "
"""How the subject of a fault begins if a whole section of the Task cannot be read."""
RECORDED_S: Final = 20.0
"""Seconds within which a running model sync has recorded a default version: it takes one or two polls."""


def awaited(serving: spec.ServingSpec) -> list[str]:
    """Return the endpoints whose first version model sync will record as their default, and has not yet."""
    named = serving.defaults.keys() | spec.own_names(serving.endpoints, serving.canaries, serving.faults)
    return [endpoint for endpoint in first_added(serving) if endpoint not in named]


def chosen(task: Mapping[str, Any], endpoint: str, url: str, *, now: float, by: str, why: str) -> registry.Record:
    """Return the record that makes ``url`` the default version of ``endpoint`` from ``now`` (Unix seconds) on."""
    term = _of(_known(task), endpoint).term
    return _record(default_version.chosen(endpoint, url, term, now, by, why))


class DefaultsKeeper:
    """Called with the serving Task after every read, on one thread. ``clock``: seconds; ``wall``: Unix seconds."""

    def __init__(
        self, store: registry.RegistryWriter, *, clock: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._store = store
        self._clock = clock
        self._wall = wall
        self._gone: dict[str, float] = {}
        """Endpoint with a default but without any version → since when (``clock``)."""
        self._settled: Mapping[str, Any] | None = None
        """The last Task that needed no change."""

    def __call__(self, task: Mapping[str, Any]) -> bool:
        """Record missing defaults. Return True if anything was recorded; the Task must then be read again."""
        if task is self._settled:
            return False
        try:
            has_changed = self._step(task)
        except GatewayError as error:
            log.warning("the default versions of endpoints cannot be recorded: %s", error.message)
            has_changed = False
            self._gone.clear()
        self._settled = None if self._gone else task
        return has_changed

    def _step(self, task: Mapping[str, Any]) -> bool:
        serving = spec.decode(task)
        if task.get(spec.RECORDS_PROBLEM) or any(fault.subject.startswith(_UNREADABLE) for fault in serving.faults):
            return False  # the Task cannot be read completely
        known = _known(task)
        records = [
            _record(default_version.first(endpoint, url, _of(known, endpoint).term, self._wall()))
            for endpoint, url in first_added(serving).items() if not _of(known, endpoint).url
        ]  # fmt: skip
        there = {one.endpoint for one in serving.endpoints.values()} | serving.monitoring.keys()
        broken = {fault.subject.removeprefix("endpoint ") for fault in serving.faults}
        now, before = self._clock(), self._gone
        self._gone = {
            endpoint: before.get(endpoint, now) for endpoint, one in known.items()
            if one.url and endpoint not in there and one.url not in broken
        }  # fmt: skip
        over = [endpoint for endpoint, since in self._gone.items() if now - since >= SETTLED_S]
        if over:
            again = self._store.task()
            latest = {one.endpoint for one in spec.decode(again).endpoints.values()}
            over = [endpoint for endpoint in over if endpoint not in latest and _known(again) == known]
            why = "all of its versions were removed"
            records += [
                _record(default_version.chosen(name, "", known[name].term + 1, self._wall(), "model sync", why))
                for name in over
            ]
            self._gone = {name: since for name, since in self._gone.items() if name not in over}
        if not records:
            return False
        self._store.write({}, records)
        for record in records:
            url, endpoint = record.value["url"], record.value["endpoint"]
            if url:
                log.info("the default version of %s is now %s", endpoint, url)
            else:
                log.info("%s has no default version any more: all of its versions were removed", endpoint)
        return True


def first_added(serving: spec.ServingSpec) -> dict[str, str]:
    """Return the first version of each endpoint in the serving Task, which lists them in the order of their addition.

    Versions made by auto-update rules do not count: such a rule removes its old versions, and the default with them.
    """
    found: dict[str, str] = {}
    for url, one in serving.endpoints.items():
        if not one.is_auto:
            found.setdefault(one.endpoint, url)
    return found


def _known(task: Mapping[str, Any]) -> dict[str, default_version.Default]:
    return default_version.read(spec.records_of(task, default_version.KIND))


def _of(known: Mapping[str, default_version.Default], endpoint: str) -> default_version.Default:
    return known.get(endpoint) or default_version.Default()


def _record(stored: tuple[str, dict[str, Any]]) -> registry.Record:
    return registry.Record("default_version", *stored)
