"""Asks the controller for something about a rollout, and follows what becomes of it. For ``triton-gateway canary``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from deploy.controller import election
from deploy.controller.rollouts import record, steps
from deploy.controller.rollouts.record import Request, State
from deploy.tools.errors import DeployError, RegistryUnavailable

Stop = Callable[[float], bool]
"""Waits for seconds; returns True if the person wants to go."""

LOOK_S: Final = 1.0
TAKEN_S: Final = 60.0
"""Seconds in which a living controller, or the next one, carries out a request."""
ABORTED_S: Final = 25.0
"""The same before an abort is carried out here: in that time, another controller takes over."""
NOBODY: Final = "no controller runs for this serving Task, so nobody carries this out"
_HINT: Final = "start one: `triton-gateway controller --gateway URL` (`up` and the chart run one)"


@dataclass(frozen=True, slots=True)
class Progress:
    """One look, to be shown: the state of the rollout, and what is wrong. Without a state it has not begun."""

    state: State | None
    decisions: tuple[steps.Decision, ...] = ()
    problem: str = ""


def ask(store: record.Store, endpoint: str, wanted: Request) -> None:
    """Write the request ``wanted``; the last one counts."""
    store.write({}, [record.asked(endpoint, wanted)])


def followed(
    store: record.Store, endpoint: str, wanted: Request | None, stop: Stop, *, clock: Callable[[], float] = time.time
) -> Iterator[Progress]:
    """Yield the progress of a rollout until it ends or ``stop`` says so. ``wanted``: the request that begins it.

    Raises ``DeployError`` if no controller begins it in time, which then never happens, and the registry's errors.
    """
    seen: list[steps.Decision] = []
    until, marker, state = clock() + TAKEN_S, "", None
    while True:
        now = clock()
        try:
            if (latest := store.marker()) != marker or wanted is not None:
                state, marker = record.read(store.task(), endpoint), latest
        except RegistryUnavailable as error:
            yield Progress(state, problem=f"waiting for ClearML: {error.message}")
            if stop(LOOK_S):
                return
            continue
        if wanted is not None and record.is_waiting(wanted, state):
            if now >= until:
                _withdraw(store, endpoint, wanted)
            yield Progress(None, problem=_nobody(store, now))
        elif state is None:
            raise DeployError(f"the rollout of {endpoint} was removed")
        else:
            wanted = None
            fresh = tuple(one for one in state.rollout.history if one not in seen)
            seen = list(state.rollout.history)
            yield Progress(state, fresh, unguarded(state, now))
            if state.rollout.is_over:
                return
        if stop(LOOK_S):
            return


def unguarded(state: State, now: float) -> str:
    """Return that nobody guards a rollout that has not ended, in words; else an empty string."""
    if state.rollout.is_over or now < state.guarded_until:
        return ""
    since = f" for {now - state.guarded_until:.0f} s ({state.guard} did)" if state.guard else ""
    return f"nobody guards it{since}: a controller that knows the gateways carries it on"


def carried_out(
    store: record.Store, endpoint: str, wanted: Request, stop: Stop, *, clock: Callable[[], float] = time.time
) -> State | None:
    """Ask for ``wanted``, and return the state after it. None: no controller answers, and the abort was done here.

    Raises ``DeployError`` if there is no such rollout, or nobody carries out anything but an abort.
    """
    task, is_abort = store.task(), wanted.command == "abort"
    state, before = record.read(task, endpoint), record.request(task, endpoint)
    if before is not None and record.is_waiting(before, state) and before.command == "run":
        if not is_abort:
            raise DeployError(f"the rollout of {endpoint} has not begun yet", hint="no controller has taken it up")
        _withdraw(store, endpoint, before)
        state = record.read(store.task(), endpoint)
    if state is None or state.rollout.phase == "refused":
        raise DeployError(f"there is no rollout of {endpoint}", hint="`triton-gateway canary run` starts one")
    if state.rollout.is_over:
        raise DeployError(f"the rollout of {endpoint} has ended: {state.rollout.phase} ({state.rollout.why})")
    ask(store, endpoint, wanted)
    until = clock() + (ABORTED_S if is_abort else TAKEN_S)
    while True:
        state = record.read(store.task(), endpoint)
        if not record.is_waiting(wanted, state):
            return state
        is_alone = not election.alive(store.reports, now=clock())
        if state is not None and is_abort and (is_alone or clock() >= until):
            _abort(store, endpoint, state)
            return None
        if is_alone or clock() >= until:
            _withdraw(store, endpoint, wanted)
        if stop(LOOK_S / 2):
            raise DeployError("interrupted; the request waits for the controller")


def _abort(store: record.Store, endpoint: str, state: State) -> None:
    """Give the canary weight 0 and end its mirroring. The request stays: a controller that returns ends the rollout."""
    task, serving = store.task(), record.readable(store.spec())
    ended = steps.after_command(state.rollout, "abort", "", 0.0)
    shares = record.wanted_weights(serving, ended) or {}
    store.write(record.with_weights(task, endpoint, shares), record.mirroring(serving, ended, by=record.CONTROLLER))


def _withdraw(store: record.Store, endpoint: str, wanted: Request) -> None:
    """Take the request back, unless a controller takes it up just now. Raises ``DeployError`` if it was taken back."""
    store.ledger.remove("rollout_request", [endpoint])
    if record.is_waiting(wanted, record.read(store.task(), endpoint)):
        raise DeployError(f"{NOBODY}: the request is withdrawn, nothing was changed", hint=_HINT)


def _nobody(store: record.Store, now: float) -> str:
    leader = election.alive(store.reports, now=now)
    return f"waiting for the controller {leader}" if leader else f"{NOBODY}. {_HINT}"
