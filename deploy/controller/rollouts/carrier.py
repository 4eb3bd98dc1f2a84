"""Carries out one rollout: reads its records and the counters, lets ``steps`` decide, and writes what was decided.

A decision is recorded, with its reason, before its weights are written. So a controller may be killed at any moment:
the next one finds in the records what is wanted, and compares it with the serving Task. It counts only what it has seen
itself: two controllers that lead at once count no request twice, and each takes over what the other has written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from deploy.controller import default_versions
from deploy.controller.counters import Reading, grown
from deploy.controller.gateways import Gateways
from deploy.controller.rollouts import record, steps
from deploy.controller.rollouts.counts import Version, between, differences
from deploy.controller.rollouts.steps import Decision, Observation, Rollout
from gateway import default_version, spec
from gateway.registry import Record, RegistryWriter
from gateway.spec import ServingTask

GUARDED_S: Final = 30.0
"""Seconds after a look for which a rollout counts as guarded; the state is written three times within them."""
SETTLED_S: Final = 5.0
"""Seconds for which weights of somebody else stay before they are put right."""
NO_GATEWAYS: Final = "the controller knows no gateways (TRITON_GATEWAY_URL), so nobody could see if a version is worse"


class Carrier:
    """Carries out the rollouts of one endpoint, one after the other. ``me`` names this controller; ``wall``: Unix
    seconds. One thread.
    """

    def __init__(
        self, store: RegistryWriter, gateways: Gateways | None, endpoint: str, me: str, *,
        wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._gateways = gateways
        self._endpoint = endpoint
        self._me = me
        self._wall = wall
        self._rollout: Rollout | None = None
        """Ahead of ``_stored`` by what was compared since it was written."""
        self._stored: Mapping[str, Any] | None = None
        self._before = Reading()
        self._saved_at = 0.0
        self._found = ""
        self._since = 0.0
        """Since when the Task has the weights ``_found``."""

    def look(self, task: ServingTask, serving: spec.ServingSpec) -> list[Decision]:
        """Look once, and return what was decided. Raises ``DeployError``, and the registry's errors: nothing was
        decided then, or the next look, of any controller, finishes it.
        """
        now = self._wall()
        if self._rollout is None or record.raw(task, self._endpoint) != self._stored:
            # Another controller has written, or this one does not know if its last write arrived.
            self._rollout, self._stored = record.read(task, self._endpoint), record.raw(task, self._endpoint)
            self._before = Reading()
        found = record.found_weights(serving, self._endpoint)
        if found != self._found or not self._since:
            self._found, self._since = found, now
        before, reading = self._rollout, self._before
        after = self._requested(task, before, now)
        if after is None:
            return []
        if after is before:
            after, reading = self._moved(serving, after, now)
        if not self._save(task, serving, before, after, now):
            return []  # somebody has written meanwhile: the next look sees it
        self._before = reading
        old = before.history if before is not None else ()
        return [decision for decision in after.history if decision not in old]

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done until a record or the Task changes."""
        one = self._rollout
        return one is None or (one.is_over and one.is_written and self._found not in one.replaced)

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
            return rollout, self._before
        if record.are_equal(wanted, record.weights(serving, self._endpoint)):
            rollout = rollout if rollout.is_written else rollout.written()
        elif not rollout.is_written and found in rollout.replaced:
            return rollout, self._before  # it is written again
        elif rollout.is_old_copy(found, now) and all(
            url in serving.endpoints for url, share in wanted.items() if share
        ):
            if now - self._since < SETTLED_S:
                return rollout, self._before  # whoever wrote it may still be writing
            why = f"another ClearML client wrote the former weights back: {found or 'no such route'}"
            return replace(steps.put_right(rollout, now, why), is_written=False, restored=found), self._before
        else:  # somebody's will, and what was replaced before is no old copy any more
            rollout = replace(rollout, replaced={}, is_written=True, restored=None)
            if not rollout.is_over:
                foreign = Observation(foreign=f"the weights of {self._endpoint} were changed to {found or 'none'}")
                return steps.after_look(rollout, foreign, now), self._before
        if rollout.is_over:
            return rollout, self._before
        seen, reading = self._seen(serving, rollout)
        return steps.after_look(rollout, seen, now), reading

    def _seen(self, serving: spec.ServingSpec, rollout: Rollout) -> tuple[Observation, Reading]:
        urls, endpoints = (rollout.canary, rollout.stable), serving.endpoints
        gone = [url for url in urls if url not in endpoints]
        if gone:
            return Observation(foreign=f"{', '.join(gone)} was removed from the serving Task"), self._before
        if self._gateways is None:
            return Observation(missing=(f"any gateway: {NO_GATEWAYS}",)), self._before
        versions = {url: Version(endpoints[url].endpoint, endpoints[url].version) for url in urls}
        reading = self._gateways.counters().over(self._before)
        counted = grown(self._before, reading)
        statuses, wanted = self._gateways.statuses(), record.wanted_weights(serving, rollout) or {}
        lagging = tuple(
            address for address, status in statuses.items()
            if status is not None and not record.are_equal(wanted, (status.get("canaries") or {}).get(rollout.endpoint))
        )  # fmt: skip
        missing = [*reading.missing, *(address for address, status in statuses.items() if status is None)]
        canary, stable = versions[rollout.canary], versions[rollout.stable]
        of_canary = between(counted, canary, "canary", rollout.rules.names)
        of_stable = between(counted, stable, "stable")
        return Observation(
            of_canary, of_stable, tuple(dict.fromkeys(missing)), lagging,
            differences=differences(statuses.values(), canary, stable),
        ), reading  # fmt: skip

    def _save(
        self, task: ServingTask, serving: spec.ServingSpec, before: Rollout | None, after: Rollout, now: float
    ) -> bool:
        """Write the rollout if that is due, and what follows from it. Return False if somebody else has written."""
        is_new = _wants_anew(before, after)
        wanted = record.wanted_weights(serving, after)
        is_there = wanted is None or record.are_equal(wanted, record.weights(serving, self._endpoint))
        if is_new and wanted is not None and not is_there:
            after = after.replacing(self._found, record.described_shares(wanted), now)
        follows = is_new or not after.is_written
        records = record.mirroring(serving, after, by=record.CONTROLLER) if follows or not after.is_over else []
        records += _chosen_default(task, serving, after) if follows else []
        is_guarded = self._gateways is not None and not after.is_over
        is_due = is_guarded and now - self._saved_at >= GUARDED_S / 3
        if not (is_due or records or follows) and before is not None and _decided(before) == _decided(after):
            self._rollout = after
            return True
        again = self._store.task()
        if _seen_of(again, self._endpoint) != _seen_of(task, self._endpoint):
            return False
        guard, until = (self._me, now + GUARDED_S) if is_guarded else ("", 0.0)
        after = replace(after, guard=guard, guarded_until=until)
        stored = record.stored(after)
        sections = {} if is_there or after.is_written else record.with_weights(again, self._endpoint, wanted or {})
        self._store.write(sections, [stored, *records])
        self._rollout, self._stored, self._saved_at = after, json.loads(json.dumps(stored.value)), now
        return True


def _wants_anew(old: Rollout | None, new: Rollout) -> bool:
    """Return whether other weights are wanted than before, or none any more."""
    return old is None or (old.canary, old.stable, old.weight, old.phase) != (
        new.canary, new.stable, new.weight, new.phase
    )  # fmt: skip


def _decided(one: Rollout) -> tuple[object, ...]:
    """Return what must not be lost; evidence may wait until the next write."""
    return one.phase, one.handled, one.history, one.replaced, one.is_written, one.restored


def _seen_of(task: ServingTask, endpoint: str) -> tuple[object, ...]:
    """Return what a decision about ``endpoint`` rests on."""
    asked = spec.records_of(task, spec.ROLLOUT_REQUEST).get(endpoint)
    return record.raw(task, endpoint), asked, task.sections.get(record.CANARY, "")


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
