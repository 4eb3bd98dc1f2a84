"""What is served and what is not, and why, as JSON values for ``/v1/status``. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from gateway.control.compile import Plan
from gateway.control.version import PendingName, Version
from gateway.path.routing.snapshot import Snapshot

LACKING: Final = "its model is not in Triton"


def of_versions(
    served: Mapping[str, Version], pending: Mapping[str, Version], snapshot: Snapshot,
    lacking: Collection[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return ``endpoints`` (serving versions, each with its successor) and ``pending``.

    A version whose url is in ``lacking`` has no model in Triton now; its state says so.

    ``pending`` holds the versions that do not serve, and the names that stand for such versions only.
    """
    endpoints = []
    for url, version in sorted(served.items()):
        if version.endpoint is None:
            continue
        identity, successor = version.endpoint.identity, pending.get(url)
        endpoints.append({
            "url": url, "endpoint": identity.endpoint, "version": identity.version,
            "state": LACKING if url in lacking else "serving",
            "model_id": identity.model_id, "model_name": identity.model_name, "triton_model": identity.triton_name,
            "pool": identity.pool,
            "fingerprint": identity.fingerprint, "details": dict(identity.details), "since": version.since,
            "prices": version.endpoint.prices,
            "successor": successor.shown() if successor else None,
        })  # fmt: skip
    waiting: dict[str, PendingName | Version] = {
        url: one for url, one in snapshot.pending.items() if isinstance(one, PendingName)
    }
    waiting |= {url: one for url, one in pending.items() if url not in served}
    return {"endpoints": endpoints, "pending": [{"url": url, **one.shown()} for url, one in sorted(waiting.items())]}


def of_plan(plan: Plan | None, snapshot: Snapshot) -> dict[str, Any]:
    """Return the configuration that is followed, and its faults."""
    return {
        "revision": snapshot.revision,
        "spec_revision": plan.spec.revision if plan else None,
        "serving_task": {"id": plan.spec.task_id, "name": plan.spec.name} if plan else None,
        "canaries": {name: canary.shares for name, canary in snapshot.canaries.items()},
        "defaults": dict(snapshot.defaults),
        "faults": [{"subject": fault.subject, "message": fault.message} for fault in snapshot.faults],
    }
