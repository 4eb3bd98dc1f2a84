"""Decides which steps take Triton from its observed state to the wanted one. Pure and total; models are independent.

The loop calls it in every round with fresh observations. It keeps no state: a failed step is planned again when its
back-off has passed. It never unloads a model that a gateway may still call: a model leaves only after its replacement
is ready and a grace period has passed in which nothing called it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from deploy.sync.client import ModelState

ActionKind = Literal["write", "load", "unload", "remove", "keep"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model to serve for ``url``. ``recipe`` changes if the model would be written differently."""

    name: str
    url: str
    recipe: str
    unload_after: float = 0.0
    """Seconds without a request after which the model is unloaded until the next request; 0: never."""


@dataclass(frozen=True, slots=True)
class Observed:
    """State of one model of ours: on disk, in Triton, and the time of its last call.

    ``recipe`` is None if nothing is on disk.
    """

    name: str
    url: str = ""
    recipe: str | None = None
    state: ModelState = "absent"
    idle_s: float | None = None
    """Seconds since the last inference; None if there was none, or if it is unknown."""
    quiet_s: float = 0.0
    """Seconds since the last inference, or since loading if that was later."""
    is_damaged: bool = False
    """Triton calls it ready, but processes that run it are gone: it must be loaded again."""


@dataclass(frozen=True, slots=True)
class Grace:
    """How long an unwanted model stays: ``settle_s``, then until it is idle, at most ``max_s`` in all.

    A gateway that restarts calls nothing meanwhile, and finds its last good version only if that is still loaded.
    """

    settle_s: float = 30.0
    idle_s: float = 60.0
    max_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything else that a plan depends on."""

    triton_answers: bool = True
    holds_all: bool = False
    """The serving Task has not been read, or cannot be read: nothing is unloaded."""
    held_urls: frozenset[str] = frozenset()
    """Endpoints whose own entry or model record cannot be read now: the models that serve them stay."""
    busy: frozenset[str] = frozenset()
    """Models whose steps are in progress."""
    retry_in: Mapping[str, float] = field(default_factory=dict)
    """Seconds until a failed model may be tried again."""
    unwanted_for: Mapping[str, float] = field(default_factory=dict)
    """Seconds since a model became dispensable (see ``dispensable``)."""
    cold: frozenset[str] = frozenset()
    """Models that were unloaded because they got no requests, and have got none since."""
    elsewhere: frozenset[str] = frozenset()
    """Endpoints that other Tritons serve now. Gateways may call the models here until they have moved, for at most
    ``max_s``.
    """
    grace: Grace = Grace()


@dataclass(frozen=True, slots=True)
class Action:
    """One step for one model, and the reason."""

    kind: ActionKind
    name: str
    reason: str


def dispensable(wanted: Mapping[str, Wanted], observed: Mapping[str, Observed], situation: Situation) -> frozenset[str]:
    """Return the models that are not needed: not wanted, and their endpoint is gone or has a ready successor."""
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
    """Return the steps to take now, in order. Every wanted or observed model appears, if only with ``keep``."""
    steps: list[Action] = []
    for name in sorted(wanted):
        steps.extend(_steps_for_wanted(wanted[name], observed.get(name, Observed(name)), situation))
    gone = dispensable(wanted, observed, situation)
    for name in sorted(observed):
        if name not in wanted:
            steps.extend(_steps_for_unwanted(observed[name], name in gone, situation))
    return tuple(steps)


def _steps_for_wanted(model: Wanted, seen: Observed, situation: Situation) -> list[Action]:
    name = model.name
    if name in situation.busy:
        return [Action("keep", name, "its steps are in progress")]
    # If a loaded model is written again, Triton loads it again and replaces it without a gap.
    is_written = seen.recipe == model.recipe and not seen.is_damaged
    if is_written and seen.state == "ready":
        may_unload = situation.retry_in.get(name, 0.0) <= 0
        if model.unload_after and seen.quiet_s >= model.unload_after and may_unload:
            return [Action("unload", name, f"no request for {seen.quiet_s:.0f} s")]
        return [Action("keep", name, "ready")]
    if is_written and seen.state in ("absent", "unloading") and name in situation.cold:
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
        return [Action("keep", name, "Triton is loading it")]
    return [*steps, Action("load", name, "Triton has not loaded it" if seen.state != "ready" else "written anew")]


def _steps_for_unwanted(seen: Observed, is_dispensable: bool, situation: Situation) -> list[Action]:
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
        # Gateways still call it, so a restarted Triton must load it again like a wanted model.
        is_lost = bool(seen.recipe) and seen.state == "absent" and situation.triton_answers
        if is_lost and situation.retry_in.get(name, 0.0) <= 0:
            return [Action("load", name, why)]
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
    if seen.state == "unloading":
        return [Action("keep", name, "Triton is unloading it")]
    return [Action("remove" if seen.state in ("absent", "failed") else "unload", name, why)]
