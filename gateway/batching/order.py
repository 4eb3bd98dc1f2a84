"""Orders queued entries: by class of priority, then fairly by tenant, then by age. Pure.

A class goes before every less important one. Within a class, the tenant goes first that has had the fewest tokens
(least attained service); within a tenant, the oldest entry. A tenant that sent nothing for some time gets no credit for
that: it starts at the count of the tenants that are served now.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from typing import Final

from gateway.batching.entries import BatchLimits, Entry, R, cut
from gateway.prices import Prices
from gateway.trace import BATCH, Flow

_MAX_TENANTS: Final = 1000
_BATCH_FILL: Final = 1.08
"""Work of class batch may make a call 8 % longer."""


class FairOrder:
    """The tokens that each tenant of one batcher has had."""

    def __init__(self) -> None:
        self._attained: dict[Flow, float] = {}
        self._current: dict[int, float] = {}
        """The tokens of the tenants that are served now, by class."""

    def first(self, waiting: Sequence[Entry[R]], most: int) -> list[Entry[R]]:
        """Return the first ``most`` entries to serve, in order, of ``waiting`` (oldest first)."""
        ahead: dict[Flow, float] = {}
        """The tokens of each tenant up to its next entry."""
        found = []
        for age, entry in enumerate(waiting):
            had = ahead.get(entry.flow)
            if had is None:
                had = self._attained_by(entry.flow)
            found.append((entry.flow.rank, had, age, entry))  # by age: no entry is compared
            ahead[entry.flow] = had + entry.tokens
        return [entry for *_, entry in nsmallest(most, found)]

    def take(self, waiting: Sequence[Entry[R]], limits: BatchLimits, prices: Prices) -> list[Entry[R]]:
        """Choose the entries of the next call, and count their tokens for their tenants.

        Critical entries go first, and default ones fill their call as they would fill any other: calls of a few
        critical rows would waste the servers' time. Class batch joins as long as the call gets at most 8 % longer.
        """
        ordered = self.first(waiting, 2 * limits.max_rows)
        urgent = [entry for entry in ordered if entry.flow.rank != BATCH]
        batch = cut(urgent or ordered, limits, prices)
        rows, longest = sum(entry.count for entry in batch), max(entry.longest for entry in batch)
        most = _BATCH_FILL * prices.expect(rows, rows * longest)
        for entry in ordered[len(urgent) :] if urgent else ():
            more, wider = rows + entry.count, max(longest, entry.longest)
            fits = more <= limits.max_rows and more * wider <= limits.max_padded_tokens and entry.kind == batch[0].kind
            if fits and prices.expect(more, more * wider) <= most:
                batch.append(entry)
                rows, longest = more, wider
        self._count(batch)
        return batch

    def _attained_by(self, flow: Flow) -> float:
        return max(self._attained.get(flow, 0.0), self._current.get(flow.rank, 0.0))

    def _count(self, batch: Sequence[Entry[R]]) -> None:
        had, now = self._attained, self._current
        if len(had) > _MAX_TENANTS:
            self._attained = had = {flow: tokens for flow, tokens in had.items() if tokens > now.get(flow.rank, 0.0)}
        begun = {entry.flow: self._attained_by(entry.flow) for entry in batch}
        for entry in batch:
            flow = entry.flow
            now[flow.rank] = max(now.get(flow.rank, 0.0), begun[flow])
            begun[flow] += entry.tokens
        had.update(begun)
