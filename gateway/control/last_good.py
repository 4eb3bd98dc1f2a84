"""How a version that serves was planned, as it is kept on disk for a restart.

A new version that cannot be built leaves the one before it in service. So that this survives a restart, ``reconcile``
stores the earlier version with the last-good state and restores it when the process starts; it goes when the new one
serves. Pure: values to JSON and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gateway.control.compile import EndpointPlan
from gateway.pace import unhurried
from gateway.spec import ArtifactRef, EndpointSpec, TensorSpec


@dataclass(frozen=True, slots=True)
class LastGood:
    """How a served version was planned, and its model's record (fields of the registry) if it has one."""

    plan: EndpointPlan
    record: Mapping[str, Any] | None
    refused: str = ""
    """Fingerprint of the successor that failed on this version's requests: with none at hand it is not tried again."""
    reason: str = ""


def encode(versions: Mapping[str, LastGood], pause: Callable[[], None] = unhurried) -> dict[str, Any]:
    """Return versions by url as JSON values; ``pause`` is called between them."""
    found = {}
    for url, one in versions.items():
        found[url] = {**asdict(one), "record": one.record}
        pause()
    return found


def decode(stored: object) -> dict[str, LastGood]:
    """Return what ``encode`` gave; an entry that cannot be read is left out: only its own version is lost."""
    found = {}
    for url, item in stored.items() if isinstance(stored, Mapping) else ():
        try:
            found[str(url)] = LastGood(_plan(item["plan"]), item["record"], str(item["refused"]), str(item["reason"]))
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
