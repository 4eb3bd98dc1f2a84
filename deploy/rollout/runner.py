"""Runs a rollout: looks at the serving Task and at the counters, lets ``steps`` decide, writes what was decided.

One runner at a time: it holds a lease in the Task and stops when somebody else has it. It may be killed at any moment;
the next one, anywhere, goes on from what is recorded. What is decided is recorded before the weights are written, so
that no weight is ever in force without its reason; gateways already prefer the recorded decision.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deploy.history.recorder import recorded
from deploy.rollout import defaults, looks, record, steps
from deploy.rollout.record import LEASE_S, Lease
from deploy.rollout.source import Look, Source, Version, apart, between, missing_instances
from deploy.rollout.steps import Decision, Rollout, Seen
from deploy.tools.errors import DeployError, GatewayError, RegistryUnavailable

Statuses = Callable[[], Mapping[str, Mapping[str, Any] | None]]
"""Gateway address → its ``/v1/status``, None where nothing answers."""


class Unwritten(DeployError):
    """A decision is recorded, and so in force; the serving Task still has the weights of before."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One look as it is shown: the rollout, what was decided in this look, and on what (None: nothing was judged)."""

    rollout: Rollout
    decisions: tuple[Decision, ...] = ()
    problem: str = ""
    told: looks.Told | None = None


