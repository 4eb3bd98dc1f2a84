"""Versions that are served although the serving Task wants another one by now, as they are kept on disk.

A new version that cannot be built leaves the one before it in service. So that this survives a restart, ``reconcile``
stores the earlier version with the last-good state and builds it again when the process starts; it goes when the new
one serves. Pure: plans to JSON values and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gateway.control.compile import EndpointPlan
from gateway.pace import unhurried
from gateway.spec import ArtifactRef, EndpointSpec, TensorSpec


@dataclass(frozen=True, slots=True)
class Kept:
    """How a served version was planned, and its model's record (fields of the registry) where it has one."""

    plan: EndpointPlan
    record: Mapping[str, Any] | None
    refused: str = ""
    """Fingerprint of the successor that failed on this version's requests: with none at hand it is not tried again."""
    reason: str = ""


def encode(kept: Mapping[str, Kept], pause: Callable[[], None] = unhurried) -> dict[str, Any]:
    """Return kept versions by url as JSON values; ``pause`` is called between them."""
    found = {}
    for url, one in kept.items():
        found[url] = {**asdict(one), "record": one.record}
        pause()
    return found


def decode(stored: object) -> dict[str, Kept]:
    """Return what ``encode`` gave; entries that cannot be read are left out: they only cost what they kept."""
    found = {}
    for url, item in stored.items() if isinstance(stored, Mapping) else ():
        try:
            found[str(url)] = Kept(_plan(item["plan"]), item["record"], str(item["refused"]), str(item["reason"]))
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
