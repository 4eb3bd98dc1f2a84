"""Coalesces concurrent requests of one endpoint version into few backend calls.

One ``MicroBatcher`` belongs to one endpoint and one event loop. The rule: up to ``max_in_flight`` calls run at a time;
a request that finds nothing running leaves at the end of the current loop tick (so simultaneous requests share a call,
and a lone request never waits); requests that arrive while calls run share the next ones. Calls are cut by rows and
by padded tokens, and rows of similar length go together. An error reaches exactly the callers of its call; a call that
the backend refuses is split, so that one poisoned row cannot fail its neighbours.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gateway.errors import BackendRefused, DeadlineExceeded, ModelNotReady
from gateway.trace import TRACEPARENT
from preprocessing.collate import split_rows


class Servers(Protocol):
    """What the batcher must know of the backend."""

    @property
    def replicas(self) -> int:
        """How many servers share the calls now; at least 1."""
        ...


class _One:
    @property
    def replicas(self) -> int:
        return 1


class Row(Protocol):
    """What the batcher must know of one sequence."""

    @property
    def n_tokens(self) -> int:
        """Tokens of the sequence, without padding."""
        ...


_log = logging.getLogger("triton_gateway.batching")

R = TypeVar("R", bound=Row)
Outputs = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """``max_rows`` and ``max_padded_tokens`` per call; ``max_in_flight`` calls; ``max_waste`` padding share."""

    max_rows: int = 32
    max_padded_tokens: int = 16_384
    max_in_flight: int = 2
    max_waste: float = 0.25


OnDone = Callable[["Entry[Any]", Outputs | None, Exception | None], None]
"""Told exactly once what became of an entry: its outputs, or the error."""


class Entry(Generic[R]):
    """Rows of one request that travel together, and who is told what became of them."""

    __slots__ = (
        "call", "companions", "deadline", "infer_ns", "is_over", "longest", "on_done", "parent", "queued_ns",
        "rows", "submitted_ns", "tokens",
    )  # fmt: skip

    def __init__(self, rows: Sequence[R], deadline: float, on_done: OnDone) -> None:
        self.rows = rows
        self.deadline = deadline
        self.on_done = on_done
        self.is_over = False
        if len(rows) == 1:
            self.longest = self.tokens = rows[0].n_tokens
        else:
            self.longest = max(row.n_tokens for row in rows)
            self.tokens = sum(row.n_tokens for row in rows)
        self.submitted_ns = perf_counter_ns()
        self.parent = TRACEPARENT.get()
        self.queued_ns = 0
        self.infer_ns = 0
        self.call: asyncio.Task[None] | None = None
        self.companions: Sequence[Entry[R]] = ()

    def end(self, outputs: Outputs | None, error: Exception | None) -> None:
        """Tell the outcome, unless it was told or nobody waits any more. Never raises: others wait for their turn."""
        if self.is_over:
            return
        try:
            self.forget()(self, outputs, error)
        except Exception:  # noqa: BLE001 - it must not reach the next entry
            _log.exception("telling a request's outcome failed")

    def forget(self) -> OnDone:
        """Be over; returns who was to be told. What an entry refers to refers to it: left as it is, every request would
        leave a cycle behind that only the garbage collector can free.
        """
        told, self.on_done = self.on_done, _nobody
        self.is_over = True
        self.call, self.companions = None, ()
        return told


def cut(waiting: Sequence[Entry[R]], limits: BatchLimits) -> list[Entry[R]]:
    """Choose the entries of the next call: the oldest, and those that fit beside it.

    Pure. The result is never empty for a non-empty ``waiting``, holds the oldest entry, keeps ``max_rows`` and
    ``max_padded_tokens`` unless the oldest alone exceeds them, and keeps the padding share at or below ``max_waste``
    unless the oldest alone exceeds it.
    """
    if not waiting:
        return []
    oldest = waiting[0]
    chosen = [oldest]
    rows, longest, tokens = len(oldest.rows), oldest.longest, oldest.tokens
    # Nearest lengths first: they cost the least padding. Sorting is stable, so equal lengths keep their age order.
    for entry in sorted(waiting[1:], key=lambda e: abs(e.longest - oldest.longest)):
        new_rows, new_longest = rows + len(entry.rows), max(longest, entry.longest)
        padded = new_rows * new_longest
        if new_rows > limits.max_rows or padded > limits.max_padded_tokens:
            continue
        if 1 - (tokens + entry.tokens) / padded > limits.max_waste:
            continue
        chosen.append(entry)
        rows, longest, tokens = new_rows, new_longest, tokens + entry.tokens
        if rows == limits.max_rows:
            break
    return chosen


def split(rows: Sequence[R], limits: BatchLimits) -> list[list[int]]:
    """Cut one request's rows into index groups that each fit one call, longest together; every index exactly once."""
    if len(rows) == 1:
        return [[0]]
    if len(rows) <= limits.max_rows and len(rows) * max(r.n_tokens for r in rows) <= limits.max_padded_tokens:
        return [list(range(len(rows)))]
    groups: list[list[int]] = []
    group: list[int] = []
    longest = 0
    for index in sorted(range(len(rows)), key=lambda i: -rows[i].n_tokens):
        longest = longest if group else rows[index].n_tokens
        if group and (len(group) == limits.max_rows or (len(group) + 1) * longest > limits.max_padded_tokens):
            groups.append(group)
            group, longest = [], rows[index].n_tokens
        group.append(index)
    groups.append(group)
    return groups


