"""Entries, which wait for a call; the calls that they are in; and how they are cut into calls. Pure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gateway.batching.pressure import NO_PRESSURE, Pressure
from gateway.errors import BackendGarbage
from gateway.outcome import Outcome
from gateway.prices import Prices
from gateway.trace import CLASSES, DEFAULT_FLOW, TRACEPARENT, Flow

if TYPE_CHECKING:
    from gateway.batching.batcher import Batcher

_OWN_CALL_S: Final = 0.05e-3
"""What a call costs in the gateway, in seconds, in addition to its price at the server."""

_log = logging.getLogger("triton_gateway.batching")
_longest: Final[Callable[[Entry[Any]], int]] = attrgetter("longest")


class Sized(Protocol):
    """A row; ``n_tokens`` is its cost without padding, normally its tokens."""

    @property
    def n_tokens(self) -> int:
        """See the class."""


R = TypeVar("R", bound=Sized)
Outputs = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """``max_rows`` and ``max_padded_tokens`` (longest × rows) per call; ``max_in_flight`` calls per server."""

    max_rows: int = 32
    max_padded_tokens: int = 16_384
    max_in_flight: int = 2
    pressure: Pressure = NO_PRESSURE


class Entry(Outcome[Any], Generic[R]):
    """Rows of one request that go into the same call, and what that brings: the outputs, or an error.

    The request awaits it; if it is interrupted there, the rows are taken back.

    The ``n_tokens`` of a row is its cost without padding. ``count`` is the number of rows, if it is not ``len(rows)``.
    Only entries of the same ``kind`` share a call. ``deadline`` is in loop time. ``parent`` is the ``traceparent`` of
    its call, if it is not the current one. The batcher sets ``submitted`` (its clock, in seconds), ``queued_ns`` and
    ``infer_ns``.
    """

    __slots__ = (
        "batcher", "call", "count", "deadline", "flow", "infer_ns", "is_over", "kind", "longest", "parent",
        "queued_ns", "rows", "submitted", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        rows: Sequence[R],
        deadline: float,
        count: int = 0,
        kind: Hashable = None,
        parent: str | None = None,
        flow: Flow = DEFAULT_FLOW,
    ) -> None:
        self.waiter = None  # as in `Outcome`; a call for each request less
        self.is_set = False
        self.value = self.error = None
        self.batcher: Batcher[R] | None = None
        self.rows = rows
        self.deadline = deadline
        self.is_over = False
        self.kind = kind
        self.flow = flow
        self.count = count or len(rows)
        if len(rows) == 1:
            self.longest = rows[0].n_tokens
            self.tokens = self.longest * self.count
        else:
            sizes = [row.n_tokens for row in rows]
            self.longest, self.tokens = max(sizes), sum(sizes)
        self.submitted = 0.0
        self.parent = TRACEPARENT.get() if parent is None else parent
        self.queued_ns = 0
        self.infer_ns = 0
        self.call: CallInFlight | None = None

    def end(self, outputs: Any, error: Exception | None) -> None:
        """End with outputs or an error, unless it has ended. Never raises, because other entries come next."""
        if self.is_over:
            return
        self.is_over = True
        self.call = None
        try:
            if error is not None:
                self.set_exception(error)
            else:
                self.set_result(outputs)
        except Exception:  # noqa: BLE001 - the next entries of the call must get theirs
            _log.exception("delivering a request's outcome failed")

    def give_up(self) -> None:
        """Take the rows back: their request has left, or its time is over."""
        if self.batcher is not None:
            self.batcher.abandon(self)


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


def cut(waiting: Sequence[Entry[R]], limits: BatchLimits, prices: Prices) -> list[Entry[R]]:
    """Choose the entries of the next call: the oldest, and those that are cheaper with it than in another call.

    Pure. The result is never empty for a non-empty ``waiting``. It holds the oldest entry and only entries of its kind,
    within ``max_rows`` and ``max_padded_tokens`` unless the oldest alone exceeds them.
    """
    if len(waiting) < 2:
        return list(waiting)
    oldest = waiting[0]
    if oldest.kind is not None:
        waiting = [entry for entry in waiting if entry.kind == oldest.kind]
    sizes = [entry.longest for entry in waiting]
    shortest, longest = min(sizes), max(sizes)
    total = sum([entry.count for entry in waiting])
    if not _is_worth_a_call(longest - shortest, total, limits, prices):
        if total <= limits.max_rows and total * longest <= limits.max_padded_tokens:
            return list(waiting)
    else:
        shortest, longest = _lengths(waiting, oldest, limits, prices)
    chosen: list[Entry[R]] = []
    rows = widest = 0
    for entry in waiting:
        if not shortest <= entry.longest <= longest:
            continue
        new_rows, new_widest = rows + entry.count, max(widest, entry.longest)
        if chosen and (new_rows > limits.max_rows or new_rows * new_widest > limits.max_padded_tokens):
            continue
        chosen.append(entry)
        rows, widest = new_rows, new_widest
        if rows >= limits.max_rows:
            break
    return chosen


def _is_worth_a_call(spread: int, rows: int, limits: BatchLimits, prices: Prices) -> bool:
    """Return whether the padding of ``rows`` with lengths that differ by ``spread`` can cost more than another call."""
    return prices.token * rows * spread > (prices.call + _OWN_CALL_S) * min(1.0, limits.max_rows / rows)


def _lengths(waiting: Sequence[Entry[R]], oldest: Entry[R], limits: BatchLimits, prices: Prices) -> tuple[int, int]:
    """Return the shortest and the longest length that go with the oldest entry.

    One call for all costs padding; a second call costs its fixed price. The entries, sorted by length, are cut where it
    saves most. The part with the oldest entry is then cut again, until a cut saves nothing.
    """
    order = sorted(waiting, key=_longest)
    first, last = 0, len(order)
    call, token, max_rows = prices.call + _OWN_CALL_S, prices.token, limits.max_rows
    rows = sum(entry.count for entry in order)
    while _is_worth_a_call(order[last - 1].longest - order[first].longest, rows, limits, prices):
        longest = order[last - 1].longest
        best, at, rows_at = 0.0, 0, 0
        whole = max(rows / max_rows, 1.0)
        left = 0
        for i in range(first, last - 1):
            entry = order[i]
            left += entry.count
            length = entry.longest
            if length == order[i + 1].longest:
                continue
            saved = token * left * (longest - length)
            if saved <= best:
                continue
            # Rows that do not fit into one call need several anyway.
            more = max(left / max_rows, 1.0) + max((rows - left) / max_rows, 1.0) - whole
            saved -= call * more
            if saved > best:
                best, at, rows_at = saved, i + 1, left
        if not at:
            break
        if oldest.longest < order[at].longest:
            last, rows = at, rows_at
        else:
            first, rows = at, rows - rows_at
    return order[first].longest, order[last - 1].longest


def split(sizes: Sequence[int], limits: BatchLimits) -> list[list[int]]:
    """Group the indices of one request's rows, given their sizes, so that each group fits into one call.

    Rows of similar length go together, the longest first. Every index is in exactly one group.
    """
    groups: list[list[int]] = []
    group: list[int] = []
    longest = 0
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        longest = longest if group else sizes[index]
        if group and (len(group) == limits.max_rows or (len(group) + 1) * longest > limits.max_padded_tokens):
            groups.append(group)
            group, longest = [], sizes[index]
        group.append(index)
    groups.append(group)
    return groups


def merge(parts: Sequence[Outputs], groups: Sequence[Sequence[int]], side: Literal["left", "right"]) -> Outputs:
    """Join the outputs (name → array [rows, …]) of one request's groups; the rows of each become those in its group.

    Groups were padded to different lengths. Shorter ones are filled with zeros on the padding side, where masks are 0.
    The arrays keep their dtypes. Raises ``BackendGarbage`` if an output's number of dimensions differs from group to
    group.
    """
    merged: Outputs = {}
    for name, first in parts[0].items():
        arrays = [part[name] for part in parts]
        if len({array.ndim for array in arrays}) > 1:
            raise BackendGarbage(f"output {name} has another number of dimensions in each call of one request")
        widest = [max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays), strict=True)]
        joined = merged[name] = np.zeros((sum(map(len, groups)), *widest), first.dtype)
        for group, array in zip(groups, arrays, strict=True):
            gaps = [width - own if side == "left" else 0 for width, own in zip(widest, array.shape[1:], strict=True)]
            inside = (slice(gap, gap + own) for gap, own in zip(gaps, array.shape[1:], strict=True))
            place: tuple[Any, ...] = (group, *inside)
            joined[place] = array
    return merged
