"""Puts concurrent entries of one endpoint version into few calls: text rows, or tensors.

One ``Batcher`` belongs to one endpoint version and one event loop. An entry is what one request contributes to a call:
rows, a deadline, and a callback for the outcome. The life of an entry:

    queued ──► in a call ──► ended: with its outputs or its error, or abandoned, as at its request's deadline
       ▲           │
       └─ halved ◄─┘  the call failed, and one of its entries may be the reason

The code below follows that life: ``add`` → ``_flush`` → ``_start`` → ``_returned``. Each decision has one rule:

- **Admission.** While demand exceeds capacity, work in hand is two full calls at most for each server (``limit``).
- **Deadlines.** An entry that cannot be answered in time behind the work in front of it ends at once.
- **Leaving.** A call leaves at the end of the loop tick if a server is idle, so simultaneous requests share a call and
  a lone request never waits. Otherwise it leaves shortly before the call in front should end: earlier it would wait at
  the server, and later requests could not join it. Callers that usually return together are awaited (``returns``).
- **Content.** The oldest entry, and those that are cheaper with it than in a call of their own (``entries.cut``); by
  class and tenant if several are queued (``order``).
- **Class batch.** A call of nothing but batch work leaves for a tenth of the time while other classes are active.

If a call fails and one of its entries may be the reason (``ROW_FAULT``), each half of it is called again, until only
the guilty entry fails. An entry that ends early gives up its place at once. A call whose entries have all ended is
cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from time import perf_counter
from typing import Any, Final, Generic, Literal

from gateway.batching.entries import BatchLimits, CallInFlight, Entry, Load, R, cut, merge, split
from gateway.batching.limit import WorkLimit
from gateway.batching.order import FairOrder
from gateway.batching.pressure import CEILINGS, Pressure
from gateway.batching.returns import Returns
from gateway.errors import (
    BackendGarbage,
    BackendRefused,
    DeadlineExceeded,
    GatewayError,
    ModelNotReady,
    Overloaded,
)
from gateway.prices import Prices
from gateway.trace import BATCH, CLASSES, DEFAULT, DEFAULT_FLOW, TRACEPARENT, Flow
from gateway.triton.port import Servers
from preprocessing.collate import split_rows
from preprocessing.errors import InvalidOutput

ROW_FAULT: Final = BackendRefused
"""The failure of a whole call that one of its entries may have caused. A lost connection is not one."""

_LEARN_ALL_CALLS: Final = 64
_LEARN_EVERY_S: Final = 5e-3
"""Learning takes some microseconds. After the first 64 calls, the batcher learns every 5 ms at most."""
_PARALLEL_QUEUEING: Final = 1 / 2
"""Below this ``Prices.queueing``, a server works on several calls at a time: a second call need not wait."""
_LEAD_S: Final = 1.2e-3
"""A call leaves 1.2 ms, plus the usual error of the prices, before the call in front ends, but not before half of that
call's time is over. The event loop may be busy, and the call has to be built and sent by then.
"""
_FAIR_EXCESS: Final = 1.25
"""A tenant with less than its share is admitted until the work in hand is 1.25 times the limit."""
_BEST_CASE: Final = 0.8
"""Prices are wrong by some per cent. An entry is refused only if 80 % of the expected time is already too long."""
_NEAR_S: Final = 0.1
_NEAR_TIMES: Final = 4
"""A deadline further away than 0.1 s plus four times the time for the whole queue need not be checked."""
_BATCH_SHARE: Final = 0.1
"""While other classes are active, calls of class batch take a tenth of the servers' time."""
_ALONE_S: Final = 1.0
"""Other classes are active until 1 s after their last call left."""

_log = logging.getLogger("triton_gateway.batching")


