"""The calls in flight of one batcher, and how much is queued and in hand. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from gateway.batching.entries import Entry
from gateway.prices import Prices
from gateway.trace import CLASSES, Flow


class OneServer:
    """A single server; for calls that name no servers."""

    replicas = 1


class CallInFlight:
    """One call and the entries in it. It waits behind ``front`` if all servers were busy when it was sent.

    ``started`` is clock time in seconds; ``padded`` is longest × rows; ``latest`` is the latest deadline of its entries
    in loop time.
    """

    __slots__ = (
        "entries", "front", "front_ended", "latest", "padded", "rows", "started", "task", "tokens",
    )  # fmt: skip

    def __init__(self, entries: list[Entry[Any]], started: float) -> None:
        self.entries = entries
        self.started = self.front_ended = started
        self.front: CallInFlight | None = None
        self.task: asyncio.Task[None] | None = None
        for entry in entries:
            entry.call = self
            entry.queued_ns += int((started - entry.submitted) * 1e9)
        self.rows = sum([entry.count for entry in entries])
        self.tokens = sum([entry.tokens for entry in entries])
        self.padded = self.rows * max([entry.longest for entry in entries])
        # Entries have different deadlines: the call runs to the latest, and each entry ends at its own.
        self.latest = max([entry.deadline for entry in entries])

    def expected_end(self, prices: Prices) -> float:
        """Return the clock time at which this call should end."""
        front_ends = self.front_ended if self.front is None else self.front.expected_end(prices)
        behind = max(front_ends - self.started, 0.0)
        return self.started + prices.queueing * behind + prices.expect(self.rows, self.padded)


class Load:
    """Rows and tokens by rank of their class, and rows by tenant."""

    __slots__ = ("_by_tenant", "rows", "tokens")

    def __init__(self) -> None:
        self.rows = [0] * len(CLASSES)
        self.tokens = [0] * len(CLASSES)
        self._by_tenant: dict[Flow, int] = {}

    def add(self, entry: Entry[Any]) -> None:
        """Count an entry."""
        flow = entry.flow
        self.rows[flow.rank] += entry.count
        self.tokens[flow.rank] += entry.tokens
        if flow.tenant:
            self._by_tenant[flow] = self._by_tenant.get(flow, 0) + entry.count

    def remove(self, entries: Iterable[Entry[Any]]) -> None:
        """Count entries no more."""
        for entry in entries:
            flow = entry.flow
            self.rows[flow.rank] -= entry.count
            self.tokens[flow.rank] -= entry.tokens
            if flow.tenant:
                self._by_tenant[flow] -= entry.count
                if not self._by_tenant[flow]:
                    del self._by_tenant[flow]

    def has_less(self, rank: int, tenant: str) -> bool:
        """Return whether a tenant has less than its share of the rows of its class; those without one share as one."""
        rows, total = [rows for flow, rows in self._by_tenant.items() if flow.rank == rank], self.rows[rank]
        sharing = len(rows) + (sum(rows) < total)
        return self._by_tenant.get(Flow(rank, tenant), 0) * sharing < total

    def up_to(self, rank: int) -> tuple[int, int]:
        """Return the rows and tokens of a class and of all more important ones."""
        return sum(self.rows[: rank + 1]), sum(self.tokens[: rank + 1])
