"""The headers of answers to inference requests, and what their own headers ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.errors import RequestError
from gateway.trace import Trace

HeaderList = Sequence[tuple[bytes, bytes]]


_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%bx-request-id: %b\r\nx-route: %b\r\nx-total-time: %.3f\r\n"
    b"x-tokenization-time: %.3f\r\nx-queue-time: %.3f\r\nx-inference-time: %.3f\r\nx-compute-time: %.3f\r\n"
    b"content-length: %d\r\n"
)


def head_of(trace: Trace, endpoint_head: bytes, length: int) -> bytes:
    """Return the whole head of a JSON answer as bytes, without the empty line that ends it."""
    prepare, infer = trace.prepare_ns, trace.infer_ns
    return _HEAD % (
        endpoint_head, trace.request_id.encode(), trace.route.encode(), trace.total_ns * 1e-6, prepare * 1e-6,
        trace.queue_ns * 1e-6, infer * 1e-6, (prepare + infer + trace.finish_ns) * 1e-6, length,
    )  # fmt: skip


def timeout_of(header: bytes, limit: float) -> float:
    """Return the caller's time-out in seconds, at most ``limit``. Raises ``RequestError``."""
    try:
        wanted = int(header) / 1000
    except (ValueError, OverflowError):
        wanted = 0.0
    if wanted <= 0:
        raise RequestError("x-request-timeout-ms must be a whole number of milliseconds above 0")
    return min(wanted, limit)
