"""Which steps bring Triton from what is observed to what is wanted: pure, total, one model never in another's steps.

Called by ``sync.py`` on every round with fresh observations, so nothing here remembers: a step that failed is planned
again when its time has come. It must never unload what a gateway may still call: a model leaves only after its
replacement is ready and a grace period has passed in which nothing called it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from deploy.modelsync.client import ModelState

ActionKind = Literal["write", "load", "wait_ready", "unload", "remove", "keep"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model that should be served for ``url``; ``recipe`` changes when it would be written differently."""

    name: str
    url: str
    recipe: str
    unload_after: float = 0.0
    """Seconds without a request after which it is unloaded, until somebody asks; 0: never."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A model of ours: on disk, in Triton, and how long ago it was last called.

    ``recipe`` None: nothing is on disk; empty: only why it could not be loaded (``gateway.triton.verdicts``).
    """

    name: str
    url: str = ""
    recipe: str | None = None
    state: ModelState = "absent"
    idle_s: float | None = None
    """Seconds since the last inference; None when there was none, or nobody knows."""
    quiet_s: float = 0.0
    """Seconds since the last inference, or since it was loaded, whichever was later."""
    is_damaged: bool = False
    """Triton calls it ready, but processes that run it are gone: it must be loaded anew."""


@dataclass(frozen=True, slots=True)
class Grace:
    """How long a model that is no longer wanted stays: ``settle_s``, then until it is idle, but not for ever."""

    settle_s: float = 30.0
    idle_s: float = 10.0
    max_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything else a plan depends on."""

    triton_answers: bool = True
    holds_all: bool = False
    """The desired state is not known (yet), or could not be read: nothing is unloaded."""
    held_urls: frozenset[str] = frozenset()
    """Endpoints whose own entry or model record cannot be read now: what serves them stays."""
    busy: frozenset[str] = frozenset()
    """Models whose steps are running."""
    retry_in: Mapping[str, float] = field(default_factory=dict)
    """Seconds until a model that failed may be tried again."""
    unwanted_for: Mapping[str, float] = field(default_factory=dict)
    """Seconds since a model became dispensable (see ``dispensable``)."""
    cold: frozenset[str] = frozenset()
    """Models that were unloaded because nobody called them, and nobody has asked for since."""
    elsewhere: frozenset[str] = frozenset()
    """Endpoints that other Tritons serve now: gateways call these until they have moved over, at most ``max_s``."""
    grace: Grace = Grace()


@dataclass(frozen=True, slots=True)
class Action:
    """One step for one model, and why."""

    kind: ActionKind
    name: str
    reason: str


def dispensable(wanted: Mapping[str, Wanted], observed: Mapping[str, Observed], situation: Situation) -> frozenset[str]:
    """Return the models nobody needs: not wanted, and their endpoint is gone or served by a ready successor."""
    if situation.holds_all:
        return frozenset()
    successors = {w.url: w.name for w in wanted.values()}
    gone: set[str] = set()
    for name, model in observed.items():
        if name in wanted or model.url in situation.held_urls:
            continue
        successor = successors.get(model.url)
        if successor is None or (successor in observed and observed[successor].state == "ready"):
            gone.add(name)
    return frozenset(gone)


def plan(wanted: Mapping[str, Wanted], observed: Mapping[str, Observed], situation: Situation) -> tuple[Action, ...]:
    """Return the steps to take now, what comes first; every wanted or observed model appears, if only to be kept."""
    steps: list[Action] = []
    for name in sorted(wanted):
        steps.extend(_towards(wanted[name], observed.get(name, Observed(name)), situation))
    gone = dispensable(wanted, observed, situation)
    for name in sorted(observed):
        if name not in wanted:
            steps.extend(_away(observed[name], name in gone, situation))
    return tuple(steps)


def _towards(model: Wanted, seen: Observed, situation: Situation) -> list[Action]:
    name = model.name
    if name in situation.busy:
        return [Action("keep", name, "its steps are in progress")]
    # Written anew, a loaded model is loaded again and replaced without a gap.
    is_written = seen.recipe == model.recipe and not seen.is_damaged
    if is_written and seen.state == "ready":
        may_unload = situation.retry_in.get(name, 0.0) <= 0
        if model.unload_after and seen.quiet_s >= model.unload_after and may_unload:
            return [Action("unload", name, f"no request for {seen.quiet_s:.0f} s")]
        return [Action("keep", name, "ready")]
    if is_written and seen.state == "absent" and name in situation.cold:
        return [Action("keep", name, "cold: the next request loads it")]
    if situation.retry_in.get(name, 0.0) > 0:
        return [Action("keep", name, f"failed; next try in {situation.retry_in[name]:.0f} s")]
    steps: list[Action] = []
    if not is_written:
        why = "what Triton loads has changed" if seen.recipe else "not on disk"
        steps.append(Action("write", name, "its processes died" if seen.is_damaged else why))
    if not situation.triton_answers:
        return steps or [Action("keep", name, "Triton does not answer")]
    if is_written and seen.state == "loading":
        return [Action("wait_ready", name, "Triton is loading it")]
    steps.append(Action("load", name, "Triton has not loaded it" if seen.state != "ready" else "written anew"))
    steps.append(Action("wait_ready", name, "before gateways call it"))
    return steps


def _away(seen: Observed, is_dispensable: bool, situation: Situation) -> list[Action]:
    name = seen.name
    if name in situation.busy:
        return [Action("keep", name, "its steps are in progress")]
    if situation.holds_all:
        return [Action("keep", name, "the serving Task has not been read, or cannot be")]
    if seen.url in situation.held_urls or not is_dispensable:
        if seen.url in situation.held_urls:
            why = f"the entry of endpoint {seen.url} cannot be read now"
        else:
            why = f"the next model of {seen.url} is not ready yet"
        # Gateways still call it: a Triton that was restarted needs it as much as what is wanted.
        is_lost = bool(seen.recipe) and seen.state == "absent" and situation.triton_answers
        if is_lost and situation.retry_in.get(name, 0.0) <= 0:
            return [Action("load", name, why), Action("wait_ready", name, "before gateways call it")]
        return [Action("keep", name, why)]
    if not situation.triton_answers:
        return [Action("keep", name, "Triton does not answer")]
    since, grace = situation.unwanted_for.get(name, 0.0), situation.grace
    if since < (grace.max_s if seen.url in situation.elsewhere else grace.settle_s):
        return [Action("keep", name, "not wanted; gateways may still call it")]
    is_called = seen.state == "ready" and seen.idle_s is not None and seen.idle_s < grace.idle_s
    if is_called and since < grace.max_s:
        return [Action("keep", name, "not wanted, but gateways still call it")]
    why = "not wanted" if not is_called else f"not wanted for {grace.max_s:.0f} s, though gateways still call it"
    if situation.retry_in.get(name, 0.0) > 0:
        return [Action("keep", name, f"unloading failed; next try in {situation.retry_in[name]:.0f} s")]
    steps = [] if seen.state in ("absent", "failed") else [Action("unload", name, why)]
    return [*steps, Action("remove", name, why)]
