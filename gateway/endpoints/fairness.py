"""Whose turn it is among those who wait for a call: priority, then fairness, then age. Pure.

A class of priority goes before every less important one. Inside a class the tenant goes first that has had the fewest
tokens of calls (least attained service); of a tenant, the oldest. A tenant that was away does not come back with a
credit: it begins where those are who are served now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from typing import Final

from gateway.endpoints.entries import BatchLimits, Entry, R, cut
from gateway.prices import Prices
from gateway.trace import BATCH, Flow

_MAX_TENANTS: Final = 1000
_FILLED: Final = 1.08
"""A call may take so many times as long with work of class batch in it."""


class FairOrder:
    """What each tenant has had of the calls of one batcher, in tokens."""

    def __init__(self) -> None:
        self._had: dict[Flow, float] = {}
        self._now: dict[int, float] = {}
        """What those have had who are served now, by class."""

    def first(self, waiting: Sequence[Entry[R]], most: int) -> list[Entry[R]]:
        """Return the first ``most`` of ``waiting`` (the oldest first) in the order in which they are served."""
        lines: dict[Flow, deque[Entry[R]]] = {}
        for entry in waiting:
            line = lines.get(entry.flow)
            if line is None:
                line = lines[entry.flow] = deque()
            line.append(entry)
        # rank, tokens, number (so that nothing else is compared), line
        heap = [(flow.rank, self._of(flow), number, line) for number, (flow, line) in enumerate(lines.items())]
        heapify(heap)
        found: list[Entry[R]] = []
        while heap and len(found) < most:
            rank, had, number, line = heap[0]
            entry = line.popleft()
            found.append(entry)
            if line:
                heapreplace(heap, (rank, had + entry.tokens, number, line))
            else:
                heappop(heap)
        return found

    def take(self, waiting: Sequence[Entry[R]], limits: BatchLimits, prices: Prices) -> list[Entry[R]]:
        """Choose the entries of the next call, and count what their tenants have had.

        The most important class chooses as if it were alone; others fill what is left: class default if it is
        cheaper in this call than in one of its own, class batch if the call takes hardly longer. Calls of a few
        critical rows would take the servers' time from everybody.
        """
        ordered = self.first(waiting, 2 * limits.max_rows)
        rank = ordered[0].flow.rank
        batch = cut([entry for entry in ordered if entry.flow.rank == rank], limits, prices)
        rows, longest = sum(entry.count for entry in batch), max(entry.longest for entry in batch)
        takes = prices.expect(rows, rows * longest)
        most = _FILLED * takes
        for entry in ordered:
            if entry.flow.rank == rank or entry.kind != batch[0].kind:
                continue
            more, wider = rows + entry.count, max(longest, entry.longest)
            if more > limits.max_rows or more * wider > limits.max_padded_tokens:
                continue
            longer = prices.expect(more, more * wider)
            alone = prices.expect(entry.count, entry.count * entry.longest)
            if longer <= (most if entry.flow.rank == BATCH else takes + alone):
                batch.append(entry)
                rows, longest, takes = more, wider, longer
                most = most if entry.flow.rank == BATCH else _FILLED * takes
        self._count(batch)
        return batch

    def _of(self, flow: Flow) -> float:
        return max(self._had.get(flow, 0.0), self._now.get(flow.rank, 0.0))

    def _count(self, batch: Sequence[Entry[R]]) -> None:
        had, now = self._had, self._now
        if len(had) > _MAX_TENANTS:
            self._had = had = {flow: tokens for flow, tokens in had.items() if tokens > now.get(flow.rank, 0.0)}
        begun = {entry.flow: self._of(entry.flow) for entry in batch}
        for entry in batch:
            flow = entry.flow
            now[flow.rank] = max(now.get(flow.rank, 0.0), begun[flow])
            begun[flow] += entry.tokens
        had.update(begun)
