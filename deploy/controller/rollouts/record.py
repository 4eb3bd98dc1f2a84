"""The records of a rollout: its state with a lease, commands that people leave for it, decisions, the weights. Pure.

Records are kept beside the serving Task (``gateway/registry/ledger``), where no stock tool writes. There is one per
rollout, written by the holder of the lease. A command has its own record, so a command and a runner never overwrite
each other. The weights are the Task's ``canary`` section, in ClearML's format. Every change of them is a recorded
decision. An old copy that a slow ClearML client writes back is therefore noticed.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from deploy.controller.rollouts.steps import Command, Rollout
from deploy.tools import sections
from deploy.tools.errors import DeployError
from gateway import decisions, registry, spec

Decision = decisions.Decision
Record = registry.Record
ServingTask = spec.ServingTask
Store = registry.RegistryWriter
"""The registry that rollouts are recorded in."""

CANARY: Final = "canary"

_UNREADABLE: Final = ("section canary", "section endpoints", "section model_monitoring_eps")
"""Subjects of faults that leave it unknown which weights the Task has."""

CONTROLLER: Final = "the controller"
"""How the names of controllers begin in leases and decisions."""
LEASE_S: Final = 30.0
"""Seconds for which a runner's lease is valid; it renews the lease three times within them."""
ANY_NUMBERS: Final = 1.0
"""Tolerance of mirrored answers' scores: scores between 0 and 1 never count as different, only labels and texts do."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Who runs a rollout, and until when (Unix seconds) no other runner may take it."""

    holder: str = ""
    until: float = 0.0

    def is_free(self, now: float, me: str) -> bool:
        """Return True if ``me`` may take the lease."""
        return self.holder in ("", me) or now >= self.until


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """A person's command that waits for the runner."""

    id: str
    command: Command
    who: str


def read(task: ServingTask, endpoint: str) -> tuple[Rollout | None, Lease]:
    """Return the rollout of ``endpoint`` and its lease; None if there never was one."""
    stored = spec.records_of(task, spec.ROLLOUT).get(endpoint)
    if stored is None:
        return None, Lease()
    try:
        return Rollout.from_json(stored), Lease(str(stored["lease"]["holder"]), float(stored["lease"]["until"]))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DeployError(
            f"the record of the rollout of {endpoint} cannot be read ({error!r})",
            hint=f"in ClearML, open the Task with the system tag {registry.SYSTEM_TAG} and remove the parameter of "
            f"{endpoint} in its section {spec.ROLLOUT}",
        ) from error


def rollouts(task: ServingTask) -> list[tuple[Rollout, Lease]]:
    """Return every rollout."""
    found = [read(task, endpoint) for endpoint in sorted(spec.records_of(task, spec.ROLLOUT))]
    return [(rollout, lease) for rollout, lease in found if rollout is not None]


def running(task: ServingTask) -> dict[str, Lease]:
    """Return the lease of each rollout that has not ended, by endpoint; a record that cannot be read is left out."""
    found = {}
    for endpoint in sorted(spec.records_of(task, spec.ROLLOUT)):
        with contextlib.suppress(DeployError):
            rollout, lease = read(task, endpoint)
            if rollout is not None and not rollout.is_over:
                found[endpoint] = lease
    return found


def written(rollout: Rollout, lease: Lease) -> registry.Record:
    """Return the record that holds ``rollout``."""
    stored = {**rollout.to_json(), "lease": {"holder": lease.holder, "until": round(lease.until, 1)}}
    return registry.Record("rollout", rollout.endpoint, stored)


def pending_command(task: ServingTask, endpoint: str) -> PendingCommand | None:
    """Return the last command for the rollout of ``endpoint``."""
    stored = spec.records_of(task, "command").get(endpoint)
    try:
        return PendingCommand(str(stored["id"]), stored["command"], str(stored.get("who", ""))) if stored else None
    except (KeyError, TypeError):
        return None


def command(endpoint: str, pending: PendingCommand) -> registry.Record:
    """Return the record that leaves a command."""
    return registry.Record("command", endpoint, {"id": pending.id, "command": pending.command, "who": pending.who})


