"""Usage of tenants, from the trace of every request that has ended."""

from __future__ import annotations

from collections.abc import Callable

from gateway.callers.rights import Caller
from gateway.trace import Trace

Used = Callable[[str, str, int, int], None]
"""``used(tenant, endpoint, tokens in, tokens out)``: one request that was answered, whole or in part."""


class Usage:
    """Settles quotas and counts usage; a listener of the data plane."""

    def __init__(self, used: Used) -> None:
        self._used = used

    def finished(self, trace: Trace) -> None:
        """Settle the quota of a request that has ended, and count its tokens."""
        caller = trace.caller
        if type(caller) is not Caller:
            return
        tokens, generated = trace.tokens, trace.generated_tokens
        if trace.charged:
            trace.quota.settle(trace.charged, tokens + generated)
            trace.charged = 0
        if trace.outcome == "ok" or generated:  # an interrupted stream counts for what it sent
            self._used(caller.tenant, trace.endpoint, tokens, generated)
