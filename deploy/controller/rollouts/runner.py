"""Runs a rollout: reads the serving Task and the counters, lets ``steps`` decide, and writes the decision.

There is one runner at a time: it holds a lease in the Task and stops when another runner has it. It may be killed at
any moment; the next one, on any machine, continues from the records. A decision is recorded before its weights are
written, so no weight is ever in force without its reason. Gateways prefer the recorded decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deploy.controller import default_versions
from deploy.controller.rollouts import record, steps
from deploy.controller.rollouts.record import LEASE_S, Lease
from deploy.controller.rollouts.source import GatewaySource, Look, Version, between, differences
from deploy.controller.rollouts.steps import Decision, Observation, Rollout
from deploy.tools.errors import DeployError, GatewayError, RegistryUnavailable

Statuses = Callable[[], Mapping[str, Mapping[str, Any] | None]]
"""Gateway address → its ``/v1/status``, None if it does not answer."""


class Unwritten(DeployError):
    """A decision is recorded and in force, but the serving Task still has the former weights."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One look, to be shown: the rollout and the decisions of this look."""

    rollout: Rollout
    decisions: tuple[Decision, ...] = ()
    problem: str = ""


class Runner:
    """The runner of one rollout. ``me`` is its unique name; ``clock``: Unix seconds; ``statuses`` asks the gateways."""

    def __init__(
        self,
        store: record.Store,
        source: GatewaySource,
        statuses: Statuses,
        *,
        endpoint: str,
        me: str,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._source = source
        self._statuses = statuses
        self._endpoint = endpoint
        self._me = me
        self._clock = clock
        self._sleep = sleep
        self._before: dict[str, Look] = {}
        self._saved_at = 0.0
        self._unwritten: str | None = None
        """The weights in the Task when the rollout's weights could not be written; None if they were written."""
        self._rollout = Rollout(endpoint, "", "")

    def start(self, fresh: Rollout | None, *, settle_s: float = 1.0, over: str = "") -> Rollout:
        """Take the lease, then start ``fresh`` or continue the rollout in the Task. Raises ``DeployError``.

        ``over``: how the names of holders begin from whom it may be taken although it has not run out.
        """
        task = self._store.task()
        current, lease = record.read(task, self._endpoint)
        now = self._clock()
        may_take = lease.is_free(now, self._me) or (over != "" and lease.holder.startswith(over))
        if current is not None and not current.is_over and not may_take:
            raise DeployError(
                f"the rollout of {self._endpoint} is run by {lease.holder}",
                hint="`triton-gateway canary status` shows it. If that process has ended, run this command again in "
                f"{lease.until - now:.0f} s",
            )
        if fresh is not None and current is not None and not current.is_over and fresh.canary != current.canary:
            raise DeployError(
                f"another rollout of {self._endpoint}, to {current.canary}, is {current.phase}",
                hint=f"abort it first: `triton-gateway canary abort --endpoint {self._endpoint}`",
            )
        if fresh is not None and (current is None or current.is_over):
            # The last command may still be in the Task; it was meant for the previous rollout.
            last = record.pending_command(task, self._endpoint)
            rollout = steps.begun(replace(fresh, handled=last.id if last is not None else ""), now)
        elif current is not None and not current.is_over:
            rollout = current
        else:
            raise DeployError(
                f"there is no rollout of {self._endpoint} to continue",
                hint=f"start one: `triton-gateway canary run --endpoint {self._endpoint} --to VERSION`",
            )
        self._rollout = rollout
        self._save(task, rollout)
        # If two runners take the lease at once, both write. The second write stays, and the first runner sees it here.
        self._sleep(settle_s)
        _, lease = record.read(self._store.task(), self._endpoint)
        if lease.holder != self._me:
            raise DeployError(f"the rollout of {self._endpoint} is run by {lease.holder}")
        return rollout

    def release(self) -> None:
        """Store the rollout and give the lease back, so that the next runner does not wait until it expires."""
        self._store.write({}, [record.written(self._rollout, Lease())])

    def look(self) -> Progress:
        """Look once. Raises ``DeployError`` if another runner has taken over.

        An unreachable registry is reported in ``Progress.problem``; nothing is decided until it can be written.
        """
        try:
            return self._look()
        except (RegistryUnavailable, Unwritten) as error:
            return Progress(self._rollout, problem=f"waiting for ClearML: {error.message}")

    def _look(self) -> Progress:
        task = self._store.task()
        stored, lease = record.read(task, self._endpoint)
        if stored is None or lease.holder != self._me:
            raise DeployError(
                f"the rollout of {self._endpoint} was taken over by {lease.holder}"
                if lease.holder
                else f"the rollout of {self._endpoint} was released by another process",
                hint="`triton-gateway canary status` shows who runs it",
            )
        # Between two saves, the rollout in memory is ahead of the stored one.
        rollout, now = self._rollout, self._clock()
        if self._unwritten is not None and self._unwritten == record.found_weights(task, rollout.endpoint):
            self._save(task, rollout)  # nobody has written since: finish the interrupted write first
            task = self._store.task()
        self._unwritten = None
        moved = carried_out(rollout, task, now)
        if moved is rollout and record.verdict(task, rollout.endpoint) == "reverted":
            found = record.found_weights(task, rollout.endpoint)
            why = f"another ClearML client wrote the former weights back: {found or 'no such route'}"
            moved = steps.put_right(rollout, now, why)
            put_right(self._store, task, self._endpoint, now=now, by=self._me)
            task = self._store.task()
        elif moved is rollout:
            seen = self._seen(task, rollout)
            moved = steps.after_look(rollout, seen, now)
            if seen.foreign and (made := record.decision(task, rollout.endpoint)) is not None:
                # Somebody chose other weights, which ends the decision: later old copies are not restored to it.
                self._store.write({}, [record.retired(made, now=now, by=self._me)])
        news = tuple(decision for decision in moved.history if decision not in rollout.history)
        self._rollout = moved
        if news or now - self._saved_at >= LEASE_S / 3:
            self._save(task, moved)
        return Progress(moved, news)

    def _seen(self, task: record.ServingTask, rollout: Rollout) -> Observation:
        wanted, current = record.shares_of(rollout), record.weights(task, rollout.endpoint)
        if rollout.phase != "paused" and not rollout.is_over and not _equal(wanted, current):
            return Observation(foreign=f"the weights of {rollout.endpoint} were changed to {_in_words(current)}")
        endpoints = record.endpoints(task)
        gone = [url for url in wanted if url not in endpoints]
        if gone:
            return Observation(foreign=f"{', '.join(gone)} was removed from the serving Task")
        versions = {url: Version(endpoints[url].endpoint, endpoints[url].version) for url in wanted}
        before = self._before
        looks = {
            name: self._source.look(name).over(before.get(name, Look()))
            for name in {v.endpoint for v in versions.values()}
        }
        self._before = looks
        statuses = self._statuses()
        lagging = tuple(
            address for address, status in statuses.items()
            if status is not None and not _equal(wanted, (status.get("canaries") or {}).get(rollout.endpoint))
        )  # fmt: skip
        missing = [address for address, status in statuses.items() if status is None]
        counts = {}
        for url, version in versions.items():
            now_there = looks[version.endpoint]
            then = before.get(version.endpoint, Look())
            missing += now_there.missing
            route, names = ("canary", rollout.rules.names) if url == rollout.canary else ("stable", {})
            counts[url] = between(then, now_there, version, route, rollout.rules.variable, names)
        canary, stable = versions[rollout.canary], versions[rollout.stable]
        return Observation(
            counts[rollout.canary], counts[rollout.stable], tuple(dict.fromkeys(missing)), lagging,
            differences=differences(statuses.values(), canary, stable),
        )  # fmt: skip

    def _save(self, task: record.ServingTask, rollout: Rollout) -> None:
        now = self._clock()
        until = 0.0 if rollout.is_over else now + LEASE_S
        lease = Lease("" if rollout.is_over else self._me, until)
        try:
            _write(self._store, task, rollout, lease, now=now, by=self._me)
        except (RegistryUnavailable, Unwritten):
            self._unwritten = record.found_weights(task, rollout.endpoint)
            raise
        self._saved_at = now


def write_decided(store: record.Store, changed: Mapping[str, str], records: Sequence[record.Record]) -> None:
    """Write ``records``, then the ``changed`` sections of the Task that follow from them.

    Raises ``Unwritten`` if only the records could be written, and the error of ``store`` if nothing could.
    """
    store.write({}, records)
    if not changed:
        return
    try:
        store.write(changed)
    except GatewayError as error:
        raise Unwritten(
            f"the new weights are in force, but they could not be written to the serving Task: {error.message}",
            hint="model sync writes them as soon as ClearML accepts it; if no model sync runs, repeat the command",
        ) from error


def put_right(
    store: record.Store,
    task: record.ServingTask,
    endpoint: str,
    *,
    now: float,
    by: str,
    is_undone: bool = True,
) -> None:
    """Write the decided weights of ``endpoint`` over the old copy in ``task``.

    Also records that the old weights count as chosen if they appear again; not if ``is_undone`` is False, i.e. the
    decided weights had not been written before.
    """
    made = record.decision(task, endpoint)
    if made is None:
        return
    store.write(record.with_weights(task, endpoint, dict(zip(made.urls, made.weights, strict=False))))
    if is_undone:
        store.write({}, [record.meant(made, record.found_weights(task, endpoint), now=now, by=by)])


def _write(
    store: record.Store, task: record.ServingTask, rollout: Rollout, lease: Lease, *, now: float, by: str
) -> None:
    """Store a rollout, and its weights if the Task has others or they are not decided yet.

    A canary of the endpoint's own name that was promoted is removed: its version is the default from then on.
    """
    records, changed, wanted = [record.written(rollout, lease)], {}, record.shares_of(rollout)
    if rollout.phase == "promoted" and record.is_of_own_name(task, rollout):
        why = f"the rollout to {rollout.canary} was promoted"
        records.append(default_versions.chosen(rollout.endpoint, rollout.canary, now=now, by=by, why=why))
        wanted = {}
    if rollout.phase != "paused":
        is_there = _equal(wanted, record.weights(task, rollout.endpoint))
        if not is_there:
            changed = record.with_weights(task, rollout.endpoint, wanted)
        if not is_there or record.verdict(task, rollout.endpoint) != "agrees":
            last = rollout.history[-1] if rollout.history else None
            why = f"{last.what}: {last.why}" if last is not None else ""
            records.append(record.decided(task, rollout.endpoint, wanted, now=now, by=by, why=why))
    records += record.mirroring(task, rollout, by=by)
    write_decided(store, changed, records)


def carried_out(rollout: Rollout, task: record.ServingTask, now: float) -> Rollout:
    """Return ``rollout`` after the pending command in ``task``, if there is one."""
    waiting = record.pending_command(task, rollout.endpoint)
    if waiting is None or waiting.id == rollout.handled:
        return rollout
    return steps.after_command(rollout, waiting.command, waiting.id, now, waiting.who)


def act(store: record.Store, endpoint: str, pending: record.PendingCommand, *, me: str,
        clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep,
        timeout_s: float = 20.0) -> Rollout:  # fmt: skip
    """Carry out a person's command: leave it for the runner and wait, or do it here if nobody runs the rollout.

    Returns the rollout after it. Raises ``DeployError`` if there is no rollout or its runner does not react.
    """
    task = store.task()
    rollout, lease = record.read(task, endpoint)
    if rollout is None:
        raise DeployError(f"there is no rollout of {endpoint}", hint="`triton-gateway canary run` starts one")
    if rollout.is_over:
        raise DeployError(f"the rollout of {endpoint} has ended: {rollout.phase} ({rollout.why})")
    store.write({}, [record.command(endpoint, pending)])
    until = clock() + timeout_s
    while clock() < until:
        task = store.task()
        rollout, lease = record.read(task, endpoint)
        if rollout is None or rollout.handled == pending.id:
            break
        if lease.is_free(clock(), me):
            done = carried_out(rollout, task, clock())
            _write(store, task, done, Lease(), now=clock(), by=pending.who or me)
            return done
        sleep(0.5)
    if rollout is None or rollout.handled != pending.id:
        raise DeployError(
            f"the runner of the rollout of {endpoint} ({lease.holder}) has not reacted within {timeout_s:.0f} s",
            hint="it may have been stopped just now: try again in half a minute",
        )
    return rollout


def _in_words(shares: Mapping[str, float] | None) -> str:
    return ", ".join(f"{url} {share:g}" for url, share in (shares or {}).items()) or "none: the route was removed"


def _equal(wanted: Mapping[str, float], found: Mapping[str, Any] | None) -> bool:
    """Compare shares normalised, as gateways do; versions of weight 0 may be missing."""
    if found is None:
        return not wanted
    total = sum(float(share) for share in found.values()) or 1.0
    urls = {*wanted, *found}
    return all(abs(wanted.get(url, 0.0) - float(found.get(url, 0.0)) / total) < 1e-4 for url in urls)
