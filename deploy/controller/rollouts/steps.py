"""A rollout as a value, and the functions that move it: an observation or a command in, the next rollout out. Pure.

``carrier`` calls them after every look and for requests. The ``Rollout`` holds all that a controller needs after a
restart, on any machine; its ``history`` holds the decisions and their reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from deploy.controller.plain import plain
from deploy.controller.rollouts.counts import Counts
from deploy.controller.rollouts.gate import DOUBT, THRESHOLD, Gate

Phase = Literal["running", "promoted", "rolled_back", "aborted", "taken_over", "refused"]
State = Literal["waiting", "inconclusive", "holding", "healthy", "over"]
Command = Literal["run", "promote", "abort"]

STEPS: Final = (1.0, 5.0, 25.0, 50.0, 100.0)
"""Shares of the canary, in percent."""
PUT_RIGHT: Final = "put right"
"""The decision to write weights again that somebody has written over."""
_MIRROR_STEPS: Final = 10
"""Step times that the first step lasts at most until enough mirrored answers were compared."""
_UNSEEN: Final = {
    "errors": ("errors of any size", "{:.1%} errors"),
    "labels": ("changes of labels of any size", "label shares changed by {:.0%}"),
    "pairs": ("different answers of any size", "{:.1%} different answers"),
}
"""Test → its faults, in words: if none would have been seen yet, and the smallest that would."""
_MAX_HISTORY: Final = 60
"""Decisions that are kept, the latest ones."""
_FORGOTTEN_S: Final = 3600.0
"""No call of the stock CLI takes this long: weights that were replaced earlier are intended if they appear again."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When a step ends: after ``min_requests`` compared requests of each side, and ``step_s`` seconds.

    ``mirror``: the percentage of stable's requests that the canary also answers while the rollout runs, invisibly to
    callers; 0: none. ``names``: the canary's labels that mean another label of stable (``gateway/metrics/mirrored``).
    """

    min_requests: int = 200
    step_s: float = 60.0
    mirror: float = 0.0
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """One entry of the history: the decision, the weight (percent), the reason and the evidence."""

    at: float
    what: str
    weight: float
    why: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A rollout of ``canary`` beside ``stable`` (urls) under the route ``endpoint``; times are Unix seconds."""

    endpoint: str
    canary: str
    stable: str
    steps: tuple[float, ...] = STEPS
    rules: Rules = field(default_factory=Rules)
    index: int = 0
    phase: Phase = "running"
    state: State = "waiting"
    why: str = ""
    since: float = 0.0
    compared: tuple[int, int] = (0, 0)
    """Requests of canary and stable since this step began."""
    gate: Gate = field(default_factory=Gate)
    handled: str = ""
    """Id of the last request that was carried out."""
    history: tuple[Decision, ...] = ()
    guard: str = ""
    """The controller that looks after it, until ``guarded_until``."""
    guarded_until: float = 0.0
    before: Mapping[str, float] = field(default_factory=dict)
    """The weights that the Task had before the rollout, by url; empty: there was no route."""

    @property
    def weight(self) -> float:
        """The canary's share in percent."""
        if self.phase in ("rolled_back", "aborted", "taken_over", "refused"):
            return 0.0
        return 100.0 if self.phase == "promoted" else self.steps[self.index]

    @property
    def is_over(self) -> bool:
        """True if the rollout has ended."""
        return self.phase != "running"

    @property
    def way_back(self) -> str:
        """The command that returns to the stable version; empty if that answers all already."""
        if self.phase == "promoted":
            return f"triton-gateway default {self.endpoint} {self.stable.removeprefix(f'{self.endpoint}/')}"
        return f"triton-gateway canary abort --endpoint {self.endpoint}" if self.phase == "running" else ""

    def shares(self, weight: float) -> dict[str, float]:
        """Return the weights of a share in percent. The canary comes first: while it grows, it keeps its callers."""
        share = round(weight / 100, 6)
        return {self.canary: share, self.stable: round(1 - share, 6)}

    def replaced(self, now: float) -> list[Mapping[str, float]]:
        """Return the weights that were replaced lately: a slow client that had read them may write them back."""
        earlier = [self.before, *(self.shares(one.weight) for one in self.history)]
        return [old for old, new in zip(earlier, self.history, strict=False) if now - new.at < _FORGOTTEN_S]

    def to_json(self) -> dict[str, Any]:
        """Return everything, for its record, and what gateways show."""
        return {**plain(self), "weight": self.weight, "way_back": self.way_back}


def begun(
    rollout: Rollout, request_id: str, now: float, who: str = "", before: Mapping[str, float] | None = None
) -> Rollout:
    """Return ``rollout`` at its first step; ``before``: the weights that it replaces."""
    why = f"{rollout.canary} beside {rollout.stable}{f', requested by {who}' if who else ''}"
    return _decided(replace(rollout, handled=request_id, since=now, before=before or {}), now, "start", why)


