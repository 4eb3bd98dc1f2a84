"""Decides which steps take one model from its observed state to the wanted one. Pure and total.

The loop calls it in every round with fresh observations. It keeps no state: a failed step is planned again when its
back-off has passed. It never unloads a model that a gateway may still call: a model leaves only after its replacement
is ready and a grace period has passed, and when nothing calls it any more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from deploy.sync.client import ModelState
from deploy.sync.follow import Desired
from deploy.sync.settings import Grace

Step = Literal["write", "load", "unload", "remove"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """All that is known of one model in one round; times in seconds."""

    name: str
    url: str
    wanted: str | None = None
    """The recipe that it should be written with; None if the serving Task does not name the model."""
    recipe: str | None = None
    """The recipe that it was written with; None if it is not on disk. One that is not wanted is on disk."""
    state: ModelState = "absent"
    is_damaged: bool = False
    """Triton calls it ready, but processes that run it are gone: it must be loaded again."""
    is_busy: bool = False
    """Its steps are in progress."""
    retry_in: float = 0.0
    """Until it may be tried again after a failure."""
    quiet_s: float = 0.0
    """Since the last inference, or since loading if that was later."""
    unload_after: float = 0.0
    """Time without a request after which it is unloaded until the next request; 0: never."""
    is_cold: bool = False
    """It was unloaded because it got no requests, and has got none since."""
    needed: str = ""
    """Why a model that is not wanted must stay; empty: nothing needs it."""
    unneeded_for: float = 0.0
    has_moved: bool = False
    """Other Tritons serve its endpoint now."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps for one model, in order (none: it stays as it is), and the reason."""

    steps: tuple[Step, ...]
    reason: str


def why_needed(url: str, desired: Desired, ready: Collection[str]) -> str:
    """Return why a model of endpoint ``url`` that is not wanted must stay; empty if its successor, if any, is ready."""
    if not desired.is_readable:
        return "the serving Task cannot be read"
    if url in desired.held_urls:
        return f"the entry of endpoint {url} cannot be read now"
    successor = next((name for name, target in desired.targets.items() if target.url == url), None)
    return "" if successor is None or successor in ready else f"the next model of {url} is not ready yet"


def plan(model: Model, *, triton_answers: bool, grace: Grace) -> Plan:
    """Return the steps to take now."""
    if model.is_busy:
        return Plan((), "its steps are in progress")
    return _wanted(model, triton_answers) if model.wanted is not None else _unwanted(model, triton_answers, grace)


def _wanted(model: Model, triton_answers: bool) -> Plan:
    # If a loaded model is written again, Triton loads it again and replaces it without a gap.
    is_written = model.recipe == model.wanted and not model.is_damaged
    if is_written and model.state == "ready":
        if model.unload_after and model.quiet_s >= model.unload_after and model.retry_in <= 0:
            return Plan(("unload",), f"no request for {model.quiet_s:.0f} s")
        return Plan((), "ready")
    if is_written and model.state in ("absent", "unloading") and model.is_cold:
        return Plan((), "cold: the next request loads it")
    if model.retry_in > 0:
        return Plan((), f"failed; next try in {model.retry_in:.0f} s")
    if not is_written:
        why = "what Triton loads has changed" if model.recipe else "not on disk"
        return Plan(
            ("write", "load") if triton_answers else ("write",), "its processes died" if model.is_damaged else why
        )
    if not triton_answers:
        return Plan((), "Triton does not answer")
    return Plan((), "Triton is loading it") if model.state == "loading" else Plan(("load",), "Triton has not loaded it")


def _unwanted(model: Model, triton_answers: bool, grace: Grace) -> Plan:
    if not triton_answers:
        return Plan((), "Triton does not answer")
    if model.needed:
        # Gateways still call it, so a restarted Triton must load it again like a wanted model.
        return Plan(("load",) if model.state == "absent" and model.retry_in <= 0 else (), model.needed)
    if model.unneeded_for < (grace.move_s if model.has_moved else grace.settle_s):
        return Plan((), "not wanted; gateways may still call it")
    if model.state == "ready" and model.quiet_s < grace.idle_s:
        return Plan((), "not wanted, but gateways still call it")
    if model.retry_in > 0:
        return Plan((), f"unloading failed; next try in {model.retry_in:.0f} s")
    if model.state == "unloading":
        return Plan((), "Triton is unloading it")
    return Plan(("remove" if model.state in ("absent", "failed") else "unload",), "not wanted")
