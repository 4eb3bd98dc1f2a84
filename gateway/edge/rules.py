"""Which right each address asks for, for HTTP and for gRPC: the one list; and what a caller may be told.

An address without a rule is not answered when callers have to be known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from gateway.call import Refuse, Reply
from gateway.callers.rights import FEEDBACK, INFER, METADATA, METRICS, STATUS, Caller
from gateway.dataplane.routing.snapshot import Snapshot
from gateway.edge.http.addresses import INFO, MODELS, TEI, V1_MODELS
from gateway.errors import EndpointNotFound, GatewayError, VersionNotFound

FEEDBACK_PATH: Final = "/v1/feedback"
OPEN: Final = ""
"""No right at all: probes of those that have no key."""


class Rule(NamedTuple):
    """The right that is asked for; ``endpoint`` is what it is asked for, if the address says so."""

    operation: str
    endpoint: str | None = None


_EXACT: Final = {
    "/v2/health/live": OPEN,
    "/v2/health/ready": OPEN,
    "/livez": OPEN,
    "/readyz": OPEN,
    "/healthz": OPEN,
    "/metrics": METRICS,
    "/": STATUS,
    "/v1/status": STATUS,
    "/docs": STATUS,
    "/openapi.json": STATUS,
    "/v2": METADATA,
    FEEDBACK_PATH: FEEDBACK,
    INFO: METADATA,
}
_BEGINNINGS: Final = (
    ("/docs/static/", STATUS), (V1_MODELS, METADATA), (MODELS, METADATA), ("/v2/repository/", METADATA),
    (TEI, METADATA),
)  # fmt: skip
_OF_ENDPOINT: Final = ("/v1/endpoints/", ("/lineage", "/words"))

RPC: Final = {
    "ServerLive": OPEN,
    "ServerReady": OPEN,
    "ServerMetadata": METADATA,
    "ModelReady": METADATA,
    "ModelMetadata": METADATA,
    "ModelConfig": METADATA,
    "ModelStatistics": METADATA,
    "RepositoryIndex": METADATA,
    "ModelInfer": INFER,
    "ModelStreamInfer": INFER,
}
"""What each method of the gRPC service asks for."""

OPERATORS: Final = frozenset({METRICS, STATUS})
"""Rights to what tells of the whole gateway: what an operators' port of its own is for."""


def rule_of(path: str) -> Rule | None:
    """Return the rule for an HTTP address at which nothing is inferred; None if there is none."""
    known = _EXACT.get(path)
    if known is not None:
        return Rule(known)
    start, ends = _OF_ENDPOINT
    if path.startswith(start) and path.endswith(ends):
        return Rule(STATUS, path[len(start) : path.rindex("/")].strip("/"))
    for beginning, operation in _BEGINNINGS:
        if path.startswith(beginning):
            return Rule(operation)
    return None


def told_to(caller: Caller | None, error: GatewayError) -> GatewayError:
    """Return the error as ``caller`` may read it: hints name other endpoints."""
    if caller is not None and caller.is_restricted and isinstance(error, (EndpointNotFound, VersionNotFound)):
        return type(error)(error.message)
    return error


def discreet(refuse: Refuse, caller: Caller) -> Refuse:
    """Return ``refuse`` for what ``caller`` may read; see ``told_to``."""
    if not caller.is_restricted:
        return refuse

    def refuse_discreetly(error: GatewayError, request_id: str) -> Reply:
        return refuse(told_to(caller, error), request_id)

    return refuse_discreetly


def snapshot_for(caller: Caller | None, snapshot: Snapshot) -> Snapshot:
    """Return what ``caller`` may know of the snapshot, to list it; a canary in it may lead to what is not in it."""
    if caller is None or not caller.is_restricted:
        return snapshot
    return replace(
        snapshot,
        endpoints={url: endpoint for url, endpoint in snapshot.endpoints.items() if caller.reaches(url)},
        canaries={path: canary for path, canary in snapshot.canaries.items() if caller.reaches(path)},
        pending={url: pending for url, pending in snapshot.pending.items() if caller.reaches(url)},
        defaults={name: url for name, url in snapshot.defaults.items() if caller.reaches(name)},
        faults=(),
    )


def rows_for(caller: Caller | None, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return those rows of statistics (by ``name`` and ``version``) that ``caller`` may know."""
    if caller is None or not caller.is_restricted:
        return list(rows)
    return [row for row in rows if caller.reaches(f"{row['name']}/{row['version']}")]
