"""The only map from error kinds to HTTP: status, headers and the JSON body every refusal has.

A test asserts that every class of ``gateway.errors`` has a status here.
"""

from __future__ import annotations

from typing import Final

import orjson

from gateway.errors import GatewayError

STATUS: Final[dict[str, int]] = {
    "bad_request": 400,
    "malformed_body": 400,
    "endpoint_not_found": 404,
    "version_not_found": 404,
    "method_not_allowed": 405,
    "body_timeout": 408,
    "payload_too_large": 413,
    "unsupported_media": 415,
    "input_refused": 422,
    "backend_refused": 422,
    "overloaded": 429,
    "client_gone": 499,
    "internal": 500,
    "hook_failed": 500,
    "control": 500,
    "spec_fault": 500,
    "registry_unavailable": 500,
    "registry_refused": 500,
    "artifact_corrupt": 500,
    "answers_disagree": 500,
    "backend_garbage": 502,
    "model_failed": 502,
    "unavailable": 503,
    "draining": 503,
    "model_not_ready": 503,
    "backend_unavailable": 503,
    "deadline_exceeded": 504,
}

Headers = list[tuple[bytes, bytes]]


def problem(error: GatewayError, request_id: str) -> tuple[int, Headers, bytes]:
    """Return status, extra headers and body for ``error``.

    Body: ``error`` (one sentence), ``code`` (the error's kind), ``request_id``, and ``hint`` where there is something
    the caller can do.
    """
    status = STATUS[error.kind]
    content: dict[str, str] = {"error": error.message, "code": error.kind, "request_id": request_id}
    if error.hint:
        content["hint"] = error.hint
    headers: Headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None or status in (429, 503):
        headers.append((b"retry-after", str(max(1, round(error.retry_after or 1))).encode()))
    if status == 405:
        headers.append((b"allow", b"POST"))
    return status, headers, orjson.dumps(content, default=str)
