"""What the servers behind one batcher can take: how large calls may be, how many at a time, and what they cost.

``prices`` holds the learned costs. ``Capacity`` adds what a server makes of several calls (one after the other, or
several at a time), and the limits of the calls that are made now. Pure: times are given, in seconds.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import Final

from gateway.endpoints.calls import CallInFlight
from gateway.endpoints.entries import BatchLimits
from gateway.endpoints.work_limit import MAX_LOSS
from gateway.prices import Prices, least_size
from gateway.triton.port import Servers

KNOWN_CALLS: Final = 16
"""The number of calls after which prices are good enough to refuse a request by them."""
_LEARN_ALL_CALLS: Final = 64
_LEARN_EVERY_S: Final = 5e-3
"""Learning takes some microseconds. After the first 64 calls, the batcher learns every 5 ms at most."""
_MERGED_SHARE: Final = 0.05
"""If a call ends within 5 % of its time after the call in front, the server has merged the two."""
_RECENT_CALLS: Final = 16
_RECENT_S: Final = 1.0
"""The quickest of the last 16 calls bounds the time of the next one, for 1 s after the last call."""
_PARALLEL_QUEUEING: Final = 1 / 3
"""Below this ``Prices.queueing``, a server works on several calls at a time: a second call need not wait."""
_SERIAL_QUEUEING: Final = 0.7
"""From this ``Prices.queueing`` on, a server works on one call after the other."""
_SERIAL_QUEUEING_SHARED: Final = 0.55
"""The same if other gateways send calls to the server, which blurs the measurement. It is not 0.5, because a server
that takes four calls at a time measures as 0.5.
"""
_INDEPENDENT: Final = 1.5
"""Gateways that share servers keep this many times the calls of one gateway in flight, all together. None knows where
the others' calls are, so with fewer some servers would be idle.
"""
_MIN_CALLS: Final = 2
"""The least share of one gateway: one call that a server works on, and the next one behind it."""
_KEPT_PRICES: Final = 0.2
"""When calls become split, what whole calls cost counts a fifth: now a server merges each with those of others."""
_LEAST_SIZE: Final = 0.5
"""Smaller calls have at least half the size of a full one: the gateway's own work for a call is in no price ..."""
_LEAST_GAIN: Final = 1 / 8
"""... and calls are made smaller only if they get an eighth shorter."""
_MERGED_CALLS: Final = 4
"""Gateways whose calls a server merges keep 4 times as many in flight, of a quarter of the rows each."""
_MAX_MERGED: Final = 64
"""All gateways together send a server at most 64 calls in the time of one, so that it has few to handle."""
_SHARED_CALLS: Final = 8
"""While calls are split, the quickest of the last 8 tells when one ends. Some waited for a call of other gateways; too
early a next call only waits at the server, but too late a call is not merged.
"""


class OneServer(Servers):
    """A single server; for calls that name no servers."""

    @property
    def replicas(self) -> int:
        """See ``Servers.replicas``."""
        return 1


