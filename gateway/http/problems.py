"""Renders errors as HTTP: status, headers and JSON body, in the form of each protocol.

A test asserts that every class of ``gateway.errors`` has a status here.
"""

from __future__ import annotations

from typing import Final

import orjson

from gateway.errors import (
    STATUS,
    ControlError,
    EndpointNotFound,
    GatewayError,
    MethodNotAllowed,
    Overloaded,
)
from gateway.path.call import Headers, Reply
from gateway.protocols.tei import NothingSent, WrongModel

_CONTROL: Final = {ControlError.kind, *(error.kind for error in ControlError.__subclasses__())}
FAILURES: Final = tuple(
    kind for kind, status in STATUS.items()
    if (status >= 500 or kind == Overloaded.kind) and kind not in _CONTROL
)  # fmt: skip
"""Kinds of failures that are not the caller's fault."""

_OPENAI_KINDS: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""OpenAI's names for failures by status."""

_TEI_KINDS: Final = {429: "Overloaded", 503: "Unhealthy"}


def problem(error: GatewayError, request_id: str) -> Reply:
    """Return status, extra headers and body for ``error``.

    Body: ``error`` (one sentence), ``code`` (the error's kind), ``request_id``, and ``hint`` if the caller can do
    something about it.
    """
    status = STATUS[error.kind]
    content: dict[str, str] = {"error": error.message, "code": error.kind, "request_id": request_id}
    if error.hint:
        content["hint"] = error.hint
    headers: Headers = [(b"content-type", b"application/json")]
    is_want = status in (429, 503, 504)
    if error.retry_after is not None or is_want:
        headers.append((b"retry-after", str(max(1, round(error.retry_after or 1))).encode()))
    if isinstance(error, MethodNotAllowed) and error.allow:
        headers.append((b"allow", error.allow.encode()))
    if error.because or is_want:
        headers.append((b"x-refused-because", (error.because or error.kind).encode()))
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="triton-gateway"'))
    return Reply(status, headers, orjson.dumps(content, default=str))


def oip_problem(error: GatewayError, request_id: str) -> Reply:
    """Return the refusal as the Open Inference Protocol has it: ``{"error": …}``; a wrong tensor is 400."""
    status, headers, _ = problem(error, request_id)
    return Reply(_plain_status(status), headers, orjson.dumps({"error": error.sentence, "code": error.kind}))


def openai_problem(error: GatewayError, request_id: str) -> Reply:
    """Return the refusal as OpenAI's API has it: ``{"error": {"message", "type", "param", "code"}}``."""
    status, headers, _ = problem(error, request_id)
    status = _plain_status(status)
    kind = _OPENAI_KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = "model_not_found" if error.kind in ("endpoint_not_found", "version_not_found") else error.kind
    content = {"error": {"message": error.sentence, "type": kind, "param": None, "code": code}}
    return Reply(status, headers, orjson.dumps(content))


def nothing_at(path: str) -> EndpointNotFound:
    """Return the error of an address that does not exist."""
    return EndpointNotFound(
        f"nothing is at {ascii(path)[1:-1][:100]}",
        hint="endpoints are listed at / and explained at /docs; the base URL of an OpenAI client ends in /v1",
    )


def tei_problem(error: GatewayError, request_id: str) -> Reply:
    """Return the refusal as Text Embeddings Inference has it: ``{"error": …, "error_type": …}``, with its statuses for
    an empty batch (400) and for what a model failed on or is not made for (424).
    """
    status, headers, _ = problem(error, request_id)
    if isinstance(error, NothingSent):
        status, kind = 400, "Empty"
    elif isinstance(error, WrongModel) or status in (500, 502):
        status, kind = 424, "Backend"
    else:
        kind = _TEI_KINDS.get(status, "Validation" if status < 500 else "Backend")
    return Reply(status, headers, orjson.dumps({"error": error.sentence, "error_type": kind}))


def cohere_problem(error: GatewayError, request_id: str) -> Reply:
    """Return the refusal as Cohere's API has it, ``{"id", "message"}``, and in Jina's word for it, ``detail``."""
    status, headers, _ = problem(error, request_id)
    said = error.sentence
    return Reply(_plain_status(status), headers, orjson.dumps({"id": request_id, "message": said, "detail": said}))


def _plain_status(status: int) -> int:
    return 400 if status == 422 else status
