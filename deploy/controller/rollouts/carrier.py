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
from deploy.controller.rollouts.counts import between
from deploy.controller.rollouts.steps import Observation, Rollout
from deploy.controller.wanted import Wanted
from gateway import default_version, spec
from gateway.registry import Record
from gateway.spec import ServingTask

log = logging.getLogger("triton_gateway.controller")

GUARDED_S: Final = 30.0
"""Seconds after a look for which a rollout counts as guarded; the state is written three times within them."""
SETTLED_S: Final = 5.0
"""Seconds for which weights of somebody else stay before they are put right."""
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
        self._found = ""
        self._since = 0.0
        """Since when the Task has the weights ``_found``."""

    def look(self, task: ServingTask, serving: spec.ServingSpec) -> Wanted | None:
        """Look once, and return what to write. Raises ``DeployError``: nothing was decided then."""
        now, stored = self._wall(), record.raw(task, self._endpoint)
        if self._next is not None and self._next.stored == stored:
            self._known = self._next
        elif self._known.stored != stored:  # another controller has written
            self._known = _Known(record.read(task, self._endpoint), stored)
        self._next = None
        found = spec.described_weights(serving.canaries.get(self._endpoint))
        if found != self._found or not self._since:
            self._found, self._since = found, now
        before, reading = self._known.rollout, self._known.reading
        after = self._requested(task, before, now)
        if after is None:
            return None
        if after is before:
            after, reading = self._moved(serving, after, now)
        return self._wanted(task, serving, after, reading, now)

    def _requested(self, task: ServingTask, rollout: Rollout | None, now: float) -> Rollout | None:
        """Return the rollout after what a person asks for; the same one if there is nothing new."""
        wanted = record.request(task, self._endpoint)
        if wanted is None or not record.is_waiting(wanted, rollout):
            return rollout
        if wanted.command == "run" and wanted.rollout is not None and (rollout is None or rollout.is_over):
            if self._gateways is None:
                return steps.refused(wanted.rollout, wanted.id, now, NO_GATEWAYS)
            begun = steps.begun(wanted.rollout, wanted.id, now, wanted.who)
            return begun if rollout is None else replace(begun, replaced=rollout.replaced)
        if rollout is None:
            return None  # there is nothing to promote or abort
        return steps.after_command(rollout, wanted.command, wanted.id, now, wanted.who)

    def _moved(self, serving: spec.ServingSpec, rollout: Rollout, now: float) -> tuple[Rollout, Reading]:
        """Return the rollout after one look, and the counters that were read for it."""
        found, wanted = self._found, record.wanted_weights(serving, rollout)
        if wanted is None:
            return rollout, self._known.reading
        if record.are_equal(wanted, record.weights(serving, self._endpoint)):
            rollout = rollout if rollout.is_written else rollout.written()
        elif not rollout.is_written and found in rollout.replaced:
            return rollout, self._known.reading  # it is written again
        elif rollout.is_old_copy(found, now) and all(
            url in serving.endpoints for url, share in wanted.items() if share
        ):
            if now - self._since < SETTLED_S:
                return rollout, self._known.reading  # whoever wrote it may still be writing
            why = f"another ClearML client wrote the former weights back: {found or 'no such route'}"
            return replace(steps.put_right(rollout, now, why), is_written=False, restored=found), self._known.reading
        else:  # somebody's will, and what was replaced before is no old copy any more
            rollout = replace(rollout, replaced={}, is_written=True, restored=None)
            if not rollout.is_over:
                foreign = Observation(foreign=f"the weights of {self._endpoint} were changed to {found or 'none'}")
                return steps.after_look(rollout, foreign, now), self._known.reading
        if rollout.is_over:
            return rollout, self._known.reading
        seen, reading = self._seen(serving, rollout)
        return steps.after_look(rollout, seen, now), reading

    def _seen(self, serving: spec.ServingSpec, rollout: Rollout) -> tuple[Observation, Reading]:
        urls, endpoints = (rollout.canary, rollout.stable), serving.endpoints
        gone = [url for url in urls if url not in endpoints]
        if gone:
            return Observation(foreign=f"{', '.join(gone)} was removed from the serving Task"), self._known.reading
        if self._gateways is None:
            return Observation(missing=(f"any gateway: {NO_GATEWAYS}",)), self._known.reading
        canary, stable = ((endpoints[url].endpoint, endpoints[url].version) for url in urls)
        reading = self._gateways.counters().over(self._known.reading)
        counted = grown(self._known.reading, reading)
        statuses, wanted = self._gateways.statuses(), record.wanted_weights(serving, rollout) or {}
        lagging = tuple(
            address for address, status in statuses.items()
            if status is not None and not record.are_equal(wanted, (status.get("canaries") or {}).get(rollout.endpoint))
        )  # fmt: skip
        missing = [*reading.missing, *(address for address, status in statuses.items() if status is None)]
        return Observation(
            between(counted, canary, "canary", rollout.rules.names), between(counted, stable, "stable"),
            tuple(dict.fromkeys(missing)), lagging,
        ), reading  # fmt: skip

    def _wanted(
        self, task: ServingTask, serving: spec.ServingSpec, after: Rollout, reading: Reading, now: float
    ) -> Wanted | None:
        """Return the rollout if it is due to be written, and what follows from it."""
        before = self._known.rollout
        is_new = _wants_anew(before, after)
        wanted = record.wanted_weights(serving, after)
        is_there = wanted is None or record.are_equal(wanted, record.weights(serving, self._endpoint))
        if is_new and wanted is not None and not is_there:
            shares = spec.CanarySpec("", tuple(wanted.values()), tuple(wanted))
            after = after.replacing(self._found, spec.described_weights(shares), now)
        follows = is_new or not after.is_written
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
        sections = {} if is_there or after.is_written else record.with_weights(task, self._endpoint, wanted or {})
        return Wanted([stored, *records], sections)


def _wants_anew(old: Rollout | None, new: Rollout) -> bool:
    """Return whether other weights are wanted than before, or none any more."""
    return old is None or (old.canary, old.stable, old.weight, old.phase) != (
        new.canary, new.stable, new.weight, new.phase
    )  # fmt: skip


def _decided(one: Rollout) -> tuple[object, ...]:
    """Return what must not be lost; evidence may wait until the next write."""
    return one.phase, one.handled, one.history, one.replaced, one.is_written, one.restored


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