def merge(parts: Sequence[Outputs], order: Sequence[int], side: Literal["left", "right"]) -> Outputs:
    """Join the outputs of one request's groups; row ``i`` of the joined rows becomes row ``order[i]``.

    Groups were padded to different lengths: shorter ones are filled with zeros on the padding side, where masks are 0.
    """
    back = np.empty(len(order), dtype=np.intp)
    back[np.asarray(order)] = np.arange(len(order))
    merged: Outputs = {}
    for name in parts[0]:
        arrays = [part[name] for part in parts]
        widest = tuple(max(sizes) for sizes in zip(*(a.shape[1:] for a in arrays), strict=True))
        filled = []
        for array in arrays:
            gaps = [(0, w - n) if side == "right" else (w - n, 0) for w, n in zip(widest, array.shape[1:], strict=True)]
            filled.append(np.pad(array, [(0, 0), *gaps]) if any(g != (0, 0) for g in gaps) else array)
        merged[name] = np.concatenate(filled)[back]
    return merged


class MicroBatcher(Generic[R]):
    """Owned by one endpoint version; every method runs on the event loop it was made on.

    ``run(rows, timeout)`` makes one backend call within ``timeout`` seconds and returns outputs whose first dimension
    is rows. ``on_batch(rows, padded_tokens, tokens)`` is told about every call. ``limits.max_in_flight`` counts for
    each of the ``servers``.
    """

    def __init__(
        self,
        run: Callable[[Sequence[R], float], Awaitable[Outputs]],
        *,
        limits: BatchLimits,
        on_batch: Callable[[int, int, int], None],
        padding_side: Literal["left", "right"] = "right",
        servers: Servers | None = None,
    ) -> None:
        self._run = run
        self._servers: Servers = servers or _One()
        self._limits = limits
        self._on_batch = on_batch
        self._padding_side: Literal["left", "right"] = padding_side
        self._waiting: list[Entry[R]] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._flush_scheduled = False
        self._waiting_rows = 0
        self._rows_in_flight = 0
        # The quickest of the last calls: what no call has beaten lately, this one will not beat either.
        self._recent: deque[float] = deque(maxlen=16)

    @property
    def waiting_rows(self) -> int:
        """Rows that have not left yet."""
        return self._waiting_rows

    async def submit(self, rows: Sequence[R], deadline: float) -> tuple[Outputs, int, int]:
        """Return the outputs of ``rows`` in order, and the nanoseconds spent waiting and inferring.

        ``deadline`` is in loop time. Raises what ``run`` raises, or ``DeadlineExceeded`` when the deadline passes
        before the call leaves. Cancelling drops rows that have not left.
        """
        groups = split(rows, self._limits)
        futures: list[asyncio.Future[Outputs]] = []
        entries: list[Entry[R]] = []
        for group in groups:
            future: asyncio.Future[Outputs] = self._loop.create_future()
            futures.append(future)
            mine = rows if len(groups) == 1 else [rows[i] for i in group]
            entries.append(self.begin(mine, deadline, partial(_tell, future)))
        try:
            parts = [await futures[0]] if len(groups) == 1 else await asyncio.gather(*futures)
        except BaseException:
            for entry in entries:
                self.abandon(entry)
            raise
        queued, inferred = max(e.queued_ns for e in entries), max(e.infer_ns for e in entries)
        if len(groups) == 1:
            return parts[0], queued, inferred
        return merge(parts, [i for group in groups for i in group], self._padding_side), queued, inferred

    def fits(self, rows: Sequence[R]) -> bool:
        """True when ``rows`` fit into one call, as ``begin`` needs them to."""
        return len(rows) == 1 or len(split(rows, self._limits)) == 1

    def begin(self, rows: Sequence[R], deadline: float, on_done: OnDone) -> Entry[R]:
        """Queue ``rows`` for the next call; ``on_done`` is called from the loop when they are through.

        What ``submit`` does for a coroutine, for a caller that has none. ``abandon`` takes it back.
        """
        entry = Entry(rows, deadline, on_done)
        self._waiting.append(entry)
        self._waiting_rows += len(rows)
        if not self._flush_scheduled and self._may_leave():
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        return entry

    def abandon(self, entry: Entry[R]) -> None:
        """Forget an entry nobody waits for; a call made for abandoned entries only is cancelled."""
        if entry.is_over:
            return
        call, companions = entry.call, entry.companions
        entry.forget()
        if entry in self._waiting:
            self._waiting.remove(entry)
            self._waiting_rows -= len(entry.rows)
        elif call is not None and all(other.is_over for other in companions):
            call.cancel()

    async def close(self) -> None:
        """Refuse what is waiting and let running calls end."""
        waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
        for entry in waiting:
            entry.end(None, ModelNotReady("this version was just replaced", retry_after=0))
        if self._calls:
            await asyncio.wait(self._calls)

    def _may_leave(self) -> bool:
        """True when a call may start now: there is a free one, and it is worth starting beside those that run.

        A second call of one row beside a first of thirty would cost the backend as much as the first: it waits until
        it is a quarter as large, or the first has ended. A lone request finds nothing running and never waits; with
        several servers it waits only when each of them may have a call.
        """
        calls = len(self._calls)
        if not calls:
            return True
        servers = self._servers.replicas
        if calls < servers:
            return True
        return calls < self._limits.max_in_flight * servers and self._waiting_rows * 4 * calls >= self._rows_in_flight

    def _flush(self) -> None:
        self._flush_scheduled = False
        while self._waiting and self._may_leave():
            batch = cut(self._waiting, self._limits)
            if len(batch) == len(self._waiting):
                self._waiting = []
            else:
                chosen = set(map(id, batch))
                self._waiting = [entry for entry in self._waiting if id(entry) not in chosen]
            rows = sum(len(entry.rows) for entry in batch)
            self._waiting_rows -= rows
            self._rows_in_flight += rows
            call = self._loop.create_task(self._call(batch))
            for entry in batch:
                entry.call, entry.companions = call, batch
            self._calls.add(call)
            call.add_done_callback(partial(self._called, rows))

    def _called(self, rows: int, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._rows_in_flight -= rows
        if self._waiting:
            self._flush()

    async def _call(self, batch: list[Entry[R]]) -> None:
        left = perf_counter_ns()
        now = self._loop.time()
        quickest = min(self._recent, default=0.0)
        live = []
        for entry in batch:
            entry.queued_ns += left - entry.submitted_ns
            if entry.is_over:
                continue
            if entry.deadline <= now + quickest:
                entry.end(None, DeadlineExceeded("the request's time runs out before a call to Triton could end"))
                continue
            live.append(entry)
        if not live:
            return
        rows = live[0].rows if len(live) == 1 else [row for entry in live for row in entry.rows]
        longest, tokens = max(e.longest for e in live), sum(e.tokens for e in live)
        self._on_batch(len(rows), len(rows) * longest, tokens)
        # A call serves callers with different deadlines: it runs to the latest, each caller leaves at its own.
        timeout = max(e.deadline for e in live) - now
        # A call that several requests share is a part of the first one's trace.
        TRACEPARENT.set(live[0].parent)
        try:
            outputs = await self._run(rows, timeout)
            parts = split_rows(outputs, [len(e.rows) for e in live])
        except BackendRefused as error:
            if len(live) == 1:
                live[0].end(None, error)
                return
            await self._retry_apart(live)
            return
        except asyncio.CancelledError:
            for entry in live:
                entry.end(None, ModelNotReady("this version is being closed", retry_after=0))
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the callers, not to this task
            for entry in live:
                entry.end(None, error)
            return
        took = perf_counter_ns() - left
        self._recent.append(took * 1e-9)
        for entry, part in zip(live, parts, strict=True):
            entry.infer_ns = took
            entry.end(part, None)

    async def _retry_apart(self, entries: list[Entry[R]]) -> None:
        # Halving finds one bad request among n in about 2·log2(n) calls instead of n.
        middle = len(entries) // 2
        for half in (entries[:middle], entries[middle:]):
            for entry in half:
                entry.submitted_ns = perf_counter_ns()
            await self._call(half)


def _nobody(_entry: Entry[Any], _outputs: Outputs | None, _error: Exception | None) -> None:
    pass


def _tell(
    future: asyncio.Future[Outputs], _entry: Entry[Any], outputs: Outputs | None, error: Exception | None
) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    elif outputs is not None:
        future.set_result(outputs)
