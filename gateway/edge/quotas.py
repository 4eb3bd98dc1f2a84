"""A tenant's quota on a request's way in, and what is told of it on its way out."""

from __future__ import annotations

import time

from gateway.call import Headers
from gateway.callers.quotas import Quota
from gateway.trace import Trace


def admit(trace: Trace, quota: Quota | None) -> None:
    """Let a request in before its body is read. Raises ``QuotaExceeded``; what is held is settled with the trace."""
    if quota is not None:
        trace.quota = quota  # a refusal tells what is left, too
        quota.admit(time.monotonic())


def charge(trace: Trace, size: int) -> None:
    """Charge a request that was admitted for the ``size`` bytes of its body. Raises ``QuotaExceeded``."""
    quota = trace.quota
    if isinstance(quota, Quota):
        trace.charged = quota.charge(size, time.monotonic())


def hold(trace: Trace, quota: Quota | None, size: int) -> None:
    """Let a request of ``size`` bytes in: ``admit`` and ``charge`` in one."""
    if quota is not None:
        trace.quota = quota
        trace.charged = quota.let_in(size, time.monotonic())


def quota_head(trace: Trace) -> bytes:
    """Return what the tenant has left, as OpenAI's headers tell it; nothing for one without limits."""
    quota = trace.quota
    return quota.head() if isinstance(quota, Quota) else b""


def quota_left(trace: Trace) -> Headers:
    """Return ``quota_head`` as headers, one by one."""
    quota = trace.quota
    return quota.headers() if isinstance(quota, Quota) else []
