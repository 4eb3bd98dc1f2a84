"""A duty of the controller: records the first version of each endpoint as its default."""

from __future__ import annotations

import logging
from collections.abc import Callable

from deploy.controller import default_versions
from deploy.controller.wanted import Wanted
from gateway.spec import ServingTask

log = logging.getLogger("triton_gateway.controller")


class DefaultsKeeper:
    """Called with the serving Task after every look, on one thread. ``wall``: Unix seconds."""

    def __init__(self, *, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._seen: ServingTask | None = None

    def __call__(self, task: ServingTask) -> Wanted | None:
        """Return the missing defaults."""
        if task is self._seen:
            return None
        self._seen, missing = task, default_versions.missing(task)
        for endpoint, url in missing.items():
            log.info("the default version of %s is now %s", endpoint, url)
        records = [default_versions.first(endpoint, url, now=self._wall()) for endpoint, url in missing.items()]
        return Wanted(records, rests_on=default_versions.missing)
