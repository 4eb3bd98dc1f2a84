"""A tenant's quota on a request's way in, and what is told of it on its way out."""

from __future__ import annotations

import time

from gateway.call import Headers
from gateway.callers.quotas import Hold, Quota
from gateway.trace import Trace


def hold(trace: Trace, quota: Quota | None, size: int) -> None:
    """Let a request of ``size`` bytes in. Raises ``QuotaExceeded``; what was held is settled with the trace."""
    if quota is not None:
        trace.hold = Hold(quota)  # so that a refusal tells what is left, too
        trace.hold = quota.take(size, time.monotonic())


def quota_left(trace: Trace) -> Headers:
    """Return what the tenant has left, as OpenAI's headers tell it; nothing for one without limits."""
    held = trace.hold
    return held.quota.headers(time.monotonic()) if isinstance(held, Hold) else []


def quota_head(trace: Trace) -> bytes:
    """Return ``quota_left`` as lines of a head."""
    held = trace.hold
    return held.quota.head(time.monotonic()) if isinstance(held, Hold) else b""