def decided(
    task: ServingTask, endpoint: str, shares: Mapping[str, float], *, now: float, by: str, why: str
) -> registry.Record:
    """Return the record of a decision about the weights of ``endpoint``, to be written before the weights."""
    new = decisions.decided(
        endpoint, shares, found_weights(task, endpoint), decision(task, endpoint),
        spec.records_of(task, decisions.MARK), revision=uuid.uuid4().hex, now=now, by=by, why=why,
    )  # fmt: skip
    return registry.Record("decision", endpoint, new.to_json())


def decision(task: ServingTask, endpoint: str) -> Decision | None:
    """Return the last decision about the weights of ``endpoint``."""
    return made(task).get(endpoint)


def verdict(task: ServingTask, endpoint: str) -> decisions.Verdict:
    """Return whether the Task has the decided weights; ``changed`` also if nothing was decided."""
    last = decision(task, endpoint)
    if last is None:
        return "changed"
    return spec.judged(_route(task, endpoint), last, spec.records_of(task, decisions.MARK), spec.decode(task).endpoints)


def made(task: ServingTask) -> dict[str, Decision]:
    """Return the last decision about the weights of each endpoint."""
    return decisions.read(spec.records_of(task, decisions.DECISION))


def standings(task: ServingTask) -> list[tuple[Decision, decisions.Verdict, str]] | None:
    """Return each decision, how the weights of the Task compare with it, and those weights in words.

    Empty if nothing was decided; None if the Task cannot be read.
    """
    known = made(task)
    if not known:
        return []
    says = without_decisions(task)
    if any(fault.subject in _UNREADABLE for fault in says.faults):
        return None
    marks = spec.records_of(task, decisions.MARK)
    return [
        (one, spec.judged(route, one, marks, says.endpoints), spec.described_weights(route))
        for one in known.values() for route in [says.canaries.get(one.endpoint)]
    ]  # fmt: skip


def is_retired(task: ServingTask, decision: Decision) -> bool:
    """Return True if it is recorded that somebody has chosen other weights since."""
    return decisions.retired(decision) in spec.records_of(task, decisions.MARK)


def retired(decision: Decision, *, now: float, by: str) -> registry.Record:
    """Return the record that ends ``decision``: somebody has chosen other weights."""
    return _marked(decisions.retired(decision), now, by)


def is_forgotten(decision: Decision, found: str, now: float) -> bool:
    """Return True if ``decision`` replaced the weights ``found`` too long ago for a slow client to write them back."""
    return now - decision.replaced[found] > decisions.FORGOTTEN_S


def meant(decision: Decision, found: str, *, now: float, by: str) -> registry.Record:
    """Return the record that the weights ``found``, which ``decision`` replaced, were set again on purpose."""
    return _marked(decisions.meant(decision, found), now, by)


def _marked(key: str, now: float, by: str) -> registry.Record:
    return registry.Record("decision_mark", key, {"at": round(now, 3), "by": by})


def endpoints(task: ServingTask) -> Mapping[str, spec.EndpointSpec]:
    """Return the endpoint versions of the Task by url."""
    return spec.decode(task).endpoints


def found_weights(task: ServingTask, endpoint: str) -> str:
    """Return the weights that the Task itself has for ``endpoint``, in the form that decisions store."""
    return spec.described_weights(_route(task, endpoint))


def weights(task: ServingTask, endpoint: str) -> dict[str, float] | None:
    """Return the weights of the canary ``endpoint`` in the Task, by url; None if it has no such canary."""
    fields = _canaries(task).get(endpoint)
    if not isinstance(fields, Mapping):
        return None
    urls = [str(url).strip("/") for url in fields.get("load_endpoints") or []]
    return dict(zip(urls, (float(w) for w in fields.get("weights") or []), strict=False))


