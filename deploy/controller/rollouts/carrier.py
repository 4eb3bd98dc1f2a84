"""Carries out one rollout: reads its records and the counters, lets ``steps`` decide, and says what to write.

A decision is recorded, with its reason, before its weights are written. So a controller may be killed at any moment:
the next one finds in the records what is wanted, and compares it with the serving Task. It counts only what it has seen
itself: two controllers that lead at once count no request twice, and each takes over what the other has written.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deploy.controller import default_versions
from deploy.controller.counters import Reading, grown
from deploy.controller.gateways import Gateways
from deploy.controller.rollouts import record, steps
from deploy.controller.rollouts.counts import Counts, between
from deploy.controller.rollouts.steps import Rollout
from deploy.controller.wanted import Wanted
from gateway import default_version, spec
from gateway.registry import Record
from gateway.spec import ServingTask

log = logging.getLogger("triton_gateway.controller")

GUARDED_S: Final = 30.0
"""Seconds after a look for which a rollout counts as guarded; the state is written three times within them."""
SETTLED_S: Final = 5.0
"""Seconds for which weights of somebody else stay before they are put right: their writer may still be writing."""
_REPEATED_S: Final = 60.0
"""Seconds after a decision in which its weights are written again, however often."""
NO_GATEWAYS: Final = "the controller knows no gateways (TRITON_GATEWAY_URL), so nobody could see if a version is worse"


@dataclass(frozen=True, slots=True)
class _Known:
    """A rollout, ahead of what is ``stored`` by what was counted since then, up to ``reading``."""

    rollout: Rollout | None = None
    stored: Mapping[str, Any] | None = None
    stored_at: float = 0.0
    reading: Reading = field(default_factory=Reading)


class Carrier:
    """Carries out the rollouts of one endpoint, one after the other. ``me`` names this controller; ``wall``: Unix
    seconds. One thread.
    """

    def __init__(self, gateways: Gateways | None, endpoint: str, me: str, wall: Callable[[], float]) -> None:
        self._gateways = gateways
        self._endpoint = endpoint
        self._me = me
        self._wall = wall
        self._known = _Known()
        self._next: _Known | None = None
        """What the last look wanted to be written: the next look finds whether it was."""
        self._found: Mapping[str, float] = {}
        self._since = 0.0
        """Since when the Task has the weights ``_found``; empty: no route."""

    def look(self, task: ServingTask, serving: spec.ServingSpec) -> Wanted | None:
        """Look once, and return what to write. Raises ``DeployError``: nothing was decided then."""
        now, stored = self._wall(), record.raw(task, self._endpoint)
        if self._next is not None and self._next.stored == stored:
            self._known = self._next
        elif self._known.stored != stored:  # another controller has written
            self._known = _Known(record.read(task, self._endpoint), stored)
        self._next = None
        route = serving.canaries.get(self._endpoint)
        found = {route.prefix: 1.0} if route and route.prefix else record.weights(serving, self._endpoint) or {}
        if found != self._found or not self._since:
            self._found, self._since = found, now
        after, reading, is_lost = self._requested(task, self._known.rollout, now), self._known.reading, False
        if after is None:
            return None
        wanted = record.wanted_weights(serving, after)
        if after is self._known.rollout and wanted is not None:
            if not record.are_equal(wanted, found):
                after, is_lost = self._changed(serving, after, wanted, now)
            elif not after.is_over:
                after, reading = self._counted(serving, after, now)
        return self._wanted(task, serving, after, reading, now, is_lost)

    def _requested(self, task: ServingTask, rollout: Rollout | None, now: float) -> Rollout | None:
        """Return the rollout after what a person asks for; the same one if there is nothing new."""
        wanted = record.request(task, self._endpoint)
        if wanted is None or not record.is_waiting(wanted, rollout):
            return rollout
        if wanted.command == "run" and wanted.rollout is not None and (rollout is None or rollout.is_over):
            if self._gateways is None:
                return steps.refused(wanted.rollout, wanted.id, now, NO_GATEWAYS)
            return steps.begun(wanted.rollout, wanted.id, now, wanted.who, self._found)
        if rollout is None:
            return None  # there is nothing to promote or abort
        return steps.after_command(rollout, wanted.command, wanted.id, now, wanted.who)

    def _changed(
        self, serving: spec.ServingSpec, rollout: Rollout, wanted: Mapping[str, float], now: float
    ) -> tuple[Rollout, bool]:
        """Return the rollout when the Task has not the weights ``wanted``, and whether they are to be written again.

        They are if weights came back that it has replaced: for a minute after each decision, later once. If these are
        older than the decision, its own have not been written yet.
        """
        is_old = any(record.are_equal(old, self._found) for old in rollout.replaced(now))
        shown = ", ".join(f"{url} {share:g}" for url, share in self._found.items()) or "none"
        if is_old and all(url in serving.endpoints for url, share in wanted.items() if share):
            last = rollout.history[-1]
            if now - self._since < SETTLED_S:
                return rollout, False
            if self._since < last.at or now - last.at < _REPEATED_S:
                return rollout, True
            if last.what != steps.PUT_RIGHT:
                why = f"another ClearML client wrote the former weights back: {shown}"
                return steps.put_right(rollout, now, why), True
        if rollout.is_over:
            return rollout, False
        return steps.taken_over(rollout, now, f"the weights of {self._endpoint} were changed to {shown}"), False

    def _counted(self, serving: spec.ServingSpec, rollout: Rollout, now: float) -> tuple[Rollout, Reading]:
        """Return the rollout after what gateways have counted, and the counters that were read for it."""
        urls, endpoints, before = (rollout.canary, rollout.stable), serving.endpoints, self._known.reading
        gone = [url for url in urls if url not in endpoints]
        if gone:
            return steps.taken_over(rollout, now, f"{', '.join(gone)} was removed from the serving Task"), before
        if self._gateways is None:
            return steps.after_look(rollout, Counts(), Counts(), now, missing=[f"any gateway: {NO_GATEWAYS}"]), before
        canary, stable = ((endpoints[url].endpoint, endpoints[url].version) for url in urls)
        reading = self._gateways.counters().over(before)
        counted = grown(before, reading)
        return steps.after_look(
            rollout, between(counted, canary, "canary", rollout.rules.names), between(counted, stable, "stable"), now,
            missing=reading.missing,
        ), reading  # fmt: skip

    def _wanted(
        self, task: ServingTask, serving: spec.ServingSpec, after: Rollout, reading: Reading, now: float, is_lost: bool
    ) -> Wanted | None:
        """Return the rollout if it is due to be written, and what follows from it. ``is_lost``: what was written is."""
        before = self._known.rollout
        follows = is_lost or _wants_anew(before, after)
        records = record.mirroring(serving, after, by=record.CONTROLLER) if follows or not after.is_over else []
        records += _chosen_default(task, serving, after) if follows else []
        is_guarded = self._gateways is not None and not after.is_over
        is_due = is_guarded and now - self._known.stored_at >= GUARDED_S / 3
        if not (is_due or records or follows) and before is not None and _decided(before) == _decided(after):
            self._known = replace(self._known, rollout=after, reading=reading)
            return None
        for one in after.history:
            if before is None or one not in before.history:
                log.info("rollout of %s: %g %%, %s: %s", self._endpoint, one.weight, one.what, one.why)
        guard, until = (self._me, now + GUARDED_S) if is_guarded else ("", 0.0)
        after = replace(after, guard=guard, guarded_until=until)
        stored = record.stored(after)
        self._next = _Known(after, json.loads(json.dumps(stored.value)), now, reading)
        wanted = record.wanted_weights(serving, after) if follows else None
        is_there = wanted is None or record.are_equal(wanted, self._found)
        sections = {} if is_there else record.with_weights(task, self._endpoint, wanted or {})
        return Wanted([stored, *records], sections)


def _wants_anew(old: Rollout | None, new: Rollout) -> bool:
    """Return whether other weights are wanted than before, or none any more."""
    return old is None or (old.canary, old.stable, old.weight, old.phase) != (
        new.canary, new.stable, new.weight, new.phase
    )  # fmt: skip


def _decided(one: Rollout) -> tuple[object, ...]:
    """Return what must not be lost; evidence may wait until the next write."""
    return one.phase, one.handled, one.history


def _chosen_default(task: ServingTask, serving: spec.ServingSpec, rollout: Rollout) -> list[Record]:
    """Return the record that makes a promoted version the default, unless somebody has chosen one since."""
    at = next((round(one.at, 1) for one in reversed(rollout.history) if one.what == "promote"), 0.0)
    if rollout.phase != "promoted" or not record.is_of_own_name(serving, rollout):
        return []
    known = default_version.read(spec.records_of(task, default_version.KIND)).get(rollout.endpoint)
    if known is not None and known.by and known.at >= at:
        return []
    why = f"the rollout to {rollout.canary} was promoted"
    return [default_versions.chosen(rollout.endpoint, rollout.canary, now=at, by=record.CONTROLLER, why=why)]
