"""Applies a tenant's quota to a request, and reports what is left in the answer's headers."""

from __future__ import annotations

import time

from gateway.call import Headers
from gateway.callers.access import Access
from gateway.callers.quotas import Quota
from gateway.callers.rights import Caller
from gateway.trace import Trace


async def admit(trace: Trace, access: Access, caller: Caller, size: int) -> None:
    """Admit a request that announces ``size`` bytes, before they are read. Raises ``QuotaExceeded``. Its trace settles
    the estimate later.
    """
    quota = access.quota_of(caller)
    if quota is not None:
        trace.quota = quota  # a refusal also reports what is left
        if access.shared_quotas is None:
            trace.charged = quota.admit(size, time.monotonic())
        else:
            trace.charged = await access.shared_quotas.admit(quota, size)


def hold(trace: Trace, quota: Quota | None, size: int) -> None:
    """As ``admit``, where no store of quotas is asked."""
    if quota is not None:
        trace.quota = quota
        trace.charged = quota.admit(size, time.monotonic())


def grow(trace: Trace, size: int) -> None:
    """Count the ``size`` bytes of a body that was announced as smaller or not at all, or unpacked."""
    quota = trace.quota
    if isinstance(quota, Quota):
        trace.charged = quota.grow(trace.charged, size)


def quota_head(trace: Trace) -> bytes:
    """Return OpenAI's ``x-ratelimit`` header lines for the tenant; empty for one without limits."""
    quota = trace.quota
    return quota.head() if isinstance(quota, Quota) else b""


def quota_left(trace: Trace) -> Headers:
    """Return ``quota_head`` as a list of headers."""
    quota = trace.quota
    return quota.headers() if isinstance(quota, Quota) else []
