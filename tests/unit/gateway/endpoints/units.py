"""The decision units of one batcher over fixed prices, with a clock that is set by hand; used by their tests."""

from __future__ import annotations

import math

from gateway.admission import Pressure
from gateway.endpoints.batch_class import BatchClassThrottle
from gateway.endpoints.calls import CallInFlight, CallsInFlight
from gateway.endpoints.capacity import Capacity, OneServer
from gateway.endpoints.deadline_check import DeadlineCheck
from gateway.endpoints.entries import BatchLimits, Entry, Gateways
from gateway.endpoints.entry_queue import EntryQueue
from gateway.endpoints.overload import OverloadControl
from gateway.endpoints.pacing import Pacing
from gateway.endpoints.returns import Returns
from gateway.prices import Prices
from gateway.trace import DEFAULT, DEFAULT_FLOW, Flow
from tests.simulated import Row

MAX_ROWS = 10
TOKENS = 10
"""The tokens of each row."""
CALL_S, ROW_S = 10e-3, 1e-3
FULL_CALL_S = CALL_S + MAX_ROWS * ROW_S
"""A full call takes 20 ms."""


class FixedPrices(Prices):
    """Prices of a call, a row and a token in seconds, learned without any error."""

    def __init__(
        self, queueing: float, calls: int, *, call: float = CALL_S, row: float = ROW_S, token: float = 0.0
    ) -> None:
        super().__init__()
        self._values = [call, row, token, queueing]
        self.calls = calls
        self.spread = 0.0


class Replicas(OneServer):
    """``count`` servers, and an idle outlier that is ``times_slower`` (infinite: there is none)."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.times_slower = math.inf

    @property
    def replicas(self) -> int:
        """See ``Servers.replicas``."""
        return self.count

    @property
    def spare(self) -> float:
        """See ``Servers.spare``."""
        return self.times_slower

    @property
    def has_outliers(self) -> bool:
        """See ``Servers.has_outliers``."""
        return self.times_slower < math.inf


class Units:
    """The units of one batcher, with its queue and its calls.

    ``queueing`` 1: a server works on one call after the other; 0: on several at a time. ``calls``: how many the prices
    were learned from. ``merges_lengths``: a server merges calls of any lengths. ``rule``: see ``Pressure``.
    """

    def __init__(
        self,
        *,
        queueing: float = 1.0,
        calls: int = 100,
        servers: int = 1,
        gateways: int = 1,
        merges_lengths: bool = False,
        rule: str | float = "off",
        max_padded_tokens: int = 10_000,
    ) -> None:
        self.now = 100.0
        """The time of the clock and of the loop, in seconds."""
        self.pressure = Pressure(rule)
        self.servers = Replicas(servers)
        limits = BatchLimits(MAX_ROWS, max_padded_tokens, pressure=self.pressure, gateways=Gateways(gateways),
                             merges_lengths=merges_lengths)  # fmt: skip
        self.queue: EntryQueue[Row] = EntryQueue()
        self.calls = CallsInFlight()
        self.calls.max_running = 2 * servers
        self.capacity = Capacity(FixedPrices(queueing, calls), limits, self.servers)
        shared = self.queue, self.calls, self.capacity
        self.overload = OverloadControl(self.pressure, *shared, self.clock)
        self.deadlines = DeadlineCheck(*shared, self.clock)
        self.batch_class = BatchClassThrottle(*shared, self.clock)
        self.returns = Returns(*shared, self.clock)
        self.pacing = Pacing(*shared, self.clock, self.batch_class, self.overload, self.returns)

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def entry(self, rank: int = DEFAULT, *, tenant: str = "", rows: int = 1, within: float = 60.0) -> Entry[Row]:
        """Return an entry that is not queued."""
        made = Entry([Row(TOKENS)] * rows, self.now + within)
        made.flow = DEFAULT_FLOW if (rank, tenant) == DEFAULT_FLOW else Flow(rank, tenant)
        made.submitted = self.now
        return made

    def enqueue(self, count: int, rank: int = DEFAULT, *, tenant: str = "", within: float = 60.0) -> list[Entry[Row]]:
        """Queue ``count`` entries of one row each, and return them."""
        made = [self.entry(rank, tenant=tenant, within=within) for _ in range(count)]
        for entry in made:
            self.queue.add(entry)
        return made

    def send(self, rows: int, rank: int = DEFAULT) -> CallInFlight:
        """Make a call of ``rows`` rows leave now, and return it."""
        call = CallInFlight([self.entry(rank) for _ in range(rows)], self.now)
        self.batch_class.call_left(call, rank)
        self.calls.add(call, self.servers.replicas)
        self.pacing.call_left(self.now)
        if self.pressure.is_on:
            self.overload.call_left(call)
        return call

    def end(self, call: CallInFlight) -> None:
        """End a call now."""
        rows = self.queue.rows + self.calls.rows
        is_outlier = self.calls.remove(call, self.now)
        self.overload.call_ended(call, rows, is_outlier=is_outlier)
        self.pacing.leave_at = None
        if not is_outlier:
            self.returns.ended(call.rows, self.now)
