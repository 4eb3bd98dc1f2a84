"""Keeps decided weights in the serving Task: puts them right where a slow ClearML client wrote an old copy back.

Runs inside model sync, after every look at the Task. Gateways keep a decision in force by themselves; this makes the
Task, ``clearml-serving`` and ClearML's pages say the same again, and settles what cannot be told apart by looking (see
``gateway/decisions``). Any number of them may run: all write the same. Must never make model sync wait or fail.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from deploy.rollout import record
from deploy.rollout.runner import put_right
from deploy.tools.errors import DeployError, GatewayError

log = logging.getLogger("triton_gateway.sync")

SETTLED_S: Final = 5.0
"""So long an old copy must be seen: a decision is recorded a moment before its weights are written."""
_CHANGED: Final = "changed"


class WeightsKeeper:
    """Called with the serving Task after every look. ``clock`` counts seconds, ``wall`` Unix seconds. One thread."""

    def __init__(
        self,
        store: record.Store,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        me: str = "model sync",
    ) -> None:
        self._store = store
        self._clock = clock
        self._wall = wall
        self._me = me
        self._since: dict[str, float] = {}
        self._written: set[str] = set()
        """Revisions that the Task had, or may have had before the first look."""
        self._has_looked = False
        self._settled: Mapping[str, Any] | None = None
        """The Task as it was read when there was nothing to do."""
        self._said = ""

    def __call__(self, task: Mapping[str, Any]) -> bool:
        """Put right what an old copy has undone; True when the Task was changed and has to be read again."""
        if task is self._settled:
            return False
        revisions = {decision.revision for decision in record.made(task).values()}
        self._written = self._written & revisions if self._has_looked else revisions
        self._has_looked = True
        standings = record.standings(task)
        if not standings:
            return False  # nothing was decided, or nobody knows what the Task says
        try:
            done = [self._settle(task, *standing) for standing in standings]
        except (GatewayError, DeployError) as error:
            if error.message != self._said:
                log.warning("the weights that were decided cannot be put right: %s", error.message)
            self._said = error.message
            return False
        self._said = ""
        self._since = {key: since for key, since in self._since.items() if key in done}
        self._settled = None if self._since else task
        return _CHANGED in done

    def _settle(self, task: Mapping[str, Any], decision: record.Decision, verdict: str, found: str) -> str:
        """Return a name for what is being waited for, ``_CHANGED``, or nothing."""
        endpoint = decision.endpoint
        if verdict == "agrees":
            self._written.add(decision.revision)
            return ""
        if verdict == "changed":
            if record.is_retired(task, decision):
                return ""
            self._write(record.retired(decision, now=self._wall(), by=self._me))
            log.info("%s has other weights now: %s", endpoint, found or "no such route")
            return _CHANGED
        key = f"{decision.revision}/{found}"
        if self._clock() - self._since.setdefault(key, self._clock()) < SETTLED_S:
            return key
        if record.is_forgotten(decision, found, self._wall()):
            self._write(record.meant(decision, found, now=self._wall(), by=self._me))
            log.info("%s has the weights of before again, which are meant: %s", endpoint, found or "no such route")
            return _CHANGED
        now = self._store.task()
        again = record.decision(now, endpoint)
        if again is None or again.revision != decision.revision or record.verdict(now, endpoint) != "reverted":
            return _CHANGED  # somebody was faster
        is_undone = decision.revision in self._written
        put_right(self._store, now, endpoint, now=self._wall(), by=self._me, is_undone=is_undone)
        if not is_undone:
            log.warning(
                "the weights of %s that %s decided (%s) were not written to the serving Task: done now, %s",
                endpoint, decision.by, decision.why, decision.text,
            )  # fmt: skip
            return _CHANGED
        log.warning(
            "another ClearML client wrote an old copy of %s's weights back (%s); put right: %s, decided by %s (%s). "
            "If they were meant, set them again", endpoint, found or "no such route", decision.text, decision.by,
            decision.why,
        )  # fmt: skip
        return _CHANGED

    def _write(self, mark: record.Record) -> None:
        self._store.write({}, [mark])
