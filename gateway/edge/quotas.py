"""A tenant's quota on a request's way in, and what is told of it on its way out."""

from __future__ import annotations

import time

from gateway.call import Headers
from gateway.callers.quotas import Hold, Quota
from gateway.errors import QuotaExceeded
from gateway.trace import Trace


def admit(trace: Trace, quota: Quota | None) -> None:
    """Let a request in before its body is read. Raises ``QuotaExceeded``; what was held is settled with the trace."""
    if quota is not None:
        try:
            trace.hold = quota.admit(time.monotonic())
        except QuotaExceeded:
            trace.hold = Hold(quota)  # so that a refusal tells what is left, too
            raise


def charge(trace: Trace, size: int) -> None:
    """Charge a request that was admitted for the ``size`` bytes of its body. Raises ``QuotaExceeded``."""
    held = trace.hold
    if held is not None and isinstance(held, Hold):
        held.charge(size, time.monotonic())


def hold(trace: Trace, quota: Quota | None, size: int) -> None:
    """Let a request of ``size`` bytes in. Raises ``QuotaExceeded``; what was held is settled with the trace."""
    if quota is not None:
        admit(trace, quota)
        charge(trace, size)


def quota_left(trace: Trace) -> Headers:
    """Return what the tenant has left, as OpenAI's headers tell it; nothing for one without limits."""
    held = trace.hold
    return held.quota.headers() if isinstance(held, Hold) else []


def quota_head(trace: Trace) -> bytes:
    """Return ``quota_left`` as lines of a head."""
    held = trace.hold
    return held.quota.head() if type(held) is Hold else b""