def with_weights(task: ServingTask, endpoint: str, shares: Mapping[str, float]) -> dict[str, str]:
    """Return the ``canary`` section with the weights of ``endpoint`` replaced; the others stay as they are.

    Without ``shares`` the route is left out.
    """
    canaries = {name: fields for name, fields in _canaries(task).items() if name != endpoint}
    if shares:
        canaries[endpoint] = {
            "endpoint": endpoint, "weights": [float(share) for share in shares.values()],
            "load_endpoints": list(shares),
        }  # fmt: skip
    return {CANARY: sections.render(canaries)}


def is_of_own_name(task: ServingTask, rollout: Rollout) -> bool:
    """Return whether the default version answers the name of ``rollout`` when its canary is removed.

    Not if the name is not that of the versions' endpoint, or if the stable version is the endpoint without a version.
    """
    versions = endpoints(task)
    canary = versions.get(rollout.canary)
    is_free = rollout.endpoint not in versions or rollout.canary == rollout.endpoint
    return canary is not None and canary.endpoint == rollout.endpoint and is_free


def shares_of(rollout: Rollout) -> dict[str, float]:
    """Return the weights that ``rollout`` wants. The canary comes first, so a growing weight keeps its callers."""
    share = round(rollout.weight / 100, 6)
    return {rollout.canary: share, rollout.stable: round(1 - share, 6)}


def _route(task: ServingTask, endpoint: str) -> spec.CanarySpec | None:
    return without_decisions(task).canaries.get(endpoint)


def without_decisions(task: ServingTask) -> spec.ServingSpec:
    """Return the specification in the Task itself, without recorded decisions."""
    return spec.decode(replace(task, records={}))


def section(task: ServingTask, name: str) -> dict[str, Any]:
    """Return a section of the Task, parsed, to be changed. Raises ``DeployError`` if it cannot be read."""
    try:
        return sections.parse(registry.section_text(task, name) or "{}")
    except (sections.Unparsable, sections.Dynamic) as error:
        raise DeployError(
            f"the section {name} of the serving Task cannot be read: {error}", hint="repair the section in ClearML"
        ) from error


def _canaries(task: ServingTask) -> dict[str, Any]:
    return {key.strip("/"): fields for key, fields in section(task, CANARY).items()}


def shadow_of(
    serving: spec.ServingSpec, endpoint: str, to: str, percent: float, tolerance: float, by: str = ""
) -> registry.Record:
    """Return the record that mirrors ``percent`` of the requests of ``endpoint`` to the url ``to``.

    Raises ``SpecFault`` if gateways could not do so with the endpoints of the Task.
    """
    wanted = spec.ShadowSpec(endpoint, to, percent, tolerance)
    spec.check_shadow(wanted, serving.endpoints)
    return shadow(endpoint, wanted, by)


def mirroring(task: ServingTask, rollout: Rollout, *, by: str) -> list[registry.Record]:
    """Return the records that mirror stable's requests while ``rollout`` runs and stop mirroring after it.

    Empty if no change is needed. A shadow that somebody else configured stays: its answers are compared as well.
    """
    if not rollout.rules.mirror:
        return []
    serving = spec.decode(task)
    ours = {
        percent: spec.ShadowSpec(rollout.stable, rollout.canary, percent, ANY_NUMBERS)
        for percent in (rollout.mirror, rollout.rules.mirror, rollout.rules.mirror_first) if percent
    }  # fmt: skip
    stable, found = serving.endpoints.get(rollout.stable), serving.shadows.get(rollout.stable)
    is_ours = found in ours.values()
    if rollout.is_over or stable is None:
        return [shadow(rollout.stable, None, by)] if is_ours else []
    wanted = ours[rollout.mirror]
    is_mirrored = found == wanted or (found is not None and not is_ours) or stable.endpoint in serving.shadows
    return [] if is_mirrored else [shadow(rollout.stable, wanted, by)]


def shadow(endpoint: str, wanted: spec.ShadowSpec | None, by: str = "") -> registry.Record:
    """Return the record that mirrors requests of ``endpoint``, or ends that if ``wanted`` is None. ``by``: who did."""
    stored = {"endpoint": endpoint, "percent": 0} if wanted is None else asdict(wanted)
    return registry.Record("shadow", endpoint, {**stored, **({"by": by} if by else {})})
