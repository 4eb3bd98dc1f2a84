"""Asks the controller for something about a rollout, and follows what becomes of it. For ``triton-gateway canary``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from deploy.controller import election
from deploy.controller.rollouts import record, steps
from deploy.controller.rollouts.record import Request
from deploy.controller.rollouts.steps import Decision, Rollout
from deploy.tools.errors import DeployError, RegistryUnavailable
from gateway.registry import RegistryWriter

Stop = Callable[[float], bool]
"""Waits for seconds; returns True if the person wants to go."""

LOOK_S: Final = 1.0
ABORTED_S: Final = 25.0
"""Seconds before an abort is carried out here: in that time, another controller takes over."""
NOBODY: Final = "no controller runs for this serving Task, so nobody carries this out"
_HINT: Final = "start one: `triton-gateway controller --gateway URL` (`up` and the chart run one)"


@dataclass(frozen=True, slots=True)
class Progress:
    """One look, to be shown: the state of the rollout, and what is wrong. Without a rollout it has not begun."""

    rollout: Rollout | None
    decisions: tuple[Decision, ...] = ()
    problem: str = ""

    def topic(self) -> str:
        """Return what changes when there is something new to say."""
        one = self.rollout
        return self.problem if one is None else f"{one.weight} {one.state} {bool(self.problem)}"

    def in_words(self) -> str:
        """Return it as a line."""
        if self.rollout is None:
            return self.problem
        one = self.rollout
        state = self.problem or f"{one.state}: {one.why or 'nothing is counted yet'}"
        return f"{one.weight:g} % {one.phase}, {state} (evidence {number(one.gate.evidence)})"


def number(evidence: float) -> str:
    """Write evidence as people write numbers: 0.854, 7.3, 793, 12,345,678."""
    return f"{evidence:.3g}" if evidence < 100 else f"{evidence:,.0f}"


def runs(store: RegistryWriter, endpoint: str, to: str | None) -> bool:
    """Return whether a rollout of ``endpoint`` to version ``to`` runs; None: to any version.

    Raises ``DeployError`` if another one runs, or none that could be followed.
    """
    running = record.read(store.task(), endpoint)
    is_running = running is not None and not running.is_over
    if running is not None and is_running and to is not None and running.canary != store.spec().url_of(endpoint, to):
        raise DeployError(
            f"another rollout of {endpoint}, to {running.canary}, is {running.phase}",
            hint=f"abort it first: `triton-gateway canary abort --endpoint {endpoint}`",
        )
    if not is_running and to is None:
        raise DeployError(
            f"no rollout of {endpoint} runs",
            hint=f"start one: `triton-gateway canary run --endpoint {endpoint} --to VERSION`",
        )
    return is_running


def ask(
    store: RegistryWriter, endpoint: str, wanted: Request, *, clock: Callable[[], float] = time.time
) -> None:  # fmt: skip
    """Write the request ``wanted``; the last one counts. Raises ``DeployError`` if no controller runs."""
    if not election.alive(store.reports, now=clock()):
        raise DeployError(f"{NOBODY}: nothing was changed", hint=_HINT)
    store.write({}, [record.asked(endpoint, wanted)])


def followed(
    store: RegistryWriter, endpoint: str, wanted: Request | None, stop: Stop, *, clock: Callable[[], float] = time.time
) -> Iterator[Progress]:
    """Yield the progress of a rollout until it ends or ``stop`` says so. ``wanted``: the request that begins it.

    Raises ``DeployError`` if the rollout was removed, and the registry's errors.
    """
    seen: list[Decision] = []
    marker, rollout = "", None
    while True:
        now = clock()
        try:
            if (latest := store.marker()) != marker or wanted is not None:
                rollout, marker = record.read(store.task(), endpoint), latest
        except RegistryUnavailable as error:
            yield Progress(rollout, problem=f"waiting for ClearML: {error.message}")
            if stop(LOOK_S):
                return
            continue
        if wanted is not None and record.is_waiting(wanted, rollout):
            leader = election.alive(store.reports, now=now)
            yield Progress(None, problem=f"waiting for the controller {leader}" if leader else f"{NOBODY}. {_HINT}")
        elif rollout is None:
            raise DeployError(f"the rollout of {endpoint} was removed")
        else:
            wanted = None
            fresh = tuple(one for one in rollout.history if one not in seen)
            seen = list(rollout.history)
            yield Progress(rollout, fresh, unguarded(rollout, now))
            if rollout.is_over:
                return
        if stop(LOOK_S):
            return


def unguarded(rollout: Rollout, now: float) -> str:
    """Return that nobody guards a rollout that has not ended, in words; else an empty string."""
    if rollout.is_over or now < rollout.guarded_until:
        return ""
    since = f" for {now - rollout.guarded_until:.0f} s ({rollout.guard} did)" if rollout.guard else ""
    return f"nobody guards it{since}: a controller that knows the gateways carries it on"


def carried_out(
    store: RegistryWriter, endpoint: str, wanted: Request, stop: Stop, *, clock: Callable[[], float] = time.time
) -> Rollout | None:
    """Ask for ``wanted``, and return the rollout after it. None: no controller answers, and the abort was done here.

    Raises ``DeployError`` if there is no such rollout, or no controller for anything but an abort.
    """
    task, is_abort = store.task(), wanted.command == "abort"
    rollout, before = record.read(task, endpoint), record.request(task, endpoint)
    if before is not None and before.command == "run" and record.is_waiting(before, rollout):
        if not is_abort:
            raise DeployError(f"the rollout of {endpoint} has not begun yet", hint="no controller has taken it up")
        store.ledger.remove("rollout_request", [endpoint])
        rollout = record.read(store.task(), endpoint)
        if record.is_waiting(before, rollout):  # no controller has taken it up just now
            raise DeployError("the rollout had not begun: its request is withdrawn, nothing was changed")
    if rollout is None or rollout.phase == "refused":
        raise DeployError(f"there is no rollout of {endpoint}", hint="`triton-gateway canary run` starts one")
    if rollout.is_over:
        raise DeployError(f"the rollout of {endpoint} has ended: {rollout.phase} ({rollout.why})")
    if is_abort and not election.alive(store.reports, now=clock()):
        _abort(store, endpoint, rollout, wanted)
        return None
    ask(store, endpoint, wanted, clock=clock)
    until = clock() + ABORTED_S
    for progress in followed(store, endpoint, wanted, stop, clock=clock):
        if progress.rollout is not None:
            return progress.rollout
        if is_abort and clock() >= until:
            _abort(store, endpoint, rollout, wanted)
            return None
    raise DeployError("interrupted; the request waits for the controller")


def _abort(store: RegistryWriter, endpoint: str, rollout: Rollout, wanted: Request) -> None:
    """Give the canary weight 0 and end its mirroring. The request stays: a controller that returns ends the rollout."""
    task, serving = store.task(), record.readable(store.spec())
    ended = steps.after_command(rollout, "abort", "", 0.0)
    shares = record.wanted_weights(serving, ended) or {}
    mirroring = record.mirroring(serving, ended, by=record.CONTROLLER)
    store.write(record.with_weights(task, endpoint, shares), [*mirroring, record.asked(endpoint, wanted)])
