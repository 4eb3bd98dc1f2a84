"""A rollout in the serving Task: its own section with a lease, the commands people leave for it, and the weights. Pure.

One section per rollout, written by whoever holds the lease; commands have a section of their own, so that a command and
a runner never overwrite each other. Both are JSON (which is HOCON): small, and read by nobody but us. The weights are
ClearML's own ``canary`` section, in ClearML's form.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from deploy.controlplane import sections
from deploy.errors import DeployError
from deploy.registry import section_text
from deploy.rollout.steps import Command, Rollout
from gateway.errors import SpecFault
from gateway.metrics import custom
from gateway.routing import canary
from gateway.spec import ROLLOUT, SHADOW, CanarySpec, ServingSpec, ShadowSpec

CANARY: Final = "canary"
_COMMAND: Final = "triton_gateway_command_"

LEASE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Lease:
    """Who runs a rollout and until when (Unix seconds) nobody else may."""

    holder: str = ""
    until: float = 0.0

    def is_free(self, now: float, me: str) -> bool:
        """True when ``me`` may take it."""
        return self.holder in ("", me) or now >= self.until


@dataclass(frozen=True, slots=True)
class Asked:
    """A person's command, waiting to be carried out."""

    id: str
    command: Command
    who: str


def section_of(endpoint: str) -> str:
    """Return the name of the section that holds the rollout of ``endpoint``."""
    return ROLLOUT + _key(endpoint)


def command_section_of(endpoint: str) -> str:
    """Return the name of the section that holds the last command for it."""
    return _COMMAND + _key(endpoint)


def read(task: Mapping[str, Any], endpoint: str) -> tuple[Rollout | None, Lease]:
    """Return the rollout of ``endpoint`` and its lease; None when there never was one."""
    text = section_text(task, section_of(endpoint))
    if not text.strip():
        return None, Lease()
    try:
        stored = json.loads(text)
        return Rollout.from_json(stored), Lease(str(stored["lease"]["holder"]), float(stored["lease"]["until"]))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DeployError(
            f"the record of {endpoint}'s rollout cannot be read ({error!r})",
            hint=f"remove the section {section_of(endpoint)} of the serving Task in ClearML",
        ) from error


def rollouts(task: Mapping[str, Any]) -> list[tuple[Rollout, Lease]]:
    """Return every rollout that can be read."""
    found = []
    for name in sorted(task.get("configuration") or {}):
        if name.startswith(ROLLOUT):
            stored = json.loads(section_text(task, name) or "{}")
            if stored.get("endpoint"):
                rollout, lease = read(task, str(stored["endpoint"]))
                if rollout is not None:
                    found.append((rollout, lease))
    return found


def written(rollout: Rollout, lease: Lease) -> dict[str, str]:
    """Return the section that holds ``rollout``."""
    stored = {**rollout.to_json(), "lease": {"holder": lease.holder, "until": round(lease.until, 1)}}
    return {section_of(rollout.endpoint): json.dumps(stored, indent=1)}


def asked(task: Mapping[str, Any], endpoint: str) -> Asked | None:
    """Return the last command for the rollout of ``endpoint``."""
    text = section_text(task, command_section_of(endpoint))
    try:
        stored = json.loads(text) if text.strip() else {}
        return Asked(str(stored["id"]), stored["command"], str(stored.get("who", ""))) if stored else None
    except (ValueError, KeyError, TypeError):
        return None


def command(endpoint: str, asked: Asked) -> dict[str, str]:
    """Return the section that leaves a command."""
    return {command_section_of(endpoint): json.dumps({"id": asked.id, "command": asked.command, "who": asked.who})}


def weights(task: Mapping[str, Any], endpoint: str) -> dict[str, float] | None:
    """Return the weights of the canary ``endpoint`` by url as the Task has them; None when it has no such canary."""
    fields = _canaries(task).get(endpoint)
    if not isinstance(fields, Mapping):
        return None
    urls = [str(url).strip("/") for url in fields.get("load_endpoints") or []]
    return dict(zip(urls, (float(w) for w in fields.get("weights") or []), strict=False))


def with_weights(task: Mapping[str, Any], endpoint: str, shares: Mapping[str, float]) -> dict[str, str]:
    """Return the ``canary`` section with the weights of ``endpoint`` replaced; the others stay as they are."""
    canaries = {**_canaries(task), endpoint: {
        "endpoint": endpoint, "weights": [float(share) for share in shares.values()], "load_endpoints": list(shares),
    }}  # fmt: skip
    return {CANARY: sections.render(canaries)}


def shares_of(rollout: Rollout) -> dict[str, float]:
    """Return the weights that ``rollout`` wants; the canary first, so that a growing weight keeps its callers."""
    share = round(rollout.weight / 100, 6)
    return {rollout.canary: share, rollout.stable: round(1 - share, 6)}


def check_weights(spec: ServingSpec, endpoint: str, shares: Sequence[tuple[str, float]]) -> None:
    """Raise ``DeployError`` where a gateway could not route by these weights, naming what is wrong."""
    known = ", ".join(sorted(spec.endpoints)) or "none"
    if len({url for url, _ in shares}) != len(shares):
        raise DeployError("a version is named twice", hint="give each version one weight")
    for url, _ in shares:
        if url not in spec.endpoints:
            raise DeployError(f"there is no endpoint {url}", hint=f"the serving Task has {known}")
    try:
        canary.resolve(CanarySpec(endpoint, tuple(w for _, w in shares), tuple(u for u, _ in shares)), spec.endpoints)
    except SpecFault as fault:
        raise DeployError(f"canary {endpoint} {fault.message}") from fault


def check_counted(spec: ServingSpec, urls: Sequence[str], variable: str) -> None:
    """Raise ``DeployError`` where gateways do not count every value of ``variable`` for these versions.

    A sampled variable is counted scaled: it would look like more evidence than there is.
    """
    if variable == custom.LABEL:
        return
    for url in urls:
        declared = custom.declared_for(url, spec.metrics, custom.frequency_of(spec.settings, 1.0))
        if declared is None or not any(v.name == variable and v.type == "enum" for v in declared.variables):
            raise DeployError(
                f"{variable} is no enum variable of {url}",
                hint=f"declare it: clearml-serving metrics add --endpoint {url} --variable-enum {variable}=VALUE …",
            )
        if declared.frequency < 1:
            raise DeployError(
                f"{variable} of {url} is counted for {declared.frequency:.0%} of the requests only",
                hint="declare it with --log-freq 1.0",
            )


def _canaries(task: Mapping[str, Any]) -> dict[str, Any]:
    try:
        parsed = sections.parse(section_text(task, CANARY) or "{}")
    except (sections.Unparsable, sections.Dynamic) as error:
        raise DeployError(
            f"the canary section of the serving Task cannot be read: {error}", hint="repair it in ClearML first"
        ) from error
    return {key.strip("/"): fields for key, fields in parsed.items()}


def shadow(endpoint: str, wanted: ShadowSpec | None) -> dict[str, str]:
    """Return the section that has requests of ``endpoint`` mirrored; None: not any more."""
    stored = {"endpoint": endpoint, "percent": 0} if wanted is None else asdict(wanted)
    return {SHADOW + _key(endpoint): json.dumps(stored)}


def _key(endpoint: str) -> str:
    return hashlib.sha256(endpoint.encode()).hexdigest()[:12]
