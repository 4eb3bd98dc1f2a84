"""Records the first version of each endpoint as its default, and forgets that of an endpoint without versions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from deploy.controller import default_versions
from deploy.controller.registry import ServingTask, Store
from deploy.tools.errors import GatewayError

log = logging.getLogger("triton_gateway.controller")

SETTLED_S: Final = 10.0
"""Seconds for which an endpoint must have no version before its default is forgotten: tools remove and add in two
steps.
"""


class DefaultsKeeper:
    """Called with the serving Task after every look, on one thread. ``clock``: seconds; ``wall``: Unix seconds."""

    def __init__(self, store: Store, *, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._wall = wall
        self._gone: dict[str, float] = {}
        """Endpoint with a default but without any version → since when (``clock``)."""
        self._settled: ServingTask | None = None
        """The last Task that needed no change."""

    def __call__(self, task: ServingTask) -> bool:
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

    def _step(self, task: ServingTask) -> bool:
        known, first, there = default_versions.found(task)
        if there is None:
            return False  # the Task cannot be read completely
        missing = {endpoint: url for endpoint, url in first.items() if endpoint not in known}
        now, before = self._clock(), self._gone
        self._gone = {endpoint: before.get(endpoint, now) for endpoint in known if endpoint not in there}
        over = [endpoint for endpoint, since in self._gone.items() if now - since >= SETTLED_S]
        if not missing and not over:
            return False
        known, first, there = default_versions.found(self._store.task())  # somebody may have written since
        if there is None:
            return False
        missing = {endpoint: url for endpoint, url in first.items() if endpoint not in known}
        over = [endpoint for endpoint in over if endpoint not in there]
        now = self._wall()
        self._store.write({}, [default_versions.first(endpoint, url, now=now) for endpoint, url in missing.items()])
        self._store.ledger.remove("default_version", default_versions.keys(over))
        for endpoint, url in missing.items():
            log.info("the default version of %s is now %s", endpoint, url)
        for endpoint in over:
            self._gone.pop(endpoint)
            log.info("%s has no default version any more: all of its versions were removed", endpoint)
        return bool(missing or over)