class Batcher(Generic[R]):
    """Owned by one endpoint version; every method runs on the event loop that it was made on.

    ``run(rows, timeout)`` makes one call with the rows of all its entries, in order, within ``timeout`` seconds.
    ``share(result, counts)`` cuts its result into one output for each entry; ``counts`` are the rows of each. The
    default takes a mapping of names to arrays of any dtype whose first dimension is the rows, [sum(counts), …], and
    gives each entry the same names with arrays [count, …].
    ``InvalidOutput`` is the backend's fault: every entry fails with ``BackendGarbage``.
    ``limits.max_padded_tokens`` bounds longest × rows. ``on_batch(rows, padded_tokens, tokens)`` is called for every
    call.
    ``limits.max_in_flight`` applies to each of the ``servers``. ``clock`` returns seconds.
    """

    def __init__(
        self,
        run: Callable[[Sequence[R], float], Awaitable[Any]],
        *,
        limits: BatchLimits,
        on_batch: Callable[[int, int, int], None] = lambda *_: None,
        padding_side: Literal["left", "right"] = "right",
        servers: Servers,
        share: Callable[[Any, Sequence[int]], Sequence[Any]] = split_rows,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._run = run
        self._on_batch = on_batch
        self._padding_side: Literal["left", "right"] = padding_side
        self._share = share
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._servers = servers
        self.prices = Prices()
        """What calls of this batcher cost, learned from them."""
        self.limits = limits
        self.limit = WorkLimit(self.prices, limits)
        """The limit of work, and what a row and a token count."""
        self.pressure: Pressure = limits.pressure
        """Whether the limit of work is in force."""
        self._was_pressed = self.pressure.is_on
        self._queue: list[Entry[R]] = []
        """Oldest first."""
        self._retries: deque[list[Entry[R]]] = deque()
        """Halves of failed calls: the next calls. They count as in hand, but not as queued."""
        self._calls: dict[CallInFlight, None] = {}
        """The calls in flight, oldest first."""
        self._queued, self._held = Load(), Load()
        """What is queued; what is in hand, queued and in calls."""
        self._order = FairOrder()
        self._returns = Returns()
        self._is_flush_scheduled = False
        self._alarm: asyncio.TimerHandle | None = None
        """Flushes when the queue may leave."""
        self._awaits_entries = True
        """Whether a new entry may change when the next call leaves. It may not while that waits for a call to end."""
        self._earliest = math.inf
        """No deadline in the queue is earlier."""
        self._near = -math.inf
        """Loop time. A deadline after it is certainly far enough away, so it is not checked."""
        self._learn_at = -math.inf
        self._others_left = -math.inf
        """Clock time at which the last call with classes other than batch left."""
        self._batch_at = -math.inf
        """Clock time from which the next call of class batch may leave beside other classes."""

    # --- what others see ----------------------------------------------------------------------------------------------

    @property
    def work(self) -> float:
        """The work in hand, queued and in calls: seconds of one server's time."""
        return self._work_up_to(BATCH)

    def _work_up_to(self, rank: int) -> float:
        return self.limit.work(*self._held.up_to(rank))

    @property
    def _max_work(self) -> float:
        """Two full calls for each server; one more for each further call that a server works on at the same time."""
        return self.limit.most(self._servers.replicas + self._slots)

    @property
    def is_idle(self) -> bool:
        """True if nothing is queued and no call is in flight."""
        return not self._queue and not self._calls

    @property
    def queued_rows(self) -> int:
        """Rows that are not in a call yet."""
        return sum(self._queued.rows)

    def queued(self) -> dict[str, int]:
        """Return the number of queued entries of each class of priority."""
        counts = Counter(entry.flow.rank for entry in self._queue)
        return {name: counts[rank] for rank, name in enumerate(CLASSES)}

    # --- the servers --------------------------------------------------------------------------------------------------

    @property
    def _slots(self) -> int:
        """How many calls the servers work on at a time; a further one waits there."""
        is_parallel = self.prices.queueing < _PARALLEL_QUEUEING
        return self._servers.replicas * (self.limits.max_in_flight if is_parallel else 1)

    # --- an entry arrives ---------------------------------------------------------------------------------------------

    def is_full(self, rank: int = DEFAULT, tenant: str = "") -> bool:
        """Return whether a request of this class and tenant is refused for the work that is in hand.

        Work of less important classes does not count, because it is served later.
        """
        if not self.pressure.is_on or not self.pressure.look(self._loop.time()):
            return False
        work, most = self._work_up_to(rank), CEILINGS[rank] * self._max_work
        return work >= most and not (tenant and work < _FAIR_EXCESS * most and self._held.has_less(rank, tenant))

    def refusal(self, entry: Entry[R]) -> GatewayError | None:
        """Return why an entry must be refused now: too much work in hand, or too little time for it. None: admit it."""
        rank, tenant = entry.flow
        if self.is_full(rank, tenant):
            if rank != BATCH:
                self.pressure.press(self._loop.time())
            return _work_full()
        # Without a call in front, an entry is always tried. Otherwise a price that is wrong would refuse every request,
        # and no call would correct it.
        if self._calls and entry.deadline < self._near and self._is_too_late(entry, *self._queued.up_to(rank)):
            return _deadline_unreachable()
        return None

    def _is_too_late(self, entry: Entry[R], rows: int, tokens: int) -> bool:
        """Return whether an entry cannot be answered in time behind so many queued rows and tokens."""
        expected = self._wait(rows + entry.count, tokens + entry.tokens)
        return self.prices.are_known and entry.deadline < self._loop.time() + _BEST_CASE * expected

    def _wait(self, rows: int, tokens: int) -> float:
        """Return the seconds until so many rows and tokens would be answered, if they leave next."""
        slots, prices, limits = self._slots, self.prices, self.limits
        until_free = 0.0
        if len(self._calls) >= slots:
            until_free = max(min(call.expected_end(prices) for call in self._calls) - self._clock(), 0.0)
        calls = max(rows / limits.max_rows, tokens / limits.max_padded_tokens, 1.0)
        return until_free + (prices.call * calls + prices.row * rows + prices.token * tokens) / min(slots, calls)

    def fits(self, rows: Sequence[R]) -> bool:
        """Return whether ``rows`` fit into one call, as ``add`` requires of more than one."""
        limits = self.limits
        most = len(rows) * max([row.n_tokens for row in rows])
        return len(rows) <= limits.max_rows and most <= limits.max_padded_tokens

    async def submit(
        self, rows: Sequence[R], deadline: float, *, flow: Flow = DEFAULT_FLOW, parent: str | None = None
    ) -> tuple[Any, int, int]:
        """Return the outputs of ``rows`` in order, and the nanoseconds spent queued and inferring.

        ``deadline`` and ``parent`` are those of ``Entry``; ``flow`` decides who goes first (see ``order``). Awaits only
        outcomes. Rows that do not fit into one call are spread over several, no more of them at a time than the servers
        have calls in flight: requests that come meanwhile take turns with them. Raises what ``run`` raises,
        ``Overloaded``, or ``DeadlineExceeded``. Cancelling removes what is queued, and cancels the calls that serve no
        other request.
        """
        groups = split([row.n_tokens for row in rows], self.limits)
        entries = [Entry([rows[i] for i in group], deadline, parent=parent, flow=flow) for group in groups]
        parts: list[Any] = []
        ahead = max(self._max_calls, 1)
        try:
            for number, entry in enumerate(entries):
                if number >= ahead:
                    parts.append(await entries[number - ahead])
                self.add(entry, is_admitted=number > 0)
            parts += [await entry for entry in entries[len(parts) :]]
        except BaseException:
            for entry in entries:
                self.abandon(entry)
            raise
        outputs = merge(parts, groups, self._padding_side)
        return outputs, max(e.queued_ns for e in entries), max(e.infer_ns for e in entries)

    def add(self, entry: Entry[R], now: float | None = None, *, is_admitted: bool = False) -> None:
        """Queue an entry. Raises ``Overloaded``, or ``DeadlineExceeded`` if it cannot be answered in time.

        ``now``: the clock's time, if the caller has just read it. ``is_admitted``: another entry of the same request
        was admitted, so this one is as well.
        """
        deadline = entry.deadline
        if (self.pressure.is_on or deadline < self._near) and not is_admitted and (refusal := self.refusal(entry)):
            raise refusal
        entry.batcher = self
        entry.submitted = self._clock() if now is None else now
        self._queue.append(entry)
        self._queued.add(entry)
        self._held.add(entry)
        returns = self._returns
        returns.arrived += entry.count
        if returns.arrived >= returns.target:
            returns.are_back(sum(self._held.rows), entry.submitted)
        self._earliest = min(self._earliest, deadline)
        if self._awaits_entries and not self._is_flush_scheduled:
            self._flush_soon()

    def _flush_soon(self) -> None:
        self._is_flush_scheduled = True
        self._loop.call_soon(self._flush)

    # --- calls leave --------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send the calls that may leave now, and set the alarm for the next one."""
        self._is_flush_scheduled = False
        now = self._clock()
        if self._queue:
            self._near = self._loop.time() + _NEAR_TIMES * self._wait(*self._queued.up_to(BATCH)) + _NEAR_S
            if self._earliest < self._near:
                self._drop(self._too_late(), _deadline_unreachable)
                self._earliest = min((entry.deadline for entry in self._queue), default=math.inf)
        if self.pressure.is_on is not self._was_pressed:
            self._was_pressed = self.pressure.is_on
            self._drop(self._excess() if self._was_pressed else [], _work_full)
        while self._retries and len(self._calls) < self._max_calls:
            half = self._retries.popleft()
            self._held.remove(entry for entry in half if entry.is_over)
            self._start([entry for entry in half if not entry.is_over])
        while (at := self._leave_at(now)) <= now:
            self._start(self._take())
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if at < math.inf:
            self._alarm = self._loop.call_later(at - now, self._flush)

    @property
    def _max_calls(self) -> int:
        return self._servers.replicas * self.limits.max_in_flight

    def _leave_at(self, now: float) -> float:
        """Return the clock time at which the next call of what is queued may leave; infinite if the end of a call must
        come first.
        """
        running = len(self._calls)
        self._awaits_entries = True
        if not self._queue:
            return math.inf
        if running >= self._max_calls:
            self._awaits_entries = False
            return math.inf
        rows, returns = self.queued_rows - self._queued.rows[BATCH], self._returns
        if not rows and now <= self._others_left + _ALONE_S:
            return self._batch_at if running < self._slots else math.inf
        if not running:
            is_waiting = returns.are_usual and self._is_one_call(returns.target - returns.arrived)
            return returns.until if is_waiting else now
        if running < self._slots:
            return now
        self._awaits_entries = False
        front = self._front()
        ends = front.expected_end(self.prices)
        if returns.are_usual and self._is_one_call(sum(call.rows for call in self._calls)):
            return ends + returns.longest(self.prices.call)
        took = self.prices.expect(front.rows, front.padded)
        return ends - min(_LEAD_S + self.prices.spread * took, took / 2)

    def _front(self) -> CallInFlight:
        """Return the oldest call that no other waits behind: the next call waits for its end."""
        fronts = {call.front for call in self._calls}
        return next(call for call in self._calls if call not in fronts)

    def _is_one_call(self, awaited: float) -> bool:
        """Return whether what is queued and the rows of awaited callers make one call, the only one at the server."""
        rows, tokens = self._queued.up_to(BATCH)
        return (
            0 < awaited < math.inf
            and rows + awaited <= self.limits.max_rows
            and (rows + awaited) * tokens <= self.limits.max_padded_tokens * rows
            and rows == self._queued.rows[DEFAULT]
            and not self.pressure.is_on
            and self._slots == 1
        )

    def _too_late(self) -> list[Entry[R]]:
        """Return the queued entries that cannot be answered in time any more; not all if nothing else is in hand."""
        rows = tokens = 0
        found: list[Entry[R]] = []
        for entry in sorted(self._queue, key=lambda entry: entry.flow.rank):
            if self._is_too_late(entry, rows, tokens):
                found.append(entry)
            else:
                rows, tokens = rows + entry.count, tokens + entry.tokens
        return found if self._calls or len(found) < len(self._queue) else []

    def _excess(self) -> list[Entry[R]]:
        """Return the oldest queued entries of class default beyond the limit, which has just come into force.

        Otherwise all others would be answered as late as they.
        """
        excess = self._work_up_to(DEFAULT) - self._max_work
        found: list[Entry[R]] = []
        for entry in self._queue:
            if excess <= 0:
                break
            if entry.flow.rank == DEFAULT:
                excess -= self.limit.work(entry.count, entry.tokens)
                found.append(entry)
        return found

    def _drop(self, entries: Sequence[Entry[R]], why: Callable[[], GatewayError]) -> None:
        self._remove(entries)
        self._held.remove(entries)
        for entry in entries:
            entry.end(None, why())

    def _remove(self, entries: Sequence[Entry[R]]) -> None:
        if entries:
            gone = set(map(id, entries))
            self._queue = [entry for entry in self._queue if id(entry) not in gone]
            self._queued.remove(entries)

    def _take(self) -> list[Entry[R]]:
        """Choose the entries of the next call, and remove them from the queue."""
        limits, prices = self.limits, self.prices
        is_mixed = len({entry.flow for entry in self._queue}) > 1
        batch = self._order.take(self._queue, limits, prices) if is_mixed else cut(self._queue, limits, prices)
        self._remove(batch)
        return batch

    def _start(self, batch: list[Entry[R]]) -> None:
        """Make a call of ``batch``, unless all of its entries have ended."""
        if not batch:
            return
        started = self._clock()
        call = CallInFlight(batch, started)
        rows: list[R] = []
        for entry in batch:
            rows += entry.rows
        if len(self._calls) >= self._servers.replicas:
            call.front = self._front()
        self._calls[call] = None
        first, took = batch[0], self.prices.expect(call.rows, call.padded)
        if first.flow.rank == BATCH:
            self._batch_at = started + took / _BATCH_SHARE / self._servers.replicas
        else:
            self._others_left = started
        # A call that several requests share is a part of the first one's trace.
        call.task = self._loop.create_task(self._send(call, rows, call.latest - self._loop.time(), first.parent))
        try:
            self._on_batch(call.rows, call.padded, call.tokens)
        except Exception:  # noqa: BLE001 - a fault in counting must not fail the request
            _log.exception("counting a call failed")

    async def _send(self, call: CallInFlight, rows: Sequence[R], timeout: float, parent: str) -> None:
        outside = TRACEPARENT.set(parent)
        outputs: Any = None
        error: BaseException | None = None
        try:
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
        self._awaits_entries = True
        del self._calls[call]
        for other in self._calls:
            if other.front is call:
                other.front, other.front_ended = None, now
        if call.front is not None:  # it ended before the call that it was expected to wait for
            call.front, call.front_ended = None, now
        held = self._work_up_to(DEFAULT)
        self._held.remove(call.entries)
        self._returns.ended(call.rows, now, self.prices.call)
        call.task = None
        outputs: Sequence[Any] = ()
        if error is None:
            try:
                outputs = self._share(result, [entry.count for entry in call.entries])
                if len(outputs) != len(call.entries):
                    raise BackendGarbage(f"{len(outputs)} outputs came back for {len(call.entries)} entries")
                self._learn(call, now, held)
            except InvalidOutput as wrong:
                error = BackendGarbage(wrong.message, hint=wrong.hint or "")
            except Exception as failure:  # noqa: BLE001 - the entries get it, whatever it is
                error = failure
        elif not isinstance(error, Exception):
            error = ModelNotReady("this version is being closed", retry_after=0)
        elif isinstance(error, ROW_FAULT):
            live = [entry for entry in call.entries if not entry.is_over]
            if len(live) > 1:
                self._halve(live, now)
                live = []
            call.entries = live
        if (self._queue or self._retries) and not self._is_flush_scheduled:
            # The loop first reads what has arrived at the sockets, so the next call takes that along. The call leaves
            # before the answers of this one are made.
            self._flush_soon()
            self._loop.call_soon(_end_all, call, now, outputs, error)
        else:
            _end_all(call, now, outputs, error)

    def _learn(self, call: CallInFlight, now: float, held: float) -> None:
        """Learn from a call that ended at ``now``; work of class default and above ``held`` was in hand with it."""
        if now >= self._learn_at or self.prices.calls <= _LEARN_ALL_CALLS:
            self._learn_at = now + _LEARN_EVERY_S
            self.prices.learn(call.rows, call.padded, max(call.front_ended - call.started, 0.0), now - call.started)
            self.limit.learn(call.rows, call.padded, call.tokens)
        most = self._max_work
        if self.limit.rises(now, held, most) and held >= most:
            self.pressure.press(self._loop.time())

    def _halve(self, entries: list[Entry[R]], now: float) -> None:
        # Halving finds one bad entry among n in about 2·log2(n) calls instead of n.
        for entry in entries:
            entry.submitted, entry.call = now, None
            self._held.add(entry)
        middle = len(entries) // 2
        self._retries.extend((entries[:middle], entries[middle:]))

    # --- entries end early --------------------------------------------------------------------------------------------

    def abandon(self, entry: Entry[R]) -> None:
        """Forget an entry whose request has ended: frees its place, and cancels a call that served no other."""
        if entry.is_over:
            return
        call, entry.call = entry.call, None
        entry.is_over = True
        if call is None:
            if entry in self._queue:
                self._queue.remove(entry)
                self._queued.remove([entry])
                self._held.remove([entry])
        elif call.task is not None and all(other.is_over for other in call.entries):
            self._loop.call_soon(call.task.cancel)  # after its first step: without that one, it would take no other

    async def close(self) -> None:
        """Refuse what is queued, and wait until the running calls have ended."""
        queued = [*self._queue, *chain(*self._retries)]
        self._remove(self._queue)
        self._retries.clear()
        self._held.remove(queued)
        for entry in queued:
            entry.end(None, _replaced())
        while (tasks := [call.task for call in self._calls if call.task is not None]) or self._retries:
            # Without a running call, halves of a failed one leave in the next turn of the event loop.
            await (asyncio.wait(tasks) if tasks else asyncio.sleep(0))
        if self._alarm is not None:
            self._alarm.cancel()
        # ``run`` may be a method of this batcher's owner. Without this reference, both are freed at once.
        self._run = _closed


def _end_all(call: CallInFlight, now: float, outputs: Sequence[Any], error: Exception | None) -> None:
    took = int((now - call.started) * 1e9)
    if error is not None:
        for entry in call.entries:
            entry.end(None, error)
        return
    for entry, output in zip(call.entries, outputs, strict=True):
        entry.infer_ns = took
        entry.end(output, None)


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
