"""Puts concurrent entries of one endpoint version into few calls: text rows, tensors, or a hook's requests.

One ``Batcher`` belongs to one endpoint version and one event loop. An entry is what one request contributes to a call:
rows, a deadline, and a callback for the outcome. The life of an entry:

    queued ──► in a call ──► ended: with its outputs, its error, DeadlineExceeded at its deadline, or abandoned
       ▲           │
       └─ halved ◄─┘  the call failed, and one of its entries may be the reason

The code below follows that life: ``add`` → ``_flush`` → ``_start`` → ``_returned`` → ``_learn``. Pure units of
their own make the decisions:

- ``overload``: is an entry admitted? It refuses what exceeds the limit of work.
- ``deadline_check``: can an entry be answered before its deadline? If not, it ends at once.
- ``pacing``, ``returns`` and ``batch_class``: when does a call leave? At the end of the loop tick if a server is idle,
  so simultaneous requests share a call and a lone request never waits. Otherwise when waiting longer would gain
  nothing.
- ``entries.cut`` and ``fairness``: which entries are in the call? The oldest, and those that are cheaper with it than
  in a call of their own; by class and tenant if several are queued.
- ``capacity``: what do calls cost, and how many does a server work on at a time? Learned from the calls.

If a call fails and one of its entries may be the reason (``ROW_FAULTS``), each half of it is called again, until only
the guilty entry fails. An entry that ends early gives up its place at once. A call whose entries have all ended is
cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Any, Final, Generic, Literal

from gateway.admission import Pressure
from gateway.earliest_deadline import TIMER_S, EarliestDeadline
from gateway.endpoints.batch_class import BatchClassThrottle
from gateway.endpoints.calls import CallInFlight, CallsInFlight
from gateway.endpoints.capacity import Capacity, OneServer
from gateway.endpoints.deadline_check import DeadlineCheck
from gateway.endpoints.entries import BatchLimits, Entry, OnDone, R, cut, merge, n_tokens, split
from gateway.endpoints.entry_queue import EntryQueue
from gateway.endpoints.fairness import FairOrder
from gateway.endpoints.overload import OverloadControl
from gateway.endpoints.pacing import Pacing
from gateway.endpoints.returns import Returns
from gateway.errors import (
    BackendGarbage,
    BackendRefused,
    DeadlineExceeded,
    GatewayError,
    HookFailed,
    ModelNotReady,
    Overloaded,
)
from gateway.prices import Prices
from gateway.trace import BATCH, DEFAULT, DEFAULT_FLOW, TRACEPARENT, Flow
from gateway.triton.port import Servers
from preprocessing.collate import split_rows
from preprocessing.errors import InvalidOutput

ROW_FAULTS: Final = (BackendRefused, HookFailed)
"""Failures of a whole call that one of its entries may have caused. A lost connection is not one of them."""

_PROBE_EVERY: Final = 16
_PROBE_MIN_ENTRIES: Final = 8
"""If all calls have about the same size, every 16th of 8 entries or more is cut in half, to learn what size costs."""

_log = logging.getLogger("triton_gateway.batching")


class Batcher(Generic[R]):
    """Owned by one endpoint version; every method runs on the event loop that it was made on.

    ``run(rows, timeout)`` makes one call with the rows of all its entries, in order, within ``timeout`` seconds.
    ``share(result, counts)`` cuts its result into one output for each entry; ``counts`` are the rows of each. The
    default takes a mapping of names to arrays of any dtype whose first dimension is the rows, [sum(counts), …], and
    gives each entry the same names with arrays [count, …]. An output that is an exception is the error of its entry.
    ``InvalidOutput`` is the backend's fault: every entry fails with ``BackendGarbage``.
    ``size(row)`` returns the cost of a row without padding, normally its tokens; ``limits.max_padded_tokens`` bounds
    longest × rows. ``on_batch(rows, padded_tokens, tokens)`` is called for every call.
    ``limits.max_in_flight`` applies to each of the ``servers``. ``clock`` returns seconds.
    """

    def __init__(
        self,
        run: Callable[[Sequence[R], float], Awaitable[Any]],
        *,
        limits: BatchLimits,
        on_batch: Callable[[int, int, int], None],
        padding_side: Literal["left", "right"] = "right",
        servers: Servers | None = None,
        size: Callable[[R], int] = n_tokens,
        share: Callable[[Any, Sequence[int]], Sequence[Any]] = split_rows,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._run = run
        self._on_batch = on_batch
        self._padding_side: Literal["left", "right"] = padding_side
        self._size = size
        self._share = share
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.prices = Prices()
        """What calls of this batcher cost, learned from them."""
        self.pressure: Pressure = limits.pressure
        """Whether the limit of work is in force."""
        self._queue: EntryQueue[R] = EntryQueue()
        self._calls = calls = CallsInFlight()
        self._capacity = capacity = Capacity(self.prices, limits, servers or OneServer())
        self._overload = OverloadControl(limits.pressure, self._queue, calls, capacity, clock)
        self._deadlines = DeadlineCheck(self._queue, calls, capacity, clock)
        self._batch_class = BatchClassThrottle(self._queue, calls, capacity, clock)
        self._returns = Returns(self._queue, calls, capacity, clock)
        self._pacing = Pacing(self._queue, calls, capacity, clock, self._batch_class, self._overload, self._returns)
        self._order = FairOrder()
        self.limit = self._overload.limit
        """The limit of work, and what a row and a token count."""
        self._is_flush_scheduled = False
        self._alarm: asyncio.TimerHandle | None = None
        """Flushes when the queue may leave."""
        self._expiry = EarliestDeadline()
        self._batches = 0

    # --- what others see ----------------------------------------------------------------------------------------------

    @property
    def work(self) -> float:
        """The work in hand, queued and in calls: seconds of one server's time."""
        return self._overload.work

    @property
    def active_limit(self) -> float:
        """The limit of work that is in force now, in seconds of one server's time; NaN if there is none."""
        limit = self._overload.max_work if self.pressure.is_on else math.inf
        return math.nan if limit == math.inf else limit

    @property
    def is_idle(self) -> bool:
        """True if nothing is queued and no call is in flight."""
        return not self._queue.entries and not self._calls.running and not self._calls.outliers

    @property
    def queued_rows(self) -> int:
        """Rows that are not in a call yet."""
        return self._queue.rows

    def queued(self) -> dict[str, int]:
        """Return the number of queued entries of each class of priority."""
        return self._queue.entries_by_class()

    # --- an entry arrives ---------------------------------------------------------------------------------------------

    def is_full(self, rank: int = DEFAULT, tenant: str = "") -> bool:
        """Return whether a request of this class and tenant is refused for the work that is in hand."""
        if not self._overload.is_full(rank, tenant):
            return False
        capacity = self._capacity
        if capacity.servers.spare != math.inf and self._queue.entries:
            self._flush_soon()  # an idle server that is too slow to share the load takes the queue
            return False
        if rank != BATCH and capacity.is_serial:
            self._pacing.refused()
            self._overload.split_calls(is_on=True)
        return True

    def refusal(self, entry: Entry[R]) -> GatewayError | None:
        """Return why an entry must be refused now: too much work in hand, or too little time for it. None: admit it."""
        rank, tenant = entry.flow
        if self.is_full(rank, tenant):
            if rank != BATCH:
                self.pressure.press(self._loop.time())
            return _work_full()
        if entry.deadline < self._deadlines.near and self._deadlines.is_too_late(entry, self._loop.time()):
            return _deadline_unreachable()
        return None

    async def submit(
        self, rows: Sequence[R], deadline: float, *, count: int = 0, kind: Hashable = None, flow: Flow = DEFAULT_FLOW
    ) -> tuple[Any, int, int]:
        """Return the outputs of ``rows`` in order, and the nanoseconds spent queued and inferring.

        ``deadline`` is in loop time; ``count``, ``kind`` and ``flow`` are those of ``begin``. Rows that do not fit into
        one call are spread over several. Raises what ``run`` raises, ``Overloaded``, or ``DeadlineExceeded``.
        Cancelling removes what is queued, and cancels the calls that serve no other request.
        """
        groups = self._groups(rows)
        futures: list[asyncio.Future[Any]] = []
        entries: list[Entry[R]] = []
        for group in groups:
            future: asyncio.Future[Any] = self._loop.create_future()
            futures.append(future)
            group_rows = rows if len(groups) == 1 else [rows[i] for i in group]
            entry = Entry(group_rows, deadline, partial(_resolve, future), self._size, count, kind)
            entry.flow = flow
            entries.append(entry)
        try:
            for entry in entries:
                self.add(entry, is_admitted=entry is not entries[0])
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
        """Return whether ``rows`` fit into one call, as ``begin`` and ``add`` require."""
        return len(self._groups(rows)) == 1

    def _groups(self, rows: Sequence[R]) -> list[list[int]]:
        return [[0]] if len(rows) == 1 else split([self._size(row) for row in rows], self._capacity.full_limits)

    def begin(
        self, rows: Sequence[R], deadline: float, on_done: OnDone, *, count: int = 0, kind: Hashable = None,
        flow: Flow = DEFAULT_FLOW,
    ) -> Entry[R]:  # fmt: skip
        """Queue ``rows`` and return their entry; the form of ``submit`` for callers without a coroutine.

        ``on_done`` is called from the loop when they have ended, at the latest at ``deadline`` (loop time); ``abandon``
        takes the entry back. One row may count as ``count`` rows. Entries of different ``kind`` do not share a call.
        ``flow`` decides who goes first, see ``fairness``. Raises as ``add`` does.
        """
        entry = Entry(rows, deadline, on_done, self._size, count, kind)
        entry.flow = flow
        self.add(entry)
        return entry

    def add(self, entry: Entry[R], *, is_admitted: bool = False) -> None:
        """Queue an entry. Raises ``Overloaded``, or ``DeadlineExceeded`` if it cannot be answered in time.

        ``is_admitted``: another entry of the same request was admitted, so this one is as well.
        """
        deadline, queue = entry.deadline, self._queue
        if self.pressure.is_on or deadline < self._deadlines.near:
            if not is_admitted and (refusal := self.refusal(entry)):
                raise refusal
            self._overload.admitted(entry)
        entry.submitted = self._clock()
        queue.add(entry)
        if queue.arrived >= self._returns.target:
            if self._returns.is_waiting and self._alarm is not None:
                self._flush_soon()
            self._returns.reached(entry.submitted)
        if deadline < self._expiry.at:
            self._expiry.add(deadline, self._loop, self._expire)
        if self._is_flush_scheduled:
            return
        if self._alarm is not None:  # it knows when the queue may leave, unless the queue has become long enough
            if (
                queue.rows >= self._pacing.wake_rows
                or queue.tokens >= self._capacity.limits.max_padded_tokens
                or (self._returns.is_waiting and entry.flow.rank != DEFAULT)
            ):
                self._flush_soon()
            return
        running = len(self._calls.running)
        if not running or (running < self._calls.max_running and self._pacing.may_leave()):
            self._flush_soon()
        elif running < self._calls.max_running:
            self._set_alarm()

    def _flush_soon(self) -> None:
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    # --- calls leave --------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send the calls that may leave now, and set the alarm for the next one."""
        self._is_flush_scheduled = False
        queue, calls, capacity = self._queue, self._calls, self._capacity
        capacity.update()
        calls.max_running = capacity.max_calls
        now = self._loop.time()
        if now >= self._deadlines.update_at:
            self._deadlines.update(now)
        if queue.entries and self._expiry.at < self._deadlines.near:
            self._drop(self._deadlines.too_late(now), _deadline_unreachable)
        if self.pressure.is_on is not self._overload.is_in_force:
            self._drop(self._overload.switch(), _work_full)
        while len(calls.running) < calls.max_running:
            if queue.retries:
                self._start([entry for entry in queue.retries.popleft() if not entry.is_over])
            elif queue.entries and self._pacing.may_leave():
                if queue.class_rows[BATCH] and self._batch_class.must_wait():
                    break
                self._start(self._take())
            else:
                break
        while queue.entries and self._pacing.wants_outlier():
            self._start(self._take(), is_outlier=True)
        if queue.entries or self._alarm is not None:
            self._set_alarm()

    def _drop(self, entries: Sequence[Entry[R]], why: Callable[[], GatewayError]) -> None:
        if entries:
            self._queue.remove(entries)
            for entry in entries:
                entry.end(None, why())

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        at = self._pacing.wake_at()
        if at is not None:
            self._alarm = self._loop.call_later(max(at - self._clock(), 0.0), self._wake)

    def _wake(self) -> None:
        self._alarm = None
        self._pacing.woke()
        self._returns.is_waiting = False
        self._flush()

    def _take(self) -> list[Entry[R]]:
        """Choose the entries of the next call, and remove them from the queue."""
        queue, capacity = self._queue, self._capacity
        limits = capacity.merged_limits if capacity.is_merged else capacity.limits
        waiting = queue.entries
        if self.pressure.may_change and self._overload.is_newest_first():
            waiting = waiting[::-1]
        if queue.is_mixed:
            batch = self._order.take(waiting, limits, self.prices)
        else:
            batch = waiting if len(waiting) == 1 else cut(waiting, limits, self.prices)
        if queue.class_rows[BATCH]:
            batch = self._batch_class.shorten(batch)
        self._batches += 1
        if len(batch) >= _PROBE_MIN_ENTRIES and not self._batches % _PROBE_EVERY and self.prices.are_guessed:
            batch = batch[: len(batch) // 2]
        if len(batch) == len(waiting):
            queue.clear()
        else:
            queue.remove(batch)
        return batch

    def _start(self, batch: list[Entry[R]], *, is_outlier: bool = False) -> None:
        """Make a call of ``batch``, unless all of its entries have ended."""
        started = self._clock()
        now = self._loop.time()
        earliest_end = now + self._capacity.quickest_call(started)
        if self._expiry.at <= earliest_end:
            batch = self._in_time(batch, started, earliest_end)
        if not batch:
            return
        call = CallInFlight(batch, started)
        rows: list[R] = []
        for entry in batch:
            rows += entry.rows
        first = batch[0]
        self._batch_class.call_left(call, first.flow.rank)
        if is_outlier:
            self._calls.outliers[call] = None
        else:
            self._calls.add(call, math.inf if self._capacity.is_merged else self._capacity.servers.replicas)
        self._pacing.call_left(started)
        if self.pressure.is_on:
            self._overload.call_left(call)
        # A call that several requests share is a part of the first one's trace.
        call.task = self._loop.create_task(self._send(call, rows, call.latest - now, first.parent))
        try:
            self._on_batch(call.rows, call.padded, call.tokens)
        except Exception:  # noqa: BLE001 - a fault in counting must not fail the request
            _log.exception("counting a call failed")

    def _in_time(self, batch: list[Entry[R]], started: float, earliest_end: float) -> list[Entry[R]]:
        """End the entries whose deadline is before the earliest end of a call, and return the others."""
        live = []
        for entry in batch:
            if entry.deadline > earliest_end:
                live.append(entry)
            else:
                entry.queued_ns += int((started - entry.submitted) * 1e9)
                entry.end(None, DeadlineExceeded("the request's time runs out before its call could end"))
        return [entry for entry in live if not entry.is_over]

    async def _send(self, call: CallInFlight, rows: Sequence[R], timeout: float, parent: str) -> None:
        call.is_begun = True
        outside = TRACEPARENT.set(parent)
        outputs: Any = None
        error: BaseException | None = None
        try:
            if call.is_vain:
                raise asyncio.CancelledError
            outputs = await self._run(rows, timeout)
        except BaseException as failure:  # noqa: BLE001 - the entries get it, whatever it is
            error = failure
        TRACEPARENT.reset(outside)
        try:
            # Not from a callback of the task: another turn of the event loop would cost a lone request microseconds.
            self._returned(call, outputs, error)
            if error is not None and not isinstance(error, Exception):
                raise error
        finally:
            del error  # its traceback refers to this frame: a cycle, which only a collection would free

    # --- calls return -------------------------------------------------------------------------------------------------

    def _returned(self, call: CallInFlight, result: Any, error: BaseException | None) -> None:
        """Share out the outputs of a call, halve it, or fail its entries: each of them ends or is queued again."""
        now = self._clock()
        calls = self._calls
        before = self._queue.rows + calls.rows, self._queue.tokens + calls.tokens
        is_outlier = calls.remove(call, now)
        self._overload.call_ended(call, before[0], is_outlier=is_outlier)
        self._pacing.leave_at = None
        if not is_outlier:
            self._returns.ended(call.rows, now)
        call.task = None
        outputs: Sequence[Any] = ()
        if error is None:
            try:
                outputs = self._share(result, [entry.count for entry in call.entries])
                if len(outputs) != len(call.entries):
                    raise BackendGarbage(f"{len(outputs)} outputs came back for {len(call.entries)} entries")
                if not is_outlier:
                    self._learn(call, now, *before)
            except InvalidOutput as wrong:
                error = BackendGarbage(wrong.message, hint=wrong.hint or "")
            except Exception as failure:  # noqa: BLE001 - the entries get it, whatever it is
                error = failure
        elif isinstance(error, asyncio.CancelledError):
            error = ModelNotReady("this version is being closed", retry_after=0)
        elif isinstance(error, ROW_FAULTS):
            live = [entry for entry in call.entries if not entry.is_over]
            if len(live) > 1:
                self._halve(live, now)
                live = []
            call.entries = live
        if (self._queue.entries or self._queue.retries) and not self._is_flush_scheduled:
            # The loop first reads what has arrived at the sockets, so the next call takes that along. The call leaves
            # before the answers of this one are made.
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)
            self._loop.call_soon(_end_all, call, now, outputs, error)
        else:
            _end_all(call, now, outputs, error)

    def _learn(self, call: CallInFlight, now: float, rows_before: int, tokens_before: int) -> None:
        self._capacity.learn(call, now)
        self.limit.ended(now, call.rows, call.padded, rows_before, tokens_before)
        if self.limit.is_rising and self._overload.exceeds_limit():
            self.pressure.press(self._loop.time())

    def _halve(self, entries: list[Entry[R]], now: float) -> None:
        # Halving finds one bad entry among n in about 2·log2(n) calls instead of n.
        for entry in entries:
            entry.submitted, entry.call = now, None
        middle = len(entries) // 2
        self._queue.retries.extend((entries[:middle], entries[middle:]))

    # --- entries end early --------------------------------------------------------------------------------------------

    def abandon(self, entry: Entry[R]) -> None:
        """Forget an entry whose request has ended: frees its place, and cancels a call that served no other."""
        if not entry.is_over:
            call, entry.call = entry.call, None
            entry.is_over, entry.on_done = True, None
            self._vacate(entry, call)

    def _vacate(self, entry: Entry[R], call: CallInFlight | None) -> None:
        if call is None:
            self._queue.discard(entry)
        elif call.task is not None and all(other.is_over for other in call.entries):
            call.is_vain = True
            if call.is_begun:  # a task that is cancelled earlier would not take its first step, nor any other
                call.task.cancel()

    def _expire(self, now: float) -> float:
        """End the entries whose deadline has passed, and return the earliest deadline of the others."""
        now += TIMER_S
        live = [entry for entry in self._entries() if not entry.is_over]
        later = min((entry.deadline for entry in live if entry.deadline > now), default=math.inf)
        for entry in live:
            if entry.deadline <= now:
                call = entry.call
                entry.end(None, _deadline_passed())
                self._vacate(entry, call)
        return later

    def _entries(self) -> Iterable[Entry[R]]:
        return chain(self._queue.all_entries(), self._calls.entries())

    async def close(self) -> None:
        """Refuse what is queued, and wait until the running calls have ended."""
        queued = list(self._queue.all_entries())
        self._queue.clear()
        self._queue.retries.clear()
        for entry in queued:
            entry.end(None, _replaced())
        while (tasks := [call.task for call in self._calls if call.task is not None]) or self._queue.retries:
            # Without a running call, halves of a failed one leave in the next turn of the event loop.
            await (asyncio.wait(tasks) if tasks else asyncio.sleep(0))
        self._expiry.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        # ``run`` may be a method of this batcher's owner. Without this reference, both are freed at once.
        self._run = _closed


