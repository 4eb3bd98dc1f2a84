"""The calls of one batcher that are in flight, and the work in them. Pure."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

from gateway.endpoints.class_counts import ClassCounts
from gateway.endpoints.entries import Entry
from gateway.prices import Prices
from gateway.trace import DEFAULT, DEFAULT_FLOW


class CallInFlight:
    """One call and the entries in it. It waits behind ``front`` if all servers were busy when it was sent.

    ``started`` is clock time in seconds; ``padded`` is longest × rows; ``latest`` is the latest deadline of its entries
    in loop time.
    """

    __slots__ = (
        "class_rows", "entries", "follower", "front", "front_ended", "is_begun", "is_vain", "latest", "longest",
        "padded", "rows", "started", "task", "tokens",
    )  # fmt: skip

    def __init__(self, entries: list[Entry[Any]], started: float) -> None:
        self.entries = entries
        self.started = started
        self.class_rows: dict[int, int] = {}
        """Its rows of classes other than default, by rank."""
        self.front: CallInFlight | None = None
        """The call that a server works on before this one."""
        self.front_ended = started
        self.follower: CallInFlight | None = None
        """The call behind this one."""
        self.task: asyncio.Task[None] | None = None
        self.is_begun = False
        """Whether its task has taken its first step."""
        self.is_vain = False
        """Whether nobody waits for it any more."""
        rows = tokens = longest = 0
        latest = -math.inf
        for entry in entries:
            entry.call = self
            entry.queued_ns += int((started - entry.submitted) * 1e9)
            rows += entry.count
            tokens += entry.tokens
            if entry.longest > longest:
                longest = entry.longest
            # Entries have different deadlines: the call runs to the latest, and each entry ends at its own.
            if entry.deadline > latest:
                latest = entry.deadline
            flow = entry.flow
            if flow is not DEFAULT_FLOW and flow.rank != DEFAULT:
                self.class_rows[flow.rank] = self.class_rows.get(flow.rank, 0) + entry.count
        self.rows, self.tokens, self.longest, self.padded = rows, tokens, longest, rows * longest
        self.latest = latest

    def expected_end(self, prices: Prices) -> float:
        """Return the clock time at which this call should end."""
        front_ends = self.front_ended if self.front is None else self.front.expected_end(prices)
        behind = max(front_ends - self.started, 0.0)
        return self.started + prices.queueing * behind + prices.expect(self.rows, self.padded)


class CallsInFlight(ClassCounts):
    """All calls in flight, oldest first.

    ``tokens`` are padded tokens here. Calls to outliers (servers that are too slow to share the load) are kept apart:
    no other call waits behind them, and the counts do not include their rows.
    """

    __slots__ = ("max_running", "outliers", "running")

    def __init__(self) -> None:
        super().__init__()
        self.running: dict[CallInFlight, None] = {}
        self.outliers: dict[CallInFlight, None] = {}
        self.max_running = 0
        """The number of running calls at most."""

    def add(self, call: CallInFlight, servers: float) -> None:
        """Add a call to one of ``servers`` servers; it waits behind the last one if all of them are busy.

        ``servers`` is infinite if no call waits behind another.
        """
        if self.running and len(self.running) >= servers:
            front = call.front = self.last()
            front.follower = call
        self.running[call] = None
        self.rows += call.rows
        self.tokens += call.padded
        if call.class_rows:
            self._count_classes(call, 1)

    def remove(self, call: CallInFlight, now: float) -> bool:
        """Remove a call that ended at ``now``; return True if it was a call to an outlier."""
        is_outlier = call in self.outliers
        if is_outlier:
            del self.outliers[call]
        else:
            del self.running[call]
            self.rows -= call.rows
            self.tokens -= call.padded
            if call.class_rows:
                self._count_classes(call, -1)
        if call.front is not None:
            # It ended before the call that it was expected to wait for.
            call.front.follower, call.front, call.front_ended = None, None, now
        if call.follower is not None:
            call.follower.front, call.follower.front_ended, call.follower = None, now, None
        return is_outlier

    def __iter__(self) -> Iterator[CallInFlight]:
        yield from self.running
        yield from self.outliers

    def entries(self) -> Iterator[Entry[Any]]:
        """Return the entries of all calls; some may have ended."""
        for call in self:
            yield from call.entries

    def last(self) -> CallInFlight:
        """Return the call that the next one would wait behind: the oldest one that has no follower."""
        return next(call for call in self.running if call.follower is None)

    def earliest_end(self, prices: Prices) -> float:
        """Return the clock time at which the first of the running calls should end."""
        return min(call.expected_end(prices) for call in self.running)

    def _count_classes(self, call: CallInFlight, sign: int) -> None:
        for rank, rows in call.class_rows.items():
            self.class_rows[rank] += sign * rows
            self.class_tokens[rank] += sign * rows * call.longest
