"""What is written about a rollout: a person's request, the rollout itself, the weights in the serving Task. Pure.

Request and rollout are one record per endpoint each, beside the serving Task (``gateway/registry/ledger``), where no
stock tool writes. People write requests, by commands; only the controller writes rollouts. The weights are the Task's
``canary`` section, in ClearML's format.

The stock CLI reads the whole Task, works, and writes all of it back. So if exactly weights come back that a rollout has
replaced, a slow client wrote an old copy, and they are put right. All other weights are somebody's will.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from deploy.controller import plain
from deploy.controller.rollouts.steps import Command, Rollout
from deploy.tools import sections
from deploy.tools.errors import DeployError
from gateway import hocon, registry, spec
from gateway.registry import Record
from gateway.spec import ServingTask

CANARY: Final = "canary"
CONTROLLER: Final = "the controller"
"""Who decides about rollouts, in records and in the history."""
_UNREADABLE: Final = ("section canary", "section endpoints", "section model_monitoring_eps")
"""Subjects of faults that leave it unknown which weights the Task has."""
ANY_NUMBERS: Final = 1.0
"""Tolerance of mirrored answers' scores: scores between 0 and 1 never count as different, only labels and texts do."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asks for. ``rollout``: what to begin, of the command ``run``."""

    id: str
    command: Command
    who: str
    rollout: Rollout | None = None


def rollouts(task: ServingTask) -> dict[str, Rollout]:
    """Return every rollout by endpoint; raises ``DeployError`` if one cannot be read."""
    found = {endpoint: read(task, endpoint) for endpoint in sorted(spec.records_of(task, spec.ROLLOUT))}
    return {endpoint: rollout for endpoint, rollout in found.items() if rollout is not None}


def read(task: ServingTask, endpoint: str) -> Rollout | None:
    """Return the rollout of ``endpoint``; None if there is none. Raises ``DeployError``."""
    stored = raw(task, endpoint)
    if stored is None:
        return None
    try:
        return plain.read(Rollout, stored)
    except ValueError as error:
        raise DeployError(
            f"the record of the rollout of {endpoint} cannot be read ({error!r})",
            hint=f"in ClearML, open the Task with the system tag {registry.SYSTEM_TAG} and remove the parameter of "
            f"{endpoint} in its section {spec.ROLLOUT}",
        ) from error


def raw(task: ServingTask, endpoint: str) -> Mapping[str, Any] | None:
    """Return the rollout of ``endpoint`` as it is stored."""
    return spec.records_of(task, spec.ROLLOUT).get(endpoint)


def stored(rollout: Rollout) -> Record:
    """Return the record of ``rollout``."""
    return Record("rollout", rollout.endpoint, rollout.to_json())


def requests(task: ServingTask) -> list[str]:
    """Return the endpoints for whose rollouts something was asked."""
    return sorted(spec.records_of(task, spec.ROLLOUT_REQUEST))


def request(task: ServingTask, endpoint: str) -> Request | None:
    """Return the last request for ``endpoint``; None if there is none, or it cannot be read."""
    found = spec.records_of(task, spec.ROLLOUT_REQUEST).get(endpoint)
    try:
        return plain.read(Request, found) if found else None
    except ValueError:
        return None


def asked(endpoint: str, wanted: Request) -> Record:
    """Return the record that asks for something."""
    return Record("rollout_request", endpoint, plain.plain(wanted))


def is_waiting(wanted: Request | None, rollout: Rollout | None) -> bool:
    """Return whether ``wanted`` has not been carried out yet."""
    return wanted is not None and (rollout is None or rollout.handled != wanted.id)


# --- weights ----------------------------------------------------------------------------------------------------------


def readable(serving: spec.ServingSpec) -> spec.ServingSpec:
    """Return ``serving``. Raises ``DeployError`` if it leaves unknown which weights the Task has."""
    for fault in serving.faults:
        if fault.subject in _UNREADABLE:
            raise DeployError(f"the serving Task cannot be read: {fault.subject} {fault.message}")
    return serving


def weights(serving: spec.ServingSpec, endpoint: str) -> dict[str, float] | None:
    """Return the weights of the canary ``endpoint``, by url; None if the Task has no such canary."""
    route = serving.canaries.get(endpoint)
    return None if route is None else dict(zip(route.load_endpoints, route.weights, strict=False))


