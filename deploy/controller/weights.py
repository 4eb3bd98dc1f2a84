"""Keeps decided weights in the serving Task: restores them if a slow ClearML client has overwritten them.

Runs in the controller after every read of the Task. Gateways follow a decision in any case. This code makes the Task,
``clearml-serving`` and ClearML's pages show the decided weights again, and decides the cases that one read of the Task
cannot tell apart (see ``gateway/decisions``). Two that run for a while write the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from deploy.controller.rollouts import record
from deploy.controller.rollouts.record import ServingTask
from deploy.controller.rollouts.runner import put_right
from deploy.tools.errors import DeployError, GatewayError

log = logging.getLogger("triton_gateway.controller")

SETTLED_S: Final = 5.0
"""Seconds for which an old copy must be seen before it counts: a decision is recorded shortly before its weights."""
_CHANGED: Final = "changed"
_ME: Final = "the controller"


class WeightsKeeper:
    """Called with the serving Task after every read, on one thread. ``clock``: seconds; ``wall``: Unix seconds."""

    def __init__(
        self,
        store: record.Store,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._store = store
        self._clock = clock
        self._wall = wall
        self._since: dict[str, float] = {}
        self._written: set[str] = set()
        """Revisions of decisions whose weights were in the Task, or may have been before the first read."""
        self._has_looked = False
        self._settled: ServingTask | None = None
        """The last Task that needed no change."""
        self._said = ""

    def __call__(self, task: ServingTask) -> bool:
        """Restore weights that an old copy has overwritten. Return True if the Task changed and must be read again."""
        if task is self._settled:
            return False
        revisions = {decision.revision for decision in record.made(task).values()}
        self._written = self._written & revisions if self._has_looked else revisions
        self._has_looked = True
        standings = record.standings(task)
        if not standings:
            return False  # nothing was decided, or the Task cannot be read
        try:
            done = [self._settle(task, *standing) for standing in standings]
        except (GatewayError, DeployError) as error:
            if error.message != self._said:
                log.warning("the decided weights cannot be restored: %s", error.message)
            self._said = error.message
            return False
        self._said = ""
        self._since = {key: since for key, since in self._since.items() if key in done}
        self._settled = None if self._since else task
        return _CHANGED in done

    def _settle(self, task: ServingTask, decision: record.Decision, verdict: str, found: str) -> str:
        """Return a key for what is being waited for, ``_CHANGED`` if something was written, or an empty string."""
        endpoint = decision.endpoint
        if verdict == "agrees":
            self._written.add(decision.revision)
            return ""
        if verdict == "changed":
            if record.is_retired(task, decision):
                return ""
            self._write(record.retired(decision, now=self._wall(), by=_ME))
            log.info("the weights of %s were changed: %s", endpoint, found or "the route was removed")
            return _CHANGED
        key = f"{decision.revision}/{found}"
        if self._clock() - self._since.setdefault(key, self._clock()) < SETTLED_S:
            return key
        if record.is_forgotten(decision, found, self._wall()):
            self._write(record.meant(decision, found, now=self._wall(), by=_ME))
            log.info(
                "the former weights of %s were set again on purpose: %s", endpoint, found or "the route was removed"
            )
            return _CHANGED
        now = self._store.task()
        again = record.decision(now, endpoint)
        if again is None or again.revision != decision.revision or record.verdict(now, endpoint) != "reverted":
            return _CHANGED  # another keeper or a person was faster
        is_undone = decision.revision in self._written
        put_right(self._store, now, endpoint, now=self._wall(), by=_ME, is_undone=is_undone)
        if not is_undone:
            log.warning(
                "the weights of %s that %s decided (%s) were missing in the serving Task; they are written now: %s",
                endpoint, decision.by, decision.why, decision.text or "no such route",
            )  # fmt: skip
            return _CHANGED
        log.warning(
            "another ClearML client overwrote the weights of %s with an old copy (%s). Restored: %s, decided by %s "
            "(%s). If the old weights were set on purpose, set them again", endpoint, found or "no such route",
            decision.text or "no such route", decision.by, decision.why,
        )  # fmt: skip
        return _CHANGED

    def _write(self, mark: record.Record) -> None:
        self._store.write({}, [mark])
