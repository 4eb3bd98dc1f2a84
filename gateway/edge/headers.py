"""Every header that callers send or get, and what it means: the reference in `docs/http-api.md` is made of this.

Read by the documentation alone; a test holds it against the names that the code of the edges uses.
"""

from __future__ import annotations

from typing import Final

ASKED: Final = {
    "accept": "`/metrics`: OpenMetrics with exemplars if it is named. A browser's `text/html` gets refusals as a page",
    "authorization": "`Bearer KEY`, or a token of the identity provider; `Basic`, as browsers send it,"
    " with the key as password ([access](access.md))",
    "content-encoding": "`gzip`: the body is unpacked, within the same limit of bytes",
    "content-type": "`application/json` (or none) for JSON",
    "inference-header-content-length": "Open Inference Protocol: the length of the JSON in front of binary tensors",
    "traceparent": "W3C trace context: its trace id is in the log (`trace_id`), calls to Triton carry it, "
    "[spans](tracing.md) hang below it; a call that several requests share carries the first one's. "
    "Such requests take the gateway's ordinary, slightly slower way",
    "x-api-key": "the same key as in `authorization`",
    "x-priority": "`critical`, `default` or `batch`: who is let in and served first [under overload](overload.md)",
    "x-request-id": "your id for the request, at most 128 printable characters; else one is made",
    "x-request-timeout-ms": "how long you are willing to wait, at most `TRITON_GATEWAY_REQUEST_TIMEOUT`",
    "x-route-to": "`endpoint/version`: exactly that version, past the canary; ignored unless "
    "`TRITON_GATEWAY_ALLOW_PINS=true`",
    "x-routing-key": "on a canary: the same key always gets the same version, and keeps the canary while its weight "
    "grows ([more](canary.md#canaries)). `TRITON_GATEWAY_ROUTING_KEY_HEADER` names another header",
}
"""Headers of requests; over gRPC, metadata of the same names."""

ANSWERED: Final = {
    "allow": "405: the methods that the address takes",
    "inference-header-content-length": "Open Inference Protocol: the length of the JSON in front of binary tensors",
    "retry-after": "429, 503, 504: seconds after which to ask again",
    "www-authenticate": "401: how to show a key",
    "x-accel-buffering": "`no` on answers in pieces: a proxy passes each on as it comes",
    "x-compute-time": "milliseconds: everything but waiting",
    "x-content-type-options": "`nosniff` on pages for browsers",
    "x-error-code": "gRPC, trailing: the `code` of the refusal",
    "x-inference-time": "milliseconds: the call to Triton",
    "x-model-id": "ClearML's id of the model of the version that answered",
    "x-queue-time": "milliseconds: waiting for a call to Triton",
    "x-ratelimit-limit": "with `-requests` and `-tokens`: what the tenant may do in a minute "
    "([quotas](access.md#quotas-and-usage))",
    "x-ratelimit-remaining": "with `-requests` and `-tokens`: what is left of it",
    "x-ratelimit-reset": "with `-requests` and `-tokens`: seconds until all of it is there again",
    "x-refused-because": "401, 403, 429, 503, 504: which rule, limit or quota it was",
    "x-request-id": "as sent, or made",
    "x-route": "`direct`, or on a canary `stable`, `canary` or `fallback`, or `pinned`",
    "x-served-by": "the endpoint version that answered, or refused",
    "x-tokenization-time": "milliseconds: parsing and tokenizing, or `preprocess`",
    "x-total-time": "milliseconds: all of it",
}
"""Headers of answers and refusals; over gRPC, trailing metadata of the same names."""
