"""Admission control of one batcher: how much work may be in hand, and which requests are refused beyond that.

Pure: it decides, the batcher refuses. Four rules:

- **Limit.** At most ``max_work`` seconds of work are in hand (``work_limit``), while the limit is in force
  (``Pressure``).
- **Window.** At a server that works on one call after the other, requests of class default are admitted only shortly
  before the next call needs them (``admission_window``). They then wait less.
- **Fairness.** A tenant that has less than its share of the work in hand may exceed the limit a little. While there is
  such a tenant, calls are a little smaller (``Capacity.shorten_calls``), so that it waits less behind the others.
- **Newest first.** If work builds up and it is not yet sure that this is an overload, the newest requests leave first
  for up to 0.7 s. If the overload goes on, the oldest are refused, and no answer was late in the meantime.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

from gateway.admission import CEILINGS, Pressure
from gateway.endpoints.admission_window import AdmissionWindow
from gateway.endpoints.calls import CallInFlight, CallsInFlight
from gateway.endpoints.capacity import Capacity
from gateway.endpoints.entries import Entry
from gateway.endpoints.entry_queue import EntryQueue
from gateway.endpoints.work_limit import MIN_S, WorkLimit
from gateway.trace import BATCH, DEFAULT, Flow

_FAIR_EXCESS: Final = 1.25
"""A tenant with less than its share is admitted until the work in hand is 1.25 times the limit."""
_SHARES_S: Final = 5e-3
"""The shares of tenants are counted every 5 ms at most."""
_SHORTER_S: Final = 1.0
"""Calls are smaller until 1 s after a tenant with less than its share was admitted beyond the limit."""
_BUILD_UP: Final = 1.25
"""Work may be building up once it is 1.25 times what the limit would admit ..."""
_BUILD_UP_CALLS: Final = 0.2
"""... and has grown by a fifth of a full call since the last call ended."""
_NEWEST_FIRST_S: Final = 1.5
"""Seconds after which the oldest requests leave first again. A version that starts under overload needs 32 calls before
its limit can be in force: 1.7 s with calls of 54 ms. At three times the capacity (simulated) 8 % of the answers took
over 0.5 s with 0.7 s here, less than 1 % with 1.5 s.
"""
_FIRST_LEAD: Final = 0.6
"""When the limit comes into force, the window opens 60 % of a call's time before the next call is needed."""
_FULL: Final = 0.9
"""A call is full from 90 % of its limits on; so is the work in hand from 90 % of its limit on."""
_MAX_SHARED_CALLS: Final = 2.1
"""While calls are split, the limit is 2.1 full calls: one at the server, the next one, and some that is late. The same
before several servers that merge calls: not all of them have equally much.
"""
_MAX_MERGED_CALLS: Final = 1.7
"""Before one server that merges small calls, 1.7 full calls keep it busy."""


