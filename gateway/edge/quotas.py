"""Applies a tenant's quota to a request, and reports what is left in the answer's headers."""

from __future__ import annotations

import time

from gateway.call import Headers
from gateway.callers.quotas import Quota
from gateway.trace import Trace


def admit(trace: Trace, quota: Quota | None) -> None:
    """Admit a request before its body is read. Raises ``QuotaExceeded``. Its trace settles the estimate later."""
    if quota is not None:
        trace.quota = quota  # a refusal also reports what is left
        quota.admit(time.monotonic())


def charge(trace: Trace, size: int) -> None:
    """Charge a request that was admitted for the ``size`` bytes of its body. Raises ``QuotaExceeded``."""
    quota = trace.quota
    if isinstance(quota, Quota):
        trace.charged = quota.charge(size, time.monotonic())


def hold(trace: Trace, quota: Quota | None, size: int) -> None:
    """Admit and charge a request of ``size`` bytes: ``admit`` and ``charge`` in one step."""
    if quota is not None:
        trace.quota = quota
        trace.charged = quota.admit_and_charge(size, time.monotonic())


def quota_head(trace: Trace) -> bytes:
    """Return OpenAI's ``x-ratelimit`` header lines for the tenant; empty for one without limits."""
    quota = trace.quota
    return quota.head() if isinstance(quota, Quota) else b""


def quota_left(trace: Trace) -> Headers:
    """Return ``quota_head`` as a list of headers."""
    quota = trace.quota
    return quota.headers() if isinstance(quota, Quota) else []