class Capacity:
    """What is known of the servers of one batcher."""

    __slots__ = (
        "_fresh_until", "_learn_at", "_recent", "_shared", "full_limits", "is_merged", "is_split", "limits",
        "max_calls", "merged_limits", "prices", "servers",
    )  # fmt: skip

    def __init__(self, prices: Prices, limits: BatchLimits, servers: Servers) -> None:
        self.prices = prices
        self.servers = servers
        self.limits = limits
        """The limits of the calls that are made now."""
        self.full_limits = limits
        """The limits of a call that is neither split nor shortened."""
        self.merged_limits = replace(
            limits, max_rows=max(limits.max_rows // _MERGED_CALLS, 1),
            max_padded_tokens=max(limits.max_padded_tokens // _MERGED_CALLS, 1),
        )  # fmt: skip
        """The limits of a call that is merged with others: small ones fill the server's batches better."""
        self.is_split = False
        """Whether calls have only this gateway's share of the rows of one call; see ``split_calls``."""
        self.is_merged = False
        """Whether the servers merge the calls of this gateway with those of others, as of the last ``update``.

        Then no call waits for the one in front of it: a small one that is there when the server becomes free is in its
        next batch.
        """
        self.max_calls = 0
        """How many calls may be in flight at a time, as of the last ``update``."""
        self._recent: deque[float] = deque(maxlen=_RECENT_CALLS)
        self._fresh_until = -math.inf
        self._learn_at = 0.0
        self._shared: deque[float] = deque(maxlen=_SHARED_CALLS)
        """While calls are split: the times of the last ones, in seconds, without waiting for this gateway's own."""
        self.update()

    def update(self) -> None:
        """Take over how many gateways and servers there are now.

        Calls that are merged are small, and no gateway knows when the servers begin their next batch, so there are more
        of them. Servers that do not merge calls would get many small ones from gateways that each keep all servers
        busy. Each gateway has its share of the calls then.
        """
        limits = self.full_limits
        calls = limits.max_in_flight * self.servers.replicas
        gateways = limits.gateways.count
        self.is_merged = gateways > 1 and limits.merges_all and not self.is_split
        if self.is_merged:
            calls *= _MERGED_CALLS
        elif gateways > 1 and not limits.merges_calls:
            calls = min(calls, max(math.ceil(_INDEPENDENT * calls / gateways), _MIN_CALLS))
        self.max_calls = calls

    @property
    def merged_interval(self) -> float:
        """The least time between two calls that are merged with those of others, in seconds."""
        share = max(1 / _MERGED_CALLS, self.full_limits.gateways.count / _MAX_MERGED)
        return share * min(self._recent, default=0.0) / self.servers.replicas

    def is_sated(self, rows: int) -> bool:
        """Return whether the servers have enough merged rows of this gateway: as many as fill a call each.

        Other gateways send them as many. What waits here can still be refused, and the newest can go first.
        """
        return rows >= self.full_limits.max_rows * self.servers.replicas

    @property
    def is_serial(self) -> bool:
        """Whether there is one server, and it is known to work on one call after the other.

        False if there is an outlier beside it: the work that the outlier takes would be refused.
        """
        prices, servers, limits = self.prices, self.servers, self.full_limits
        if servers.replicas != 1 or servers.has_outliers:
            return False
        if self.is_split:
            return True
        if limits.gateways.count > 1 and limits.instances:
            return limits.instances == 1
        least = _SERIAL_QUEUEING_SHARED if limits.gateways.count > 1 else _SERIAL_QUEUEING
        return prices.queueing >= least and prices.calls >= KNOWN_CALLS

    @property
    def is_parallel(self) -> bool:
        """Whether a server works on several calls at a time."""
        return self.prices.queueing < _PARALLEL_QUEUEING

    @property
    def concurrency(self) -> int:
        """How many calls the servers work on at a time."""
        is_parallel = self.is_parallel and not self.is_split
        return self.servers.replicas * (self.limits.max_in_flight if is_parallel else 1)

    def split_calls(self, *, is_on: bool) -> None:
        """Limit calls to this gateway's share of the rows of one call, or lift that.

        While overloaded, a server that works on one call after the other merges the calls of all gateways into one.
        Calls of a share each then add up to one full call.
        """
        full = self.full_limits
        is_on = is_on and full.gateways.count > 1 and full.merges_calls and not full.merges_all and self.is_serial
        if is_on is self.is_split:
            return
        self.is_split, self.limits = is_on, full
        self.update()
        if is_on:
            self.limits = replace(full, max_rows=max(full.max_rows // full.gateways.count, 1))
            self._shared.clear()
            # A wait for one's own calls cannot be told from a wait for those of other gateways any more.
            self.prices.fix_queueing(_KEPT_PRICES)

    def shorten_calls(self, tokens_per_row: float) -> None:
        """Make calls as small as they can be without losing more than ``MAX_LOSS`` of the answers, if that is worth it.

        A request that is in the next call in any case waits for the rest of the one in front, and for its own: both are
        shorter. ``tokens_per_row``, with padding, are those of the last call.
        """
        prices, full = self.prices, self.full_limits
        if self.is_split or not self.is_serial:
            return
        rows = max(min(full.max_rows, full.max_padded_tokens / max(tokens_per_row, 1.0)), 1.0)
        fixed = prices.call / max(prices.expect(rows, rows * tokens_per_row), 1e-9)
        size = max(least_size(1 - MAX_LOSS, fixed), _LEAST_SIZE)
        is_worth_it = (1 - fixed) * (1 - size) >= _LEAST_GAIN
        self.limits = full if not is_worth_it else replace(
            full, max_rows=math.ceil(size * full.max_rows), max_padded_tokens=math.ceil(size * full.max_padded_tokens)
        )  # fmt: skip

    def lengthen_calls(self) -> None:
        """Make calls of full size again, unless they are split."""
        if not self.is_split:
            self.limits = self.full_limits

    def expected_end(self, call: CallInFlight) -> float:
        """Return the clock time at which a call in flight should end."""
        if self.is_split and self._shared:
            front_ends = call.front_ended if call.front is None else self.expected_end(call.front)
            return max(front_ends, call.started) + min(self._shared)
        return call.expected_end(self.prices)

    def quickest_call(self, now: float) -> float:
        """Return the seconds that a call takes at least; 0 if that is not known.

        Old measurements do not count: they would refuse requests for ever, because no call would correct them.
        """
        return min(self._recent, default=0.0) if now < self._fresh_until else 0.0

    def learn(self, call: CallInFlight, now: float) -> None:
        """Learn from a call that ended at ``now``."""
        took = now - call.started
        self._recent.append(took)
        self._fresh_until = now + _RECENT_S
        is_split = self.is_split
        if is_split:
            if call.started < call.front_ended > now - _MERGED_SHARE * took:
                return
            self._shared.append(now - max(call.front_ended, call.started))
        if now < self._learn_at and self.prices.calls > _LEARN_ALL_CALLS:
            return
        self._learn_at = now + _LEARN_EVERY_S
        behind = max(call.front_ended - call.started, 0.0)
        if is_split:
            behind, took = 0.0, took - self.prices.queueing * behind
        self.prices.learn(call.rows, call.padded, behind, took)
