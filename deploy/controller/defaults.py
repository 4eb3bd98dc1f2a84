"""Records the first version of each endpoint as its default, and forgets that of an endpoint without versions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from deploy.controller import default_versions
from deploy.controller.wanted import Wanted
from gateway.registry import Kind
from gateway.spec import ServingTask

log = logging.getLogger("triton_gateway.controller")

SETTLED_S: Final = 10.0
"""Seconds for which an endpoint must have no version before its default is forgotten: tools remove and add in two
steps.
"""


class DefaultsKeeper:
    """Called with the serving Task after every look, on one thread. ``clock``: seconds; ``wall``: Unix seconds."""

    def __init__(self, *, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._clock = clock
        self._wall = wall
        self._gone: dict[str, float] = {}
        """Endpoint with a default but without any version → since when (``clock``)."""
        self._settled: ServingTask | None = None
        """The last Task that needed no change."""

    def __call__(self, task: ServingTask) -> Wanted | None:
        """Return the missing defaults, and those that are over."""
        if task is self._settled:
            return None
        known, first, there = default_versions.found(task)
        if there is None:
            return None  # the Task cannot be read completely
        missing = {endpoint: url for endpoint, url in first.items() if endpoint not in known}
        now, before = self._clock(), self._gone
        self._gone = {endpoint: before.get(endpoint, now) for endpoint in known if endpoint not in there}
        over = [endpoint for endpoint, since in self._gone.items() if now - since >= SETTLED_S]
        self._settled = None if self._gone else task
        for endpoint, url in missing.items():
            log.info("the default version of %s is now %s", endpoint, url)
        for endpoint in over:
            log.info("%s has no default version any more: all of its versions were removed", endpoint)
        records = [default_versions.first(endpoint, url, now=self._wall()) for endpoint, url in missing.items()]
        gone: dict[Kind, list[str]] = {"default_version": default_versions.keys(over)}
        return Wanted(records, gone=gone, rests_on=default_versions.found)
