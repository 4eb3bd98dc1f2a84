"""The right that each HTTP address requires, in one list, and what a caller may see of other endpoints.

If callers must be known, an address without a rule is not answered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from gateway.callers.rights import FEEDBACK, METADATA, METRICS, STATUS, Caller
from gateway.errors import EndpointNotFound, GatewayError, VersionNotFound
from gateway.path.routing import Snapshot

MODELS: Final = "/v2/models"
V1_MODELS: Final = "/v1/models"
TEI: Final = "/tei/"
INFO: Final = "/info"
FEEDBACK_PATH: Final = "/v1/feedback"
OPEN: Final = ""
"""No right is required: probes have no key."""


class Rule(NamedTuple):
    """The required right; ``endpoint``: the endpoint it is required for, if the address names one."""

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
_OF_ENDPOINT: Final = re.compile(r"/v1/endpoints/(.*)/(?:lineage|learned)", re.DOTALL)


def rule_of(path: str) -> Rule | None:
    """Return the rule for an HTTP address that is not for inference; None if there is none."""
    known = _EXACT.get(path)
    if known is not None:
        return Rule(known)
    if found := _OF_ENDPOINT.fullmatch(path):
        return Rule(STATUS, found[1].strip("/"))
    return next((Rule(operation) for beginning, operation in _BEGINNINGS if path.startswith(beginning)), None)


def redacted_for(caller: Caller | None, error: GatewayError) -> GatewayError:
    """Return the error without its hint if ``caller`` may not know every endpoint: hints name other endpoints."""
    if caller is not None and caller.is_restricted and isinstance(error, (EndpointNotFound, VersionNotFound)):
        return type(error)(error.message)
    return error


def snapshot_for(caller: Caller | None, snapshot: Snapshot) -> Snapshot:
    """Return the part of the snapshot that ``caller`` may list. A canary in it may lead to versions outside it."""
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
    """Return the rows of statistics (``name``, ``version``) of endpoints that ``caller`` may use."""
    if caller is None or not caller.is_restricted:
        return list(rows)
    return [row for row in rows if caller.reaches(f"{row['name']}/{row['version']}")]