def _end_all(call: CallInFlight, now: float, outputs: Sequence[Any], error: BaseException | None) -> None:
    took = int((now - call.started) * 1e9)
    if error is not None:
        failed = error if isinstance(error, Exception) else ModelNotReady(f"the call was ended: {error!r}")
        for entry in call.entries:
            entry.end(None, failed)
        return
    for entry, output in zip(call.entries, outputs, strict=True):
        entry.infer_ns = took
        if isinstance(output, Exception):
            entry.end(None, output)
        else:
            entry.end(output, None)


def _resolve(future: asyncio.Future[Any], _entry: Entry[Any], outputs: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(outputs)


async def _closed(_rows: object, _timeout: float) -> Any:
    raise _replaced()


def _replaced() -> ModelNotReady:
    return ModelNotReady("this version was just replaced", retry_after=0)


def _work_full() -> Overloaded:
    return Overloaded("as much work is in hand as keeps the model busy", because="work_full", hint="try again")


def _deadline_unreachable() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the request cannot be answered in its time: too much work is in front of it", because="deadline_unreachable",
        hint="try again later, or raise x-request-timeout-ms",
    )  # fmt: skip


def _deadline_passed() -> DeadlineExceeded:
    return DeadlineExceeded(
        "no answer within the request's time", hint="raise x-request-timeout-ms or send less at once"
    )
