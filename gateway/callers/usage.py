"""Usage of tenants, from the trace of every request that has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
        tokens, generated = trace.tokens, _generated(trace)
        if trace.charged:
            trace.quota.settle(trace.charged, tokens + generated)
            trace.charged = 0
        if trace.outcome == "ok" or trace.generated_tokens:  # an interrupted stream counts for what it sent
            self._used(caller.tenant, trace.endpoint, tokens, generated)


def _generated(trace: Trace) -> int:
    answer = trace.answer
    if type(answer) is not dict:
        return trace.generated_tokens
    found = answer.get("generated_tokens")
    if found is None and "results" in answer:
        return sum(_number(one.get("generated_tokens")) for one in _mappings(answer["results"]))
    return _number(found)


def _number(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


def _mappings(value: object) -> list[Mapping[str, object]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