def with_weights(task: ServingTask, endpoint: str, shares: Mapping[str, float]) -> dict[str, str]:
    """Return the ``canary`` section with the weights of ``endpoint`` replaced; the others stay as they are.

    Without ``shares`` the route is left out.
    """
    canaries = {name: fields for name, fields in section(task, CANARY).items() if name.strip("/") != endpoint}
    if shares:
        canaries[endpoint] = {
            "endpoint": endpoint, "weights": [float(share) for share in shares.values()],
            "load_endpoints": list(shares),
        }  # fmt: skip
    return {CANARY: sections.render(canaries)}


def wanted_weights(serving: spec.ServingSpec, rollout: Rollout) -> dict[str, float] | None:
    """Return the weights that ``rollout`` wants; empty: no route. None: it was refused or taken over, and wants none.

    A canary of the endpoint's own name that was promoted is removed: its version is the default from then on.
    """
    if rollout.phase in ("refused", "taken_over"):
        return None
    if rollout.phase == "promoted" and is_of_own_name(serving, rollout):
        return {}
    return rollout.shares(rollout.weight)


def is_of_own_name(serving: spec.ServingSpec, rollout: Rollout) -> bool:
    """Return whether the default version answers the name of ``rollout`` when its canary is removed.

    Not if the name is not that of the versions' endpoint, or if the stable version is the endpoint without a version.
    """
    canary = serving.endpoints.get(rollout.canary)
    is_free = rollout.endpoint not in serving.endpoints or rollout.canary == rollout.endpoint
    return canary is not None and canary.endpoint == rollout.endpoint and is_free


def are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Compare weights normalised, as gateways do; versions of weight 0 may be missing. Empty: there is no route."""
    if not one or not other:
        return not one and not other
    shares = [{u: float(w) / (sum(map(float, of.values())) or 1.0) for u, w in of.items()} for of in (one, other)]
    return all(abs(shares[0].get(url, 0.0) - shares[1].get(url, 0.0)) < 1e-4 for url in {*one, *other})


def section(task: ServingTask, name: str) -> dict[str, Any]:
    """Return a section of the Task, parsed, to be changed. Raises ``DeployError`` if it cannot be read."""
    try:
        return hocon.parse(task.sections.get(name, "") or "{}")
    except hocon.Unreadable as error:
        raise DeployError(
            f"the section {name} of the serving Task cannot be read: {error}", hint="repair the section in ClearML"
        ) from error


# --- shadows ----------------------------------------------------------------------------------------------------------


def shadow_of(
    serving: spec.ServingSpec, endpoint: str, to: str, percent: float, tolerance: float, by: str = ""
) -> Record:
    """Return the record that mirrors ``percent`` of the requests of ``endpoint`` to the url ``to``.

    Raises ``SpecFault`` if gateways could not do so with the endpoints of the Task.
    """
    wanted = spec.ShadowSpec(endpoint, to, percent, tolerance)
    spec.check_shadow(wanted, serving.endpoints)
    return shadow(endpoint, wanted, by)


def mirroring(serving: spec.ServingSpec, rollout: Rollout, *, by: str) -> list[Record]:
    """Return the records that mirror stable's requests while ``rollout`` runs and stop mirroring after it.

    Empty if no change is needed. A shadow that somebody else configured stays: its answers are compared as well.
    """
    if not rollout.rules.mirror or rollout.phase == "refused":
        return []
    ours = spec.ShadowSpec(rollout.stable, rollout.canary, rollout.rules.mirror, ANY_NUMBERS)
    stable, found = serving.endpoints.get(rollout.stable), serving.shadows.get(rollout.stable)
    if rollout.is_over or stable is None:
        return [shadow(rollout.stable, None, by)] if found == ours else []
    is_mirrored = found is not None or stable.endpoint in serving.shadows
    return [] if is_mirrored else [shadow(rollout.stable, ours, by)]


def shadow(endpoint: str, wanted: spec.ShadowSpec | None, by: str = "") -> Record:
    """Return the record that mirrors requests of ``endpoint``, or ends that if ``wanted`` is None. ``by``: who did."""
    value = {"endpoint": endpoint, "percent": 0} if wanted is None else asdict(wanted)
    return Record("shadow", endpoint, {**value, **({"by": by} if by else {})})
