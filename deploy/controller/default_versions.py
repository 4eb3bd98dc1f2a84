"""Which version a bare name means (``gateway/default_version``): what a person chose, and what the controller records.

``chosen`` is for ``triton-gateway default`` and for promoted rollouts; a duty of the controller records the first
version of each endpoint, because the stock ``model add`` does not know default versions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from deploy.controller.wanted import Wanted
from gateway import default_version, registry, spec

log = logging.getLogger("triton_gateway.controller")

RECORDED_S: Final = 20.0
"""Seconds within which a running controller has recorded a default version: it takes one or two polls."""


def awaited(serving: spec.ServingSpec) -> list[str]:
    """Return the endpoints whose first version the controller will record as their default, and has not yet."""
    named = serving.defaults.keys() | spec.own_names(serving.endpoints, serving.canaries, serving.faults)
    return [endpoint for endpoint in first_added(serving) if endpoint not in named]


def chosen(endpoint: str, url: str, *, now: float, by: str, why: str) -> registry.Record:
    """Return the record that makes ``url`` the default version of ``endpoint`` from ``now`` (Unix seconds) on."""
    choice = default_version.Default(url, now, by, why)
    return registry.Record("default_version", *default_version.record("chosen", endpoint, choice))


def first_added(serving: spec.ServingSpec) -> dict[str, str]:
    """Return the first version of each endpoint in the serving Task, which lists them in the order of their addition.

    Versions made by auto-update rules do not count: such a rule removes its old versions, and the default with them.
    """
    added: dict[str, str] = {}
    for url, one in serving.endpoints.items():
        if not one.is_auto:
            added.setdefault(one.endpoint, url)
    return added


def recorded(task: spec.ServingTask, *, wall: Callable[[], float] = time.time) -> Wanted | None:
    """Return what records the first version of each endpoint that has no default: a duty of the controller.

    Nothing if the Task cannot be read. ``wall``: Unix seconds.
    """
    serving = spec.decode(task)
    if task.problem or serving.unreadable:
        return None
    known, records = default_version.read(spec.records_of(task, default_version.KIND)), []
    for endpoint, url in first_added(serving).items():
        if endpoint not in known:
            log.info("the default version of %s is now %s", endpoint, url)
            one = default_version.Default(url, wall())
            records.append(registry.Record("default_version", *default_version.record("first", endpoint, one)))
    return Wanted(records)
