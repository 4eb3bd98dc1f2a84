"""The plan of a served version, as stored on disk for a restart.

If a new version cannot be built, the version before it stays in service. To survive a restart, ``reconcile`` stores
that earlier version with the last-good state and restores it at start-up, until the new version serves. Pure: values to
JSON and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gateway.control.compile import EndpointPlan
from gateway.registry.cache import model_from
from gateway.spec import ArtifactRef, EndpointSpec, ModelRecord, TensorSpec


@dataclass(frozen=True, slots=True)
class LastGood:
    """The plan of a served version, and its model's record if it has a model."""

    plan: EndpointPlan
    record: ModelRecord | None
    refused: str = ""
    """Fingerprint of the successor that failed on this version's requests; not tried while no request is known."""
    reason: str = ""


def encode(versions: Mapping[str, LastGood]) -> dict[str, Any]:
    """Return the versions, by url, as JSON values."""
    return {url: asdict(one) for url, one in versions.items()}


def decode(stored: object) -> dict[str, LastGood]:
    """Return what ``encode`` was given; an entry that cannot be read is left out."""
    found = {}
    for url, item in stored.items() if isinstance(stored, Mapping) else ():
        try:
            record = model_from(item["record"]) if item["record"] else None
            found[str(url)] = LastGood(_plan(item["plan"]), record, str(item["refused"]), str(item["reason"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return found


def _plan(stored: Mapping[str, Any]) -> EndpointPlan:
    spec = dict(stored["spec"])
    for side in ("inputs", "outputs"):
        spec[side] = tuple(TensorSpec(t["name"], t["dtype"], tuple(t["shape"])) for t in spec[side])
    spec["options"] = tuple((name, value) for name, value in spec["options"])
    spec["preprocess"] = ArtifactRef(**spec["preprocess"]) if spec["preprocess"] else None
    return EndpointPlan(**{**stored, "spec": EndpointSpec(**spec)})
