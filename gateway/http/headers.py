"""Every header that callers send or get, and what it means: the reference in `docs/http-api.md` is made of this.

Read by the documentation alone; a test holds it against the names that the code of the edges uses.
"""

from __future__ import annotations

from typing import Final

ASKED: Final = {
    "accept": "`/metrics`: OpenMetrics with exemplars, if named here. A browser's `text/html`: refusals are pages",
    "authorization": "`Bearer KEY`, or a token of the identity provider; or `Basic`, as browsers send it, "
    "with the key as password ([access](security.md))",
    "content-encoding": "`gzip`: the body is compressed; the size limit also holds after unpacking",
    "content-type": "`application/json`, or none, for JSON",
    "inference-header-content-length": "Open Inference Protocol: bytes of JSON before the binary tensors",
    "traceparent": "W3C trace context: the log (`trace_id`), calls to Triton and [spans](monitoring.md#spans) belong "
    "to this trace. A call that several requests share carries the first request's id",
    "x-api-key": "the same key as in `authorization`",
    "x-priority": "priority class `critical`, `default` or `batch`: which requests are admitted and served first "
    "[under overload](security.md#overload)",
    "x-request-id": "your id for the request, at most 128 printable characters; without it, the gateway makes one",
    "x-request-timeout-ms": "time limit of the request in milliseconds, at most `TRITON_GATEWAY_REQUEST_TIMEOUT`",
    "x-route-to": "`endpoint/version`: send the request to exactly that version, past the canary. It needs "
    "the right `pins`, and is ignored where callers are not known",
    "x-routing-key": "for canaries: requests with the same key get the same version, and stay on the canary while its "
    "weight grows ([more](versions.md#canaries)). `TRITON_GATEWAY_ROUTING_KEY` changes the header's name",
}
"""Headers of requests; over gRPC, metadata of the same names."""

ANSWERED: Final = {
    "allow": "405: the allowed methods",
    "inference-header-content-length": "Open Inference Protocol: bytes of JSON before the binary tensors",
    "retry-after": "429, 503, 504: seconds to wait before a retry",
    "www-authenticate": "401: how to send credentials",
    "x-accel-buffering": "`no` on streamed answers, so that proxies do not buffer them",
    "x-compute-time": "milliseconds: total time without waiting",
    "x-content-type-options": "`nosniff` on pages for browsers",
    "x-error-code": "gRPC trailer: the `code` of the refusal",
    "x-inference-time": "milliseconds: the call to Triton",
    "x-model-id": "ClearML id of the model that answered",
    "x-queue-time": "milliseconds: waiting for a call to Triton",
    "x-ratelimit-limit": "with `-requests` and `-tokens`: the tenant's limit per minute "
    "([quotas](security.md#quotas-and-usage))",
    "x-ratelimit-remaining": "with `-requests` and `-tokens`: what is left of the limit",
    "x-ratelimit-reset": "with `-requests` and `-tokens`: seconds until the whole limit is available again",
    "x-refused-because": "401, 403, 429, 503, 504: the rule, limit or quota that caused the refusal",
    "x-request-id": "the id that you sent, or a generated one",
    "x-route": "how the version was chosen: `direct`, `pinned`, or on a canary `stable`, `canary` or `fallback`",
    "x-served-by": "the endpoint version that answered or refused",
    "x-tokenization-time": "milliseconds: parsing and tokenizing, or `preprocess`",
    "x-total-time": "milliseconds: total time",
}
"""Headers of answers and refusals; over gRPC, trailing metadata of the same names."""
