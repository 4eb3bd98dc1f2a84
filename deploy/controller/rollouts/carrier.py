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
from deploy.controller.registry import ServingTask, default_version, registry, spec
from deploy.controller.rollouts import record, steps
from deploy.controller.rollouts.counts import Version, between, differences
from deploy.controller.rollouts.record import State
from deploy.controller.rollouts.steps import Decision, Observation, Rollout

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
        self, store: record.Store, gateways: Gateways | None, endpoint: str, me: str, *,
        wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._gateways = gateways
        self._endpoint = endpoint
        self._me = me
        self._wall = wall
        self._state: State | None = None
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
        if self._state is None or record.raw(task, self._endpoint) != self._stored:
            # Another controller has written, or this one does not know if its last write arrived.
            self._state, self._stored = record.read(task, self._endpoint), record.raw(task, self._endpoint)
            self._before = Reading()
        found = record.found_weights(serving, self._endpoint)
        if found != self._found or not self._since:
            self._found, self._since = found, now
        before, reading = self._state, self._before
        after = self._requested(task, before, now)
        if after is None:
            return []
        if after is before:
            after, reading = self._moved(serving, after, now)
        if not self._save(task, serving, before, after, now):
            return []  # somebody has written meanwhile: the next look sees it
        self._before = reading
        old = before.rollout.history if before is not None else ()
        return [decision for decision in after.rollout.history if decision not in old]

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done until a record or the Task changes."""
        state = self._state
        if state is None:
            return True
        return state.rollout.is_over and state.is_written and self._found not in state.replaced

    def _requested(self, task: ServingTask, state: State | None, now: float) -> State | None:
        """Return the state after what a person asks for; the same one if there is nothing new."""
        wanted = record.request(task, self._endpoint)
        if wanted is None or not record.is_waiting(wanted, state):
            return state
        if wanted.command == "run" and wanted.rollout is not None and (state is None or state.rollout.is_over):
            if self._gateways is None:
                return State(steps.refused(wanted.rollout, wanted.id, now, NO_GATEWAYS))
            begun = steps.begun(wanted.rollout, wanted.id, now, wanted.who)
            return State(begun, replaced={} if state is None else state.replaced)
        if state is None:
            return None  # there is nothing to promote or abort
        return replace(state, rollout=steps.after_command(state.rollout, wanted.command, wanted.id, now, wanted.who))

    def _moved(self, serving: spec.ServingSpec, state: State, now: float) -> tuple[State, Reading]:
        """Return the state after one look, and the counters that were read for it."""
        rollout, found = state.rollout, self._found
        wanted = record.wanted_weights(serving, rollout)
        if wanted is None:
            return state, self._before
        if record.are_equal(wanted, record.weights(serving, self._endpoint)):
            state = state if state.is_written else state.written()
        elif not state.is_written and found in state.replaced:
            return state, self._before  # it is written again
        elif state.is_old_copy(found, now) and all(url in serving.endpoints for url, share in wanted.items() if share):
            if now - self._since < SETTLED_S:
                return state, self._before  # whoever wrote it may still be writing
            why = f"another ClearML client wrote the former weights back: {found or 'no such route'}"
            put_right = steps.put_right(rollout, now, why)
            return replace(state, rollout=put_right, is_written=False, restored=found), self._before
        else:  # somebody's will, and what was replaced before is no old copy any more
            state = replace(state, replaced={}, is_written=True, restored=None)
            if not rollout.is_over:
                foreign = Observation(foreign=f"the weights of {self._endpoint} were changed to {found or 'none'}")
                return replace(state, rollout=steps.after_look(rollout, foreign, now)), self._before
        if rollout.is_over:
            return state, self._before
        seen, reading = self._seen(serving, rollout)
        return replace(state, rollout=steps.after_look(rollout, seen, now)), reading

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
        self, task: ServingTask, serving: spec.ServingSpec, before: State | None, after: State, now: float
    ) -> bool:
        """Write the state if that is due, and what follows from it. Return False if somebody has written meanwhile."""
        rollout, is_new = after.rollout, _wants_anew(before, after)
        wanted = record.wanted_weights(serving, rollout)
        is_there = wanted is None or record.are_equal(wanted, record.weights(serving, self._endpoint))
        if is_new and wanted is not None and not is_there:
            after = after.replacing(self._found, wanted, now)
        follows = is_new or not after.is_written
        records = record.mirroring(serving, rollout, by=record.CONTROLLER) if follows or not rollout.is_over else []
        records += _chosen_default(task, serving, rollout) if follows else []
        is_guarded = self._gateways is not None and not rollout.is_over
        is_due = is_guarded and now - self._saved_at >= GUARDED_S / 3
        if not (is_due or records or follows) and before is not None and _decided(before) == _decided(after):
            self._state = after
            return True
        again = self._store.task()
        if _seen_of(again, self._endpoint) != _seen_of(task, self._endpoint):
            return False
        guard, until = (self._me, now + GUARDED_S) if is_guarded else ("", 0.0)
        after = replace(after, guard=guard, guarded_until=until)
        state = record.stored(after)
        sections = {} if is_there or after.is_written else record.with_weights(again, self._endpoint, wanted or {})
        self._store.write(sections, [state, *records])
        self._state, self._stored, self._saved_at = after, json.loads(json.dumps(state.value)), now
        return True


def _wants_anew(before: State | None, after: State) -> bool:
    """Return whether other weights are wanted than before, or none any more."""
    old, new = before.rollout if before is not None else None, after.rollout
    return old is None or (old.canary, old.stable, old.weight, old.phase) != (
        new.canary, new.stable, new.weight, new.phase
    )  # fmt: skip


def _decided(state: State) -> tuple[object, ...]:
    """Return what must not be lost; evidence may wait until the next write."""
    one = state.rollout
    return one.phase, one.handled, one.history, state.replaced, state.is_written, state.restored


def _seen_of(task: ServingTask, endpoint: str) -> tuple[object, ...]:
    """Return what a decision about ``endpoint`` rests on."""
    asked = spec.records_of(task, spec.ROLLOUT_REQUEST).get(endpoint)
    return record.raw(task, endpoint), asked, registry.section_text(task, record.CANARY)


def _chosen_default(task: ServingTask, serving: spec.ServingSpec, rollout: Rollout) -> list[record.Record]:
    """Return the record that makes a promoted version the default, unless somebody has chosen one since."""
    at = next((round(one.at, 1) for one in reversed(rollout.history) if one.what == "promote"), 0.0)
    if rollout.phase != "promoted" or not record.is_of_own_name(serving, rollout):
        return []
    known = default_version.read(spec.records_of(task, default_version.KIND)).get(rollout.endpoint)
    if known is not None and known.by and known.at >= at:
        return []
    why = f"the rollout to {rollout.canary} was promoted"
    return [default_versions.chosen(rollout.endpoint, rollout.canary, now=at, by=record.CONTROLLER, why=why)]