class Runner:
    """One rollout's runner. ``me`` is unique to it; ``clock`` counts Unix seconds; ``statuses`` asks the gateways."""

    def __init__(
        self,
        store: record.Store,
        source: Source,
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
        """What the Task had when the weights of the rollout could not be written; None if they were."""
        self._rollout = Rollout(endpoint, "", "")

    def start(self, fresh: Rollout | None, *, settle_s: float = 1.0) -> Rollout:
        """Take the lease, begin ``fresh`` or go on with what is in the Task. Raises ``DeployError``."""
        task = self._store.task()
        current, lease = record.read(task, self._endpoint)
        now = self._clock()
        if current is not None and not current.is_over and not lease.is_free(now, self._me):
            raise DeployError(
                f"the rollout of {self._endpoint} is run by {lease.holder}",
                hint=f"`triton-gateway canary status`; it can be taken over {lease.until - now:.0f} s after its end",
            )
        if fresh is not None and current is not None and not current.is_over and fresh.canary != current.canary:
            raise DeployError(
                f"a rollout of {self._endpoint} to {current.canary} is {current.phase}",
                hint=f"`triton-gateway canary abort --endpoint {self._endpoint}`",
            )
        if fresh is not None and (current is None or current.is_over):
            # The last command may still be in the Task: it was for the rollout before.
            last = record.asked(task, self._endpoint)
            rollout = steps.begun(replace(fresh, handled=last.id if last is not None else ""), now)
        elif current is not None and not current.is_over:
            rollout = current
        else:
            raise DeployError(
                f"there is no rollout of {self._endpoint} to go on with",
                hint=f"start one: `triton-gateway canary run --endpoint {self._endpoint} --to VERSION`",
            )
        self._rollout = rollout
        self._save(task, rollout)
        # Two that take it at once both write; the second write stays, and the first one sees it here.
        self._sleep(settle_s)
        _, lease = record.read(self._store.task(), self._endpoint)
        if lease.holder != self._me:
            raise DeployError(f"the rollout of {self._endpoint} is run by {lease.holder}")
        return rollout

    def release(self) -> None:
        """Store what is known and give the lease back, so that the next runner need not wait for its end."""
        self._store.write({}, [record.written(self._rollout, Lease())])

    def look(self) -> Progress:
        """Look once. Raises ``DeployError`` when another runner has taken over; an unreachable registry is a problem,
        not an end: nothing is decided until it can be written.
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
                f"the rollout of {self._endpoint} was taken over by {lease.holder or 'nobody'}",
                hint="`triton-gateway canary status` shows it",
            )
        # Between two saves what is here is ahead of what is stored.
        rollout, now = self._rollout, self._clock()
        if self._unwritten is not None and self._unwritten == record.found_weights(task, rollout.endpoint):
            self._save(task, rollout)  # nobody has written meanwhile: what was begun is ended first
            task = self._store.task()
        self._unwritten = None
        judged = None
        moved = carried_out(rollout, task, now)
        if moved is rollout and record.verdict(task, rollout.endpoint) == "reverted":
            found = record.found_weights(task, rollout.endpoint)
            why = f"another ClearML client wrote the weights of before back: {found or 'no such route'}"
            moved = steps.put_right(rollout, now, why)
            put_right(self._store, task, self._endpoint, now=now, by=self._me)
            task = self._store.task()
        elif moved is rollout:
            seen = self._seen(task, rollout)
            moved, judged = steps.looked(rollout, seen, now), looks.Told(now, rollout.weight, seen)
            if seen.foreign and (made := record.decision(task, rollout.endpoint)) is not None:
                # Somebody's will ends the decision: what an old copy brings back afterwards is not put right to it.
                self._store.write({}, [record.retired(made, now=now, by=self._me)])
        news = tuple(decision for decision in moved.history if decision not in rollout.history)
        self._rollout = moved
        if news or now - self._saved_at >= LEASE_S / 3:
            self._save(task, moved)
        return Progress(moved, news, told=judged)

    def _seen(self, task: Mapping[str, Any], rollout: Rollout) -> Seen:
        wanted, current = record.shares_of(rollout), record.weights(task, rollout.endpoint)
        if rollout.phase != "paused" and not rollout.is_over and not _equal(wanted, current):
            return Seen(foreign=f"somebody else changed the weights of {rollout.endpoint} to {current}")
        endpoints = record.endpoints(task)
        gone = [url for url in wanted if url not in endpoints]
        if gone:
            return Seen(foreign=f"{', '.join(gone)} is no longer in the serving Task")
        versions = {url: Version(endpoints[url].endpoint, endpoints[url].version) for url in wanted}
        looks = {name: self._source.look(name) for name in {v.endpoint for v in versions.values()}}
        before, self._before = self._before, looks
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
            missing += missing_instances(then, now_there)
            route = "canary" if url == rollout.canary else "stable"
            counts[url] = between(then, now_there, version, route, rollout.rules.variable)
        canary, stable = versions[rollout.canary], versions[rollout.stable]
        return Seen(
            counts[rollout.canary], counts[rollout.stable], tuple(dict.fromkeys(missing)), lagging,
            apart=apart(statuses.values(), canary, stable),
        )  # fmt: skip

    def _save(self, task: Mapping[str, Any], rollout: Rollout) -> None:
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
    """Record, then write the sections of the Task that follow from it.

    Raises ``Unwritten`` if only the first was possible, and what ``store`` raises if nothing was.
    """
    with recorded(store) if any(one.kind == "decision" for one in records) else contextlib.nullcontext():
        store.write({}, records)
    if not changed:
        return
    try:
        store.write(changed)
    except GatewayError as error:
        raise Unwritten(
            f"the weights are decided and in force, but the serving Task could not be written: {error.message}",
            hint="model sync writes it when ClearML takes it; where none runs, repeat the command",
        ) from error


def put_right(
    store: record.Store,
    task: Mapping[str, Any],
    endpoint: str,
    *,
    now: float,
    by: str,
    is_undone: bool = True,
) -> None:
    """Write the decided weights of ``endpoint`` over the old copy that ``task`` has; a second time it is meant.

    Unless the decided weights had not been written before (``is_undone`` is False): then nobody has undone them.
    """
    made = record.decision(task, endpoint)
    if made is None:
        return
    store.write(record.with_weights(task, endpoint, dict(zip(made.urls, made.weights, strict=False))))
    if is_undone:
        store.write({}, [record.meant(made, record.found_weights(task, endpoint), now=now, by=by)])


def _write(
    store: record.Store, task: Mapping[str, Any], rollout: Rollout, lease: Lease, *, now: float, by: str
) -> None:
    """Store a rollout, and the weights it wants where the Task has others or they were not decided yet."""
    records, changed, wanted = [record.written(rollout, lease)], {}, record.shares_of(rollout)
    if rollout.phase != "paused":
        is_there = _equal(wanted, record.weights(task, rollout.endpoint))
        if not is_there:
            changed = record.with_weights(task, rollout.endpoint, wanted)
        if not is_there or record.verdict(task, rollout.endpoint) != "agrees":
            last = rollout.history[-1] if rollout.history else None
            why = f"{last.what}: {last.why}" if last is not None else ""
            records.append(record.decided(task, rollout.endpoint, wanted, now=now, by=by, why=why))
    if rollout.phase == "promoted" and record.endpoints(task)[rollout.canary].endpoint == rollout.endpoint:
        why = f"the rollout to {rollout.canary} was promoted"
        records.append(defaults.chosen(task, rollout.endpoint, rollout.canary, now=now, by=by, why=why))
    records += record.mirroring(task, rollout, by=by)
    write_decided(store, changed, records)


def carried_out(rollout: Rollout, task: Mapping[str, Any], now: float) -> Rollout:
    """Return ``rollout`` after the command that waits for it in ``task``, if any."""
    waiting = record.asked(task, rollout.endpoint)
    if waiting is None or waiting.id == rollout.handled:
        return rollout
    return steps.commanded(rollout, waiting.command, waiting.id, now, waiting.who)


def act(store: record.Store, endpoint: str, asked: record.Asked, *, me: str,
        clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep,
        timeout_s: float = 20.0) -> Rollout:  # fmt: skip
    """Carry out a person's command: leave it for the runner and wait, or do it here when nobody runs the rollout.

    Returns the rollout after it. Raises ``DeployError`` when there is none, or its runner does not react.
    """
    task = store.task()
    rollout, lease = record.read(task, endpoint)
    if rollout is None:
        raise DeployError(f"there is no rollout of {endpoint}", hint="`triton-gateway canary run` starts one")
    if rollout.is_over:
        raise DeployError(f"the rollout of {endpoint} is over: {rollout.phase} ({rollout.why})")
    store.write({}, [record.command(endpoint, asked)])
    until = clock() + timeout_s
    while clock() < until:
        task = store.task()
        rollout, lease = record.read(task, endpoint)
        if rollout is None or rollout.handled == asked.id:
            break
        if lease.is_free(clock(), me):
            done = carried_out(rollout, task, clock())
            _write(store, task, done, Lease(), now=clock(), by=asked.who or me)
            return done
        sleep(0.5)
    if rollout is None or rollout.handled != asked.id:
        raise DeployError(
            f"{lease.holder}, which runs the rollout of {endpoint}, has not reacted within {timeout_s:.0f} s",
            hint="it may have just been stopped: try again in half a minute",
        )
    return rollout


def _equal(wanted: Mapping[str, float], found: Mapping[str, Any] | None) -> bool:
    """Compare shares as gateways normalise them: versions of weight 0 may be missing."""
    if found is None:
        return False
    total = sum(float(share) for share in found.values()) or 1.0
    urls = {*wanted, *found}
    return all(abs(wanted.get(url, 0.0) - float(found.get(url, 0.0)) / total) < 1e-4 for url in urls)