class OverloadControl:
    """The admission control of one batcher."""

    __slots__ = (
        "_calls", "_calm_at", "_capacity", "_clock", "_is_growing", "_opens_at", "_queue", "_rows_at_last_end",
        "_shares", "_shares_until", "_shorter_until", "_window", "is_in_force", "limit", "pressure",
    )  # fmt: skip

    def __init__(
        self,
        pressure: Pressure,
        queue: EntryQueue[Any],
        calls: CallsInFlight,
        capacity: Capacity,
        clock: Callable[[], float],
    ) -> None:
        self.pressure = pressure
        """Whether the limit should be in force."""
        self.is_in_force = pressure.is_on
        """What ``pressure`` said at the last ``switch``."""
        self._queue = queue
        self._calls = calls
        self._capacity = capacity
        self._clock = clock
        self.limit = WorkLimit(capacity.prices, capacity.limits)
        self._window = AdmissionWindow()
        self._opens_at: float | None = None
        """Clock time at which the window opens; None if it was not computed since the calls changed."""
        self._shares: Counter[Flow] = Counter()
        """Rows in hand by flow, as last counted; kept only while requests would be refused."""
        self._shares_until = -math.inf
        """Clock time until which the shares need not be counted again."""
        self._shorter_until = -math.inf
        """Clock time until which calls are smaller for the sake of a tenant with less than its share."""
        self._calm_at = math.inf
        """Clock time at which work was last not building up."""
        self._rows_at_last_end = 0
        self._is_growing = False
        """Whether clearly more rows were in hand when the last call ended than when the one before it did."""

    # --- how much is in hand, and how much may be ---------------------------------------------------------------------

    @property
    def work(self) -> float:
        """The work in hand, queued and in calls: seconds of one server's time."""
        queue, calls = self._queue, self._calls
        return self.limit.work(queue.rows + calls.rows, queue.tokens + calls.tokens)

    def work_up_to(self, rank: int) -> float:
        """Return the work in hand of a class and of all more important ones, in seconds of one server's time."""
        queue, calls = self._queue, self._calls
        return self.limit.work(
            queue.rows_up_to(rank) + calls.rows_up_to(rank), queue.tokens_up_to(rank) + calls.tokens_up_to(rank)
        )

    @property
    def max_work(self) -> float:
        """The limit of work, in seconds of one server's time; infinite while it is not known."""
        fixed, servers = self.pressure.fixed, self._capacity.servers.replicas
        if fixed:
            return fixed * servers
        if self._capacity.is_split or self._capacity.is_merged:
            return self._shared_work(servers)
        # Several servers can all be busy before a request has to be refused. One server is busy with as many calls as
        # it works on at a time.
        return self.limit.most(
            self._capacity.concurrency if servers == 1 else servers * self._capacity.limits.max_in_flight
        )

    def _shared_work(self, servers: int) -> float:
        """Return the limit while servers merge calls of several gateways: this gateway's share of the calls that the
        servers work on and of the next ones.

        It is not found by trying: a gateway with more in hand has more answers only because others have fewer.
        """
        queue, calls, capacity = self._queue, self._calls, self._capacity
        limits = capacity.limits
        rows, tokens = queue.rows + calls.rows, queue.tokens + calls.tokens
        per_row = tokens / rows if rows else 1.0
        full = min(limits.max_rows, limits.max_padded_tokens / max(per_row, 1.0))
        call = (self.limit.per_row + self.limit.per_token * per_row) * full
        if not capacity.is_merged:
            return _MAX_SHARED_CALLS * call  # of a share each
        share = _MAX_MERGED_CALLS if servers == 1 else _MAX_SHARED_CALLS
        return max(share * call, MIN_S) * servers / limits.gateways.count

    @property
    def _whole_limit(self) -> float:
        """The limit as if this gateway got all requests: an overload cannot be told from an unequal share below it."""
        capacity = self._capacity
        return self.max_work * (capacity.full_limits.gateways.count if capacity.is_merged else 1)

    def is_at(self, share: float, rank: int = BATCH) -> bool:
        """Return whether the limit is in force, and the work of a class and above is a share of it or more."""
        return self.pressure.is_on and self.work_up_to(rank) >= self.max_work * share

    # --- a request arrives --------------------------------------------------------------------------------------------

    def is_full(self, rank: int, tenant: str) -> bool:
        """Return whether a request of a class must be refused.

        Work of less important classes does not count, because it is served later.
        """
        if not (self.is_at(CEILINGS[rank], rank) or (rank == DEFAULT and self._is_window_closed())):
            return False
        return not (
            tenant and not self.is_at(_FAIR_EXCESS * CEILINGS[rank], rank) and self._has_less(Flow(rank, tenant))
        )

    def admitted(self, entry: Entry[Any]) -> None:
        """Count an admitted entry for its tenant."""
        if entry.flow.tenant and self.pressure.is_on:
            self._shares[entry.flow] += entry.count

    def _is_window_closed(self) -> bool:
        capacity = self._capacity
        if not (self.pressure.is_on and self._calls.running and capacity.is_serial) or capacity.is_merged:
            return False
        now = self._clock()
        if self._opens_at is None:
            self._opens_at = self._capacity.expected_end(self._calls.last()) - self._window.lead
        if now < self._opens_at:
            return True
        if len(self._calls.running) < self._calls.max_running and self.is_at(_FULL, DEFAULT):
            self._window.filled(now)
        return False

    def _has_less(self, flow: Flow) -> bool:
        """Return whether a tenant has less than its share of the work in hand of its class."""
        shares, now = self._shares, self._clock()
        if now >= self._shares_until:
            self._shares_until = now + _SHARES_S
            shares.clear()
            for entry in chain(self._queue.all_entries(), self._calls.entries()):
                shares[entry.flow] += entry.count
        own, each = shares[flow], [rows for of, rows in shares.items() if of.rank == flow.rank]
        # While the window is closed, less is in hand than will be.
        expected_growth = max(self.max_work / max(self.work_up_to(flow.rank), 1e-9), 1.0)
        has_less = not own or own * len(each) < sum(each) * expected_growth
        if has_less and len(each) + (not own) > 1:
            self._shorter_until = now + _SHORTER_S
        return has_less

    # --- the limit comes into force, or ends --------------------------------------------------------------------------

    def switch(self) -> list[Entry[Any]]:
        """Put the limit into force or lift it, as ``pressure`` says; return queued entries to refuse.

        The entries are the oldest of class default, as far as the work in hand exceeds the limit: otherwise all others
        would be answered as late as they. More important entries, and those of class batch, stay.
        """
        is_on = self.is_in_force = self.pressure.is_on
        self._opens_at = None
        self.split_calls(is_on=is_on)
        self._window.lead = _FIRST_LEAD * self.limit.floor if is_on else math.inf
        return self._excess() if is_on else []

    def split_calls(self, *, is_on: bool) -> None:
        """See ``Capacity.split_calls``."""
        self._capacity.split_calls(is_on=is_on)
        if not is_on:
            self._capacity.lengthen_calls()
        self.limit.limits = self._capacity.limits

    def _excess(self) -> list[Entry[Any]]:
        excess = self.work_up_to(DEFAULT) - self.max_work
        if excess > 0 and self._capacity.is_serial:
            # Requests that arrive while the window is open will fill the next call.
            excess = math.inf if self._calls.running else self.work_up_to(DEFAULT) - self.limit.floor
        found: list[Entry[Any]] = []
        for entry in self._queue.entries:
            if excess <= 0:
                break
            if entry.flow.rank == DEFAULT:
                excess -= self.limit.work(entry.count, entry.tokens)
                found.append(entry)
        return found

    # --- calls leave and end ------------------------------------------------------------------------------------------

    def is_newest_first(self) -> bool:
        """Return whether the newest entries leave first: work builds up, but the limit is not in force yet."""
        pressure, queue, calls, limit = self.pressure, self._queue, self._calls, self.limit
        # ``max_work`` is never less than this, and takes microseconds, several times for each call.
        least = 0.0 if self._capacity.is_split or self._capacity.is_merged else min(limit.seconds, MIN_S)
        if (
            not pressure.may_change
            or pressure.is_on
            or limit.work(queue.rows + calls.rows, queue.tokens + calls.tokens) < _BUILD_UP * least
            or self.work_up_to(DEFAULT) < _BUILD_UP * self._whole_limit
        ):
            self._calm_at = self._clock()
            return False
        return self._is_growing and self._clock() < self._calm_at + _NEWEST_FIRST_S

    def call_left(self, call: CallInFlight) -> None:
        """Record a call that left; needed only while the limit should be in force."""
        self._opens_at = None
        front, limits = call.front or call, self._capacity.limits
        ends = self._capacity.expected_end(front)
        is_full = call.rows >= _FULL * limits.max_rows or call.padded >= _FULL * limits.max_padded_tokens
        self._window.left(
            call.started, call.started if front is call else ends, ends - front.started,
            is_full=is_full or self.is_at(_FULL, DEFAULT),
        )  # fmt: skip

    def call_ended(self, call: CallInFlight, rows_before: int, *, is_outlier: bool) -> None:
        """Record that a call ended; ``rows_before`` were in hand with it."""
        self._opens_at = None
        if not is_outlier:
            if self.is_in_force and self._shorter_until > -math.inf:
                self._resize_calls(call)
            least = self._rows_at_last_end + _BUILD_UP_CALLS * self._capacity.limits.max_rows
            self._is_growing = rows_before >= least
            self._rows_at_last_end = rows_before

    def _resize_calls(self, call: CallInFlight) -> None:
        if self._clock() < self._shorter_until:
            self._capacity.shorten_calls(call.padded / call.rows)
        else:
            self._shorter_until = -math.inf
            self._capacity.lengthen_calls()
        self.limit.limits = self._capacity.limits

    def exceeds_limit(self) -> bool:
        """Return whether the work of class default and above reaches the limit, in force or not."""
        return self.work_up_to(DEFAULT) >= self._whole_limit