def refused(rollout: Rollout, request_id: str, now: float, why: str) -> Rollout:
    """Return ``rollout``, which never begins."""
    return _ended(replace(rollout, handled=request_id), "refused", now, "refuse", why)


def after_command(rollout: Rollout, command: Command, request_id: str, now: float, who: str = "") -> Rollout:
    """Return ``rollout`` after a person's command. One that it cannot follow is recorded and changes nothing."""
    rollout = replace(rollout, handled=request_id)
    by = f"requested{f' by {who}' if who else ''}"
    if rollout.is_over or command == "run":
        return _decided(rollout, now, f"{command} refused", f"the rollout is {rollout.phase}")
    if command == "abort":
        return _ended(rollout, "aborted", now, "abort", by)
    return _ended(rollout, "promoted", now, "promote", by)


def taken_over(rollout: Rollout, now: float, why: str) -> Rollout:
    """Return ``rollout``, which ends because somebody else changed its weights or removed a version."""
    return _ended(rollout, "taken_over", now, "end", why)


def after_look(rollout: Rollout, canary: Counts, stable: Counts, now: float, *, missing: Sequence[str] = ()) -> Rollout:
    """Return ``rollout`` after one look. This is the only place where a rollout moves without a command.

    ``canary`` and ``stable``: counts since the last look. ``missing``: instances that could not be read.
    """
    gate, compared = rollout.gate.after(canary, stable), rollout.compared
    if canary.requests and stable.requests:
        compared = (compared[0] + canary.requests, compared[1] + stable.requests)
    rollout = replace(rollout, gate=gate, compared=compared)
    if gate.is_bad:
        why = (
            f"{rollout.canary} is worse than {rollout.stable}: {gate.reason()} (evidence {gate.evidence:.3g}, "
            f"threshold {THRESHOLD:g})"
        )
        return _ended(rollout, "rolled_back", now, "roll back", why)
    state, why = _judged(rollout, missing, now)
    rollout = replace(rollout, state=state, why=why)
    if state != "healthy":
        return rollout
    why = (
        f"no fault found in {compared[0]} requests, compared with {compared[1]} of {rollout.stable}; evidence "
        f"{gate.evidence:.3g}; {_undetectable(gate)}"
    )
    if rollout.index + 1 >= len(rollout.steps) or rollout.steps[rollout.index + 1] >= 100:
        return _ended(rollout, "promoted", now, "promote", why)
    grown = replace(rollout, index=rollout.index + 1, since=now, compared=(0, 0), state="waiting",
                    why="")  # fmt: skip
    return _decided(grown, now, "step", why)


def put_right(rollout: Rollout, now: float, why: str) -> Rollout:
    """Return ``rollout`` with an entry in its history: its weights were written again."""
    return _decided(rollout, now, PUT_RIGHT, why)


def _judged(rollout: Rollout, missing: Sequence[str], now: float) -> tuple[State, str]:
    if missing:
        return "holding", f"no data from {', '.join(missing)}"
    most, gate, since = rollout.rules.min_requests, rollout.gate, now - rollout.since
    if min(rollout.compared) < most:
        return (
            "waiting",
            f"compared {rollout.compared[0]} canary and {rollout.compared[1]} stable requests; {most} of each are "
            "needed",
        )
    if gate.evidence >= DOUBT:
        return (
            "inconclusive",
            f"evidence {gate.evidence:.3g}: too much to continue, too little to roll back",
        )
    if (left := rollout.rules.step_s - since) > 0:
        return "waiting", f"no fault found; this step takes {left:.0f} s more"
    left = _MIRROR_STEPS * rollout.rules.step_s - since
    if left > 0 and rollout.index == 0 and gate.other_answers and gate.compared_pairs < most:
        return "waiting", f"no fault found; compared {gate.compared_pairs} mirrored answers, {most} are needed"
    return "healthy", "no fault found"


def _undetectable(gate: Gate) -> str:
    """Return a phrase that says which faults are too small to be detected with the requests so far."""
    seen = ((_UNSEEN[test], least) for test, least in gate.could_see().items())
    words = (none if least is None else some.format(least) for (none, some), least in seen)
    return f"faults smaller than these could not be detected: {', '.join(words)}"


def _ended(rollout: Rollout, phase: Phase, now: float, what: str, why: str) -> Rollout:
    return _decided(replace(rollout, phase=phase, state="over", why=why), now, what, why)


def _decided(rollout: Rollout, now: float, what: str, why: str) -> Rollout:
    decision = Decision(now, what, rollout.weight, why, rollout.gate.describe())
    return replace(rollout, history=(*rollout.history, decision)[-_MAX_HISTORY:])
