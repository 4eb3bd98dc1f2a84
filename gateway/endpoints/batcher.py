"""Puts concurrent entries of one endpoint version together into few calls: text rows, tensors, or a hook's requests.

One ``Batcher`` belongs to one endpoint and one event loop. An entry is what one request asks of a call: its rows,
its deadline, and who is told. The life of an entry:

    waiting ──► in a call ──► ended: its outputs, its error, DeadlineExceeded at its deadline, or abandoned
       ▲            │
       └─ halved ◄──┘  the call failed for a reason of one of its entries

- **When a call leaves.** If a server is idle, at the end of the current loop tick: simultaneous requests share a call,
  a lone request never waits. While calls run, what arrives waits until a call is full, until everybody is here who was
  lately, or until the call it would stand behind is about to end: until then leaving gains nothing, and more may come.
- **Who is in it.** The oldest entry, and those that are cheaper with it than in a call of their own. If several classes
  or tenants wait, whose turn it is says ``order``.
- **Both by expected time**, from what calls of this batcher have taken (``prices``).
- **One rule for a poisoned call.** If a call fails for a reason that one of its entries may have brought
  (``ROW_FAULTS``), each half of it is called again, until only the guilty one fails. A lost connection is no reason.
- **Ended means ended.** An entry that ends early leaves its place at once. A call whose entries have all ended is
  cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Final, Generic, Literal

from gateway.admission import CEILINGS, Pressure
from gateway.endpoints.door import Door
from gateway.endpoints.entries import BatchLimits, Entry, OnDone, R, cut, merge, n_tokens, split
from gateway.endpoints.limit import WorkLimit
from gateway.endpoints.order import Order
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
from gateway.trace import BATCH, CLASSES, CRITICAL, DEFAULT, EVERYBODY, TRACEPARENT, Lane
from gateway.triton.port import Servers
from preprocessing.collate import split_rows

ROW_FAULTS: Final = (BackendRefused, HookFailed)
"""Failures of a whole call that one of its entries may have caused."""

_LEAD_S: Final = 1.2e-3
"""A call leaves so long before the one in front of it is expected to end, and as long as calls are usually off; at most
half of that one's time. It has to be made and sent by then, by a loop that may be busy.
"""
_LEARNED: Final = 64
"""Calls after which no longer every one is learned from."""
_TOGETHER: Final = 0.05
"""A call that ends within this share of its time after the one in front of it was no call of its own to the server."""
_LEARN_EVERY_S: Final = 5e-3
"""Learning takes some microseconds: of short calls some are enough."""
_TRIED_EVERY: Final = 16
_TRIED_FROM: Final = 8
"""While all calls are alike, every sixteenth is half of one, from so many entries on: what does a smaller one cost?"""
_KNOWN: Final = 16
"""Calls after which prices are good enough to turn somebody away by."""
_SURELY: Final = 0.8
"""Prices are wrong by some per cent: who is turned away could not have been answered even if all went better."""
_NEAR_S: Final = 0.1
_FRESH_S: Final = 1.0
"""So long after the last call its time says what the next one takes at least."""
_BATCH_SHARE: Final = 0.1
"""Calls of batch work alone take so much of the time beside other classes, if fewer than half of the servers idle."""
_BATCH_TIMES: Final = 2.0
"""They take so many times as long as calls of other classes, at most."""
_ALONE_S: Final = 1.0
"""So long after the last call of other classes batch work goes as if it were alone."""
_FAIR: Final = 1.25
"""A tenant that has less than its share may come in until so many times the limit is in hand."""
_DOUBTFUL: Final = 1.25
"""From so many times what a limit of work would let in, it may be that more comes than can be answered."""
_GROWS: Final = 0.2
"""And if so much of a full call is in hand more when a call ends than when the last one did."""
_DOUBT_S: Final = 0.7
"""So long at most is it in doubt: then those who came first go first again."""
_OPEN: Final = 0.6
"""The door is open for so much of a call's time at first."""
_FULL: Final = 0.9
"""What waits and is in calls is as much as servers need if it is so much of the limit."""
_SHARES_S: Final = 5e-3
"""Shares are counted this often at most."""
_PARALLEL: Final = 1 / 3
"""A server with a smaller share of ``queueing`` takes several calls at a time: a second one need not wait."""
_SERIAL: Final = (0.7, 0.55)
"""One with a larger share takes one after the other; the second number if other gateways' calls blur it. One that takes
four at a time is said to have half, by mistake.
"""


class _One(Servers):
    @property
    def replicas(self) -> int:
        return 1


_log = logging.getLogger("triton_gateway.batching")


class UnderWay:
    """One call under way. It stands behind ``front`` if the server was busy when it left."""

    __slots__ = (
        "entries", "follower", "front", "front_ended", "longest", "others", "padded", "rows", "started", "task",
    )  # fmt: skip

    def __init__(self, entries: list[Entry[Any]], started: float) -> None:
        self.entries = entries
        self.rows = self.longest = self.padded = 0
        self.others: dict[int, int] = {}
        """Its rows of classes other than default, by rank."""
        self.started = started
        self.front: UnderWay | None = None
        self.front_ended = started
        self.follower: UnderWay | None = None
        self.task: asyncio.Task[Any] | None = None

    def ends(self, prices: Prices) -> float:
        """Return when it is expected to end."""
        front_ends = self.front_ended if self.front is None else self.front.ends(prices)
        behind = max(front_ends - self.started, 0.0)
        return self.started + prices.queueing * behind + prices.expect(self.rows, self.padded)


class Batcher(Generic[R]):
    """Owned by one endpoint version; every method runs on the event loop it was made on.

    ``run(rows, timeout)`` makes one call with the rows of its entries, in order, within ``timeout`` seconds; ``share``
    cuts what it returns into the entries' outputs, given the number of rows of each (by default named arrays whose
    first dimension is rows). An output that is an exception is its entry's error. ``size`` returns the cost of a row,
    which ``limits.max_padded_tokens`` counts as longest × rows. ``on_batch(rows, padded_tokens, tokens)`` is told about
    every call. ``limits.max_in_flight`` counts for each of the ``servers``.
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
        self._pressure = limits.pressure
        self._servers: Servers = servers or _One()
        self._limits = self._alone = limits
        self._shared = limits
        """While more comes than can be answered: the server puts calls of all gateways together."""
        if limits.gateways > 1:
            self._shared = replace(limits, max_rows=max(limits.max_rows // limits.gateways, 1))
        self._on_batch = on_batch
        self._padding_side: Literal["left", "right"] = padding_side
        self._size = size
        self._share = share
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Entry[R]] = []
        self._waiting_rows = 0
        self._waiting_tokens = 0
        self._lane = EVERYBODY
        """Of the oldest that waits."""
        self._is_mixed = False
        """Whether others than its like wait with it."""
        self._class_rows = [0] * len(CLASSES)
        self._class_tokens = [0] * len(CLASSES)
        """What waits of each class but default, whose is the rest: nearly always all of it."""
        self._others_at = -math.inf
        """When the last call with rows of other classes left."""
        self._others_s = 0.0
        """How long such calls take."""
        self._batch_at = -math.inf
        """When the next call of batch work alone may leave beside other classes."""
        self._order = Order()
        self._halves: deque[list[Entry[R]]] = deque()
        """Halves of calls that failed: each is the next call."""
        self._calls: dict[UnderWay, None] = {}
        """Calls under way, oldest first."""
        self._aside: dict[UnderWay, None] = {}
        """Those at servers that are too slow to share the calls: no other stands behind them, and their rows are no
        work of the servers that do.
        """
        self._rows_in_flight = 0
        self._padded_in_flight = 0
        self._class_rows_in_flight = [0] * len(CLASSES)
        self._class_padded_in_flight = [0] * len(CLASSES)
        """The same of what is in calls."""
        self._crowd = 0.0
        """How many rows were here together lately, waiting and in calls."""
        self._is_flush_scheduled = False
        self._max_calls = 0
        self._near = -math.inf
        """Loop time; of what has more time than until then, it need not be asked whether that suffices."""
        self._near_at = -math.inf
        """When that is looked at again."""
        self._leave_at: float | None = None
        """When a call may leave that would stand behind another one; None: not looked at since calls changed."""
        self._turn = 0
        self._learn_at = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._leave_rows = 0.0
        """While the alarm is set: with so many rows waiting it is time to look before it rings."""
        self._due = math.inf
        """The earliest deadline, in loop time, that ``_timer`` is set for."""
        self._timer: asyncio.TimerHandle | None = None
        # The quickest of the last calls: what no call has beaten lately, this one will not beat either.
        self._recent: deque[float] = deque(maxlen=16)
        self._fresh_until = -math.inf
        self.prices = Prices()
        """What calls of this batcher cost, learned from them."""
        self._shares: Counter[Lane] = Counter()
        """Rows in hand, as they were counted last: only while somebody would be refused."""
        self._shares_at = -math.inf
        self.limit = WorkLimit(self.prices, limits)
        """How much work should be in hand at most."""
        self._calm_at = math.inf
        """When it was not in doubt last whether more comes than can be answered."""
        self._held_rows, self._grows = 0, False
        """How much was in hand when the last call ended, and whether that was more than before."""
        self._door = Door()
        self._opens_at: float | None = None
        """When it opens; None: not looked at since calls changed."""
        self._is_pressed = limits.pressure.is_on
        """Whether its limit of work held when it was last looked."""

    @property
    def work(self) -> float:
        """The work in hand, waiting and in calls: seconds of one server's time."""
        return self.limit.work(self._waiting_rows + self._rows_in_flight, self._waiting_tokens + self._padded_in_flight)

    @property
    def most_work(self) -> float:
        """As much work should be in hand at most; infinite while that is not known."""
        fixed, servers = self._pressure.fixed, self._servers.replicas
        if fixed:
            return fixed * servers
        # Several servers are not all busy when one would have to be refused; one is, with one call if it takes one.
        return self.limit.most(self._at_once if servers == 1 else servers * self._limits.max_in_flight)

    @property
    def pressure(self) -> Pressure:
        """Whether its limit of work holds."""
        return self._pressure

    def is_full(self, rank: int = DEFAULT, tenant: str = "") -> bool:
        """Return whether limits of work hold and as much of a class is in hand as may be.

        Work of less important classes does not count: it is served later. A tenant that has less than its share of what
        is in hand is let in a little beyond that: it is not the one who asks for too much.
        """
        if not (self._is_at(CEILINGS[rank], rank) or (rank == DEFAULT and self._is_shut())):
            return False
        if tenant and not self._is_at(_FAIR * CEILINGS[rank], rank) and self._has_less(Lane(rank, tenant)):
            return False
        if self._servers.spare == math.inf or not self._waiting:
            if rank != BATCH and self._is_serial:
                # Who is refused was here, too: no call leaves early for want of others.
                self._crowd = max(self._crowd, 2.0 * self._limits.max_rows)
                self._share_calls()
            return True
        self._flush_soon()  # a server that is too slow to share the calls takes what waits, rather than be refused
        return False

    def _is_at(self, share: float, rank: int = BATCH) -> bool:
        return self._pressure.is_on and self._work_before(rank) >= self.most_work * share

    def _is_shut(self) -> bool:
        """Return whether a limit of work holds and the next call is filled by those who come later."""
        if not (self._pressure.is_on and self._calls and self._is_serial):
            return False
        now = self._clock()
        if self._opens_at is None:
            self._opens_at = self._last().ends(self.prices) - self._door.lead
        if now < self._opens_at:
            return True
        if len(self._calls) < self._max_calls and self._is_at(_FULL, DEFAULT):
            self._door.filled(now)
        return False

    def _has_less(self, lane: Lane) -> bool:
        """Return whether a tenant has less than its share of what is in hand of its class."""
        shares, now = self._shares, self._loop.time()
        if now >= self._shares_at + _SHARES_S:
            self._shares_at = now
            shares.clear()
            for entry in self._entries():
                shares[entry.lane] += entry.count
        mine, held = shares[lane], [rows for of, rows in shares.items() if of.rank == lane.rank]
        # While the door is shut there is less in hand than there will be.
        to_come = max(self.most_work / max(self._work_before(lane.rank), 1e-9), 1.0)
        return not mine or mine * len(held) < sum(held) * to_come

    def _work_before(self, rank: int) -> float:
        """Return the work in hand of a class and of more important ones."""
        rows, tokens = self._waits_before(rank)
        return self.limit.work(
            rows + _up_to(rank, self._rows_in_flight, self._class_rows_in_flight),
            tokens + _up_to(rank, self._padded_in_flight, self._class_padded_in_flight),
        )

    def _waits_before(self, rank: int) -> tuple[int, int]:
        """Return the rows and tokens that wait of a class and of more important ones."""
        return (
            _up_to(rank, self._waiting_rows, self._class_rows), _up_to(rank, self._waiting_tokens, self._class_tokens)
        )  # fmt: skip

    def refusal(self, entry: Entry[R]) -> GatewayError | None:
        """Return why an entry cannot be taken in now: no room for its work, or no time for it."""
        rank, tenant = entry.lane
        if self.is_full(rank, tenant):
            if rank != BATCH:
                self._pressure.press(self._loop.time())
            return _full()
        if entry.deadline < self._near and self._is_hopeless(entry, *self._waits_before(rank), self._loop.time()):
            return _hopeless()
        return None

    @property
    def holds(self) -> float:
        """The limit of work that holds now; NaN if there is none."""
        most = self.most_work if self._pressure.is_on else math.inf
        return math.nan if most == math.inf else most

    def queued(self) -> dict[str, int]:
        """Return how many entries wait, by class of priority."""
        counts = Counter(entry.lane.rank for entry in self._waiting)
        return {name: counts[rank] for rank, name in enumerate(CLASSES)}

    @property
    def is_idle(self) -> bool:
        """True if nothing waits and no call is under way."""
        return not self._waiting and not self._calls and not self._aside

    @property
    def waiting_rows(self) -> int:
        """Rows that have not left yet."""
        return self._waiting_rows

    async def submit(
        self, rows: Sequence[R], deadline: float, *, count: int = 0, kind: Hashable = None, lane: Lane = EVERYBODY
    ) -> tuple[Any, int, int]:
        """Return the outputs of ``rows`` in order, and the nanoseconds spent waiting and inferring.

        ``deadline`` is in loop time; ``count``, ``kind`` and ``lane`` as ``begin`` takes them. Raises what ``run``
        raises, or ``DeadlineExceeded``. Cancelling drops what has not left, and the calls nobody else shares.
        """
        groups = self._groups(rows)
        futures: list[asyncio.Future[Any]] = []
        entries: list[Entry[R]] = []
        for group in groups:
            future: asyncio.Future[Any] = self._loop.create_future()
            futures.append(future)
            mine = rows if len(groups) == 1 else [rows[i] for i in group]
            entry = Entry(mine, deadline, partial(_tell, future), self._size, count, kind)
            entry.lane = lane
            entries.append(entry)
        try:
            for entry in entries:
                self.add(entry, is_in=entry is not entries[0])
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
        return len(self._groups(rows)) == 1

    def _groups(self, rows: Sequence[R]) -> list[list[int]]:
        return [[0]] if len(rows) == 1 else split([self._size(row) for row in rows], self._alone)

    def begin(
        self, rows: Sequence[R], deadline: float, on_done: OnDone, *, count: int = 0, kind: Hashable = None,
        lane: Lane = EVERYBODY,
    ) -> Entry[R]:  # fmt: skip
        """Queue ``rows`` for the next call; ``on_done`` is called from the loop when they are through, at the latest at
        ``deadline`` (loop time).

        What ``submit`` does for a coroutine, for a caller that has none. ``abandon`` takes it back. One row may be
        ``count`` rows to the server; entries of another ``kind`` do not share a call. ``lane``: see ``order``. Raises
        as ``add`` does.
        """
        entry = Entry(rows, deadline, on_done, self._size, count, kind)
        entry.lane = lane
        self.add(entry)
        return entry

    def add(self, entry: Entry[R], *, is_in: bool = False) -> None:
        """Queue an entry; see ``begin``. Raises ``Overloaded``, or ``DeadlineExceeded`` if its time cannot suffice.

        ``is_in``: its request has others that were taken; it comes in as a whole, however much of the limit it takes.
        """
        deadline, lane, waiting = entry.deadline, entry.lane, self._waiting
        if self._pressure.is_on or deadline < self._near:
            if not is_in and (refusal := self.refusal(entry)):
                raise refusal
            if lane.tenant and self._pressure.is_on:
                self._shares[lane] += entry.count
        entry.submitted = self._clock()
        if not waiting:
            self._lane, self._is_mixed = lane, False
        elif lane is not self._lane and lane != self._lane:
            self._is_mixed = True
        waiting.append(entry)
        self._waiting_rows += entry.count
        self._waiting_tokens += entry.tokens
        if lane is not EVERYBODY and lane.rank != DEFAULT:
            self._class_rows[lane.rank] += entry.count
            self._class_tokens[lane.rank] += entry.tokens
        if deadline < self._due:
            self._watch(deadline)
        if not self._is_flush_scheduled:
            if self._alarm is not None:  # the alarm looks at the time, and what it was set by has not changed
                if self._waiting_rows >= self._leave_rows or self._waiting_tokens >= self._limits.max_padded_tokens:
                    self._flush_soon()
                return
            calls = len(self._calls)
            if not calls or (calls < self._max_calls and self._may_leave()):
                self._flush_soon()
            elif calls < self._max_calls:
                self._set_alarm()

    def _flush_soon(self) -> None:
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def abandon(self, entry: Entry[R]) -> None:
        """Forget an entry nobody waits for: its place is free at once; a call that served no other is cancelled."""
        if not entry.is_over:
            call, entry.call = entry.call, None
            entry.is_over, entry.on_done = True, None
            self._vacate(entry, call)

    async def close(self) -> None:
        """Refuse what is waiting and let running calls end."""
        waiting = [*self._waiting, *(entry for half in self._halves for entry in half)]
        self._none_waits()
        self._halves.clear()
        for entry in waiting:
            entry.end(None, _replaced())
        while tasks := [call.task for call in (*self._calls, *self._aside) if call.task is not None]:
            await asyncio.wait(tasks)
        for timer in (self._alarm, self._timer):
            if timer is not None:
                timer.cancel()
        # Who closes this may own it and be what it runs: both go at once then, without a collection.
        self._run = _closed

    # --- entries that end before their call does ----------------------------------------------------------------------

    def _vacate(self, entry: Entry[R], call: UnderWay | None) -> None:
        if call is not None:
            if call.task is not None and all(other.is_over for other in call.entries):
                call.task.cancel()
        elif entry in self._waiting:
            self._waiting.remove(entry)
            self._has_left([entry])

    def _entries(self) -> Iterator[Entry[R]]:
        yield from self._waiting
        for half in self._halves:
            yield from half
        for call in (*self._calls, *self._aside):
            yield from call.entries

    def _watch(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        """End what is too late, wherever it is. Set for the earliest deadline: most entries have ended long before."""
        now = self._loop.time() + 1e-3  # a loop counts whole milliseconds
        live = [entry for entry in self._entries() if not entry.is_over]
        self._due, self._timer = math.inf, None
        later = min((entry.deadline for entry in live if entry.deadline > now), default=math.inf)
        if later < math.inf:
            self._watch(later)
        for entry in live:
            if entry.deadline <= now:
                call = entry.call
                entry.end(None, _too_late())
                self._vacate(entry, call)

    # --- entries that cannot end in time ------------------------------------------------------------------------------

    def _is_hopeless(self, entry: Entry[R], rows: int, tokens: int, now: float) -> bool:
        """Return whether an entry's time is over before it can be answered, if so much leaves before it."""
        # What leaves at once is always tried: prices that nothing can correct any more would turn everybody away.
        return (
            bool(self._calls)
            and self.prices.calls >= _KNOWN
            and entry.deadline < now + _SURELY * self._expect(rows + entry.count, tokens + entry.tokens)
        )

    def _expect(self, rows: int, tokens: int) -> float:
        """Return the seconds until so much would be answered that leaves next, at best: as if nothing were padded."""
        prices, limits, at_once = self.prices, self._limits, self._at_once
        lead = 0.0
        if len(self._calls) >= at_once:
            lead = max(min(call.ends(prices) for call in self._calls) - self._clock(), 0.0)
        calls = max(rows / limits.max_rows, tokens / limits.max_padded_tokens, 1.0)
        return lead + (prices.call * calls + prices.row * rows + prices.token * tokens) / min(at_once, calls)

    def _drop_hopeless(self) -> None:
        """End what waits and cannot be answered in time any more, so that the others can be."""
        now = self._loop.time()
        rows = tokens = 0
        kept: list[Entry[R]] = []
        dropped: list[Entry[R]] = []
        waiting = sorted(self._waiting, key=_rank) if self._is_mixed else self._waiting
        for entry in waiting:
            if self._is_hopeless(entry, rows, tokens, now):
                dropped.append(entry)
            else:
                rows, tokens = rows + entry.count, tokens + entry.tokens
                kept.append(entry)
        self._drop(dropped, _hopeless)

    def _drop_excess(self) -> None:
        """Refuse what has waited longest of class default, as far as more is in hand than the limit that holds from now
        on: the others would all be answered as late. More important work and what fills gaps is not in their way.
        """
        excess = self._work_before(DEFAULT) - self.most_work if self._is_pressed else 0.0
        if excess > 0 and self._is_serial:
            # The next call is filled by those who come until it is needed.
            excess = math.inf if self._calls else self._work_before(DEFAULT) - self.limit.floor
        dropped: list[Entry[R]] = []
        for entry in self._waiting:
            if excess <= 0:
                break
            if entry.lane.rank == DEFAULT:
                excess -= self.limit.work(entry.count, entry.tokens)
                dropped.append(entry)
        self._drop(dropped, _full)

    def _drop(self, entries: Sequence[Entry[R]], why: Callable[[], GatewayError]) -> None:
        if entries:
            gone = set(map(id, entries))
            self._waiting = [entry for entry in self._waiting if id(entry) not in gone]
            self._has_left(entries)
            for entry in entries:
                entry.end(None, why())

    # --- calls --------------------------------------------------------------------------------------------------------

    def _may_leave(self) -> bool:
        """True if a call of what waits may start beside those under way; asked only if there is a free place for it."""
        calls = len(self._calls)
        if calls < self._servers.replicas:
            return True
        # Batch work alone goes by itself; beside others it makes no call leave earlier.
        rows = self._waiting_rows - self._class_rows[BATCH] or self._waiting_rows
        limits = self._limits
        if self._leaves_late():
            return self._clock() >= self._behind()
        if rows >= limits.max_rows or (
            not self._class_rows[BATCH] and self._waiting_tokens >= limits.max_padded_tokens
        ):
            return True  # it will not become any fuller
        if self.prices.queueing < _PARALLEL:
            if rows * 4 * calls >= self._rows_in_flight:
                return True  # a server that takes it beside the others: worth it from a quarter of their size
        elif rows + self._rows_in_flight >= self._crowd:
            return True  # everybody is here who was lately
        return self._clock() >= self._behind()

    def _leaves_late(self) -> bool:
        """Return whether a call leaves shortly before it is needed, full or not: who comes last goes first, or the
        server would put two calls of this gateway together, and not one of each.
        """
        return self._is_serial and (self._is_sharing or self._is_doubtful())

    def _is_held(self) -> bool:
        """Whether nothing but batch work waits, and has to: others were here just now, and would wait for its call.

        It may take a server while most are idle, and for ``_BATCH_SHARE`` of the time beyond that.
        """
        if not self._class_rows[BATCH] or self._class_rows[BATCH] < self._waiting_rows:
            return False
        now = self._clock()
        if now > self._others_at + _ALONE_S:
            return False
        idle = self._at_once - len(self._calls)
        return idle < 1 or (now < self._batch_at and (idle < 2 or 2 * idle <= self._at_once))

    @property
    def _is_serial(self) -> bool:
        """Whether there is one server, and it is known to take one call after the other.

        What a slower one beside it helps with would be refused at the door.
        """
        prices, servers = self.prices, self._servers
        return (
            servers.replicas == 1
            and not servers.has_outliers
            and (self._is_sharing or (prices.queueing >= _SERIAL[self._limits.gateways > 1] and prices.calls >= _KNOWN))
        )

    @property
    def _is_sharing(self) -> bool:
        return self._limits is not self._alone

    @property
    def _at_once(self) -> int:
        """How many calls the servers work on at a time."""
        parallel = self.prices.queueing < _PARALLEL and not self._is_sharing
        return self._servers.replicas * (self._limits.max_in_flight if parallel else 1)

    def _is_for_a_spare(self) -> bool:
        """Whether a server that is too slow to share the calls gets one: if so much waits that it is done with it
        before the others are, or somebody would have to be refused.
        """
        if self._servers.spare == math.inf:
            return False
        rows = self._waiting_rows + self._rows_in_flight
        return self._is_at(1.0) or rows >= self._limits.max_rows * self._servers.replicas * self._servers.spare

    def _behind(self) -> float:
        """Return when a call may leave that stands behind another: shortly before that is expected to end."""
        if self._leave_at is None:
            front, prices = self._last(), self.prices
            price = prices.expect(front.rows, front.padded)
            self._leave_at = front.ends(prices) - min(_LEAD_S + prices.spread * price, price / 2)
        return self._leave_at

    def _set_alarm(self) -> None:
        """Wake up when what waits may leave, if there is a place for it by then."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._waiting and len(self._calls) < self._max_calls:
            calls = len(self._calls)
            if self._leaves_late():
                rows = math.inf
            elif self.prices.queueing < _PARALLEL and calls:
                rows = self._rows_in_flight / (4 * calls)
            else:
                rows = self._crowd - self._rows_in_flight
            self._leave_rows = max(rows if rows == math.inf else min(rows, self._limits.max_rows), 0.0)
            if not (self._class_rows[BATCH] and self._is_held()):
                at = self._behind()
            elif calls < self._at_once:
                at = self._batch_at
            else:
                return  # a call that comes back is what it waits for
            self._alarm = self._loop.call_later(max(at - self._clock(), 0.0), self._ring)

    def _ring(self) -> None:
        self._alarm, self._leave_at = None, 0.0
        self._flush()

    def _share_calls(self, *, is_on: bool = True) -> None:
        """Make calls of this gateway's share of one if the server takes one after the other, or whole ones again."""
        if is_on is not self._is_sharing and (self._is_serial or not is_on):
            self._limits = self.limit.limits = self._shared if is_on else self._alone

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        self._max_calls = self._limits.max_in_flight * self._servers.replicas
        now = self._loop.time()
        if now >= self._near_at:
            self._near_at = now + _NEAR_S / 8
            self._near = now + 4 * self._expect(self._waiting_rows, self._waiting_tokens) + _NEAR_S
        if self._due < self._near and self._waiting:
            self._drop_hopeless()
        if self._pressure.is_on is not self._is_pressed:
            self._is_pressed = not self._is_pressed
            self._share_calls(is_on=self._is_pressed)
            self._door.lead = _OPEN * self.limit.floor if self._is_pressed else math.inf
            self._drop_excess()
        while len(self._calls) < self._max_calls:
            if self._halves:
                self._start([entry for entry in self._halves.popleft() if not entry.is_over])
            elif self._waiting and (not self._calls or self._may_leave()):
                if self._class_rows[BATCH] and self._is_held():
                    break
                self._start(self._take())
            else:
                break
        while self._waiting and self._is_for_a_spare():
            self._start(self._take(), self._aside)
        if self._waiting or self._alarm is not None:
            self._set_alarm()

    def _take(self) -> list[Entry[R]]:
        waiting = self._waiting
        if self._is_doubtful():
            waiting = waiting[::-1]
        if self._is_mixed:
            batch = self._order.take(waiting, self._limits, self.prices)
        else:
            batch = waiting if len(waiting) == 1 else cut(waiting, self._limits, self.prices)
        if self._class_rows[BATCH] == self._waiting_rows and self._clock() <= self._others_at + _ALONE_S:
            batch = self._short(batch)
        self._turn += 1
        if len(batch) >= _TRIED_FROM and not self._turn % _TRIED_EVERY and self.prices.are_guessed:
            batch = batch[: len(batch) // 2]
        if len(batch) == len(waiting):
            self._none_waits()
        else:
            chosen = set(map(id, batch))
            self._waiting = [entry for entry in waiting if id(entry) not in chosen]
            self._has_left(batch)
        return batch

    def _is_doubtful(self) -> bool:
        """Return whether more has come than a limit of work would let in, and becomes more, but not yet for so long
        that the limit holds. Those who came last go first then: if it goes on, the oldest are refused, and until then
        nobody was answered late.
        """
        pressure = self._pressure
        if not pressure.may_change or pressure.is_on or self._work_before(DEFAULT) < _DOUBTFUL * self.most_work:
            self._calm_at = self._clock()
            return False
        return self._grows and self._clock() < self._calm_at + _DOUBT_S

    def _short(self, batch: list[Entry[R]]) -> list[Entry[R]]:
        """Return as much of a call of batch work as others can wait for."""
        most, rows, longest = _BATCH_TIMES * self._others_s, 0, 0
        for number, entry in enumerate(batch):
            rows, longest = rows + entry.count, max(longest, entry.longest)
            if number and self.prices.expect(rows, rows * longest) > most:
                return batch[:number]
        return batch

    def _has_left(self, entries: Sequence[Entry[R]]) -> None:
        """Count entries that wait no longer."""
        for entry in entries:
            self._waiting_rows -= entry.count
            self._waiting_tokens -= entry.tokens
            if entry.lane.rank != DEFAULT:
                self._class_rows[entry.lane.rank] -= entry.count
                self._class_tokens[entry.lane.rank] -= entry.tokens

    def _none_waits(self) -> None:
        self._waiting, self._waiting_rows, self._waiting_tokens = [], 0, 0
        if any(self._class_rows):
            self._class_rows, self._class_tokens = [0] * len(CLASSES), [0] * len(CLASSES)

    def _start(self, batch: list[Entry[R]], calls: dict[UnderWay, None] | None = None) -> None:
        started = self._clock()
        now = self._loop.time()
        # What was learned long ago turns nobody away: that would be for ever, if nobody else asks.
        quickest = min(self._recent, default=0.0) if started < self._fresh_until else 0.0
        if self._due <= now + quickest:  # the earliest deadline there is
            batch = self._in_time(batch, started, now + quickest)
        if not batch:
            return
        call = UnderWay(batch, started)
        rows: list[R] = []
        count = tokens = longest = 0
        latest = -math.inf
        for entry in batch:
            entry.call = call
            entry.queued_ns += int((started - entry.submitted) * 1e9)
            rows += entry.rows
            count += entry.count
            tokens += entry.tokens
            if entry.longest > longest:
                longest = entry.longest
            # A call serves entries with different deadlines: it runs to the latest, each entry ends at its own.
            if entry.deadline > latest:
                latest = entry.deadline
            if entry.lane is not EVERYBODY and entry.lane.rank != DEFAULT:
                call.others[entry.lane.rank] = call.others.get(entry.lane.rank, 0) + entry.count
        call.rows, call.longest, call.padded = count, longest, count * longest
        first = batch[0]
        if first.lane.rank != BATCH:
            self._others_at = started
            self._others_s += (self.prices.expect(call.rows, call.padded) - self._others_s) / 16
        else:
            self._batch_at = started + self.prices.expect(call.rows, call.padded) / _BATCH_SHARE
        if calls is None:
            calls = self._calls
            if calls and len(calls) >= self._servers.replicas:
                front = call.front = self._last()
                front.follower = call
        calls[call] = None
        if calls is self._calls:
            self._count_in_flight(call, 1)
        more = self._waiting_rows - self._class_rows[BATCH] + self._rows_in_flight - self._crowd
        self._crowd += more if more > 0 else more / 32
        # A call that several requests share is a part of the first one's trace.
        call.task = self._loop.create_task(self._send(rows, latest - now, first.parent))
        call.task.add_done_callback(partial(self._returned, call))
        self._leave_at = self._opens_at = None
        if self._pressure.is_on:
            self._tell_door(call)
        try:
            self._on_batch(call.rows, call.padded, tokens)
        except Exception:  # noqa: BLE001 - counting is nobody's answer
            _log.exception("counting a call failed")

    def _in_time(self, batch: list[Entry[R]], started: float, until: float) -> list[Entry[R]]:
        """End the entries whose time is over before a call could end, and return the others."""
        live = []
        for entry in batch:
            if entry.deadline > until:
                live.append(entry)
            else:
                entry.queued_ns += int((started - entry.submitted) * 1e9)
                entry.end(None, DeadlineExceeded("the request's time runs out before its call could end"))
        return [entry for entry in live if not entry.is_over]

    def _tell_door(self, call: UnderWay) -> None:
        front, limits = call.front or call, self._limits
        ends = front.ends(self.prices)
        is_full = call.rows >= _FULL * limits.max_rows or call.padded >= _FULL * limits.max_padded_tokens
        self._door.left(
            call.started, call.started if front is call else ends, ends - front.started,
            is_full=is_full or self._is_at(_FULL, DEFAULT),
        )  # fmt: skip

    async def _send(self, rows: Sequence[R], timeout: float, parent: str) -> Any:
        TRACEPARENT.set(parent)
        return await self._run(rows, timeout)

    def _count_in_flight(self, call: UnderWay, sign: int) -> None:
        self._rows_in_flight += sign * call.rows
        self._padded_in_flight += sign * call.padded
        for rank, rows in call.others.items():
            self._class_rows_in_flight[rank] += sign * rows
            self._class_padded_in_flight[rank] += sign * rows * call.longest

    def _last(self) -> UnderWay:
        """Return the call behind which the next one would stand: the oldest that has none behind it."""
        return next(call for call in self._calls if call.follower is None)

    def _returned(self, call: UnderWay, task: asyncio.Task[Any]) -> None:
        """Share out the outputs of a call, halve it, or fail its entries: each of them is ended or queued again."""
        now = self._clock()
        is_aside = call in self._aside
        del (self._aside if is_aside else self._calls)[call]
        held = self._waiting_rows + self._rows_in_flight, self._waiting_tokens + self._padded_in_flight
        if not is_aside:
            self._grows = held[0] >= self._held_rows + _GROWS * self._limits.max_rows
            self._held_rows = held[0]
            self._count_in_flight(call, -1)
        call.task = None
        if call.front is not None:
            # It came back before the one that it was thought to stand behind.
            call.front.follower, call.front, call.front_ended = None, None, now
        if call.follower is not None:
            call.follower.front, call.follower.front_ended, call.follower = None, now, None
        outputs: Sequence[Any] = ()
        error: BaseException | None = None
        if task.cancelled():
            error = ModelNotReady("this version is being closed", retry_after=0)
        else:
            error = task.exception()
            if error is None:
                try:
                    outputs = self._share(task.result(), [entry.count for entry in call.entries])
                    if len(outputs) != len(call.entries):
                        raise BackendGarbage(f"{len(outputs)} outputs came back for {len(call.entries)} entries")
                    if not is_aside:
                        self._learn(call, now)
                        self.limit.ended(now, call.rows, call.padded, *held)
                        if self.limit.is_rising and self._work_before(DEFAULT) >= self.most_work:
                            self._pressure.press(self._loop.time())
                except Exception as odd:  # noqa: BLE001 - whatever it is, it belongs to the entries
                    error = odd
            elif isinstance(error, ROW_FAULTS):
                live = [entry for entry in call.entries if not entry.is_over]
                if len(live) > 1:
                    self._halve(live, now)
                    live = []
                call.entries = live
        self._leave_at = self._opens_at = None
        if (self._waiting or self._halves) and not self._is_flush_scheduled:
            # The next call takes along what has come to the sockets meanwhile, which the loop reads first; it leaves
            # before the answers of this one are made.
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)
            self._loop.call_soon(_tell_all, call, now, outputs, error)
        else:
            _tell_all(call, now, outputs, error)

    def _learn(self, call: UnderWay, now: float) -> None:
        took = now - call.started
        self._recent.append(took)
        self._fresh_until = now + _FRESH_S
        if self._is_sharing and call.started < call.front_ended > now - _TOGETHER * took:
            return  # the server has put it together with the one in front
        if now < self._learn_at and self.prices.calls > _LEARNED:
            return
        self._learn_at = now + _LEARN_EVERY_S
        behind = max(call.front_ended - call.started, 0.0)
        if self._is_sharing:  # what its own calls wait for each other cannot be told from what they wait for others'
            behind, took = 0.0, took - self.prices.queueing * behind
        self.prices.learn(call.rows, call.padded, behind, took)

    def _halve(self, entries: list[Entry[R]], now: float) -> None:
        # Halving finds one bad entry among n in about 2·log2(n) calls instead of n.
        for entry in entries:
            entry.submitted, entry.call = now, None
        middle = len(entries) // 2
        self._halves.extend((entries[:middle], entries[middle:]))


def _tell_all(call: UnderWay, now: float, outputs: Sequence[Any], error: BaseException | None) -> None:
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


async def _closed(_rows: object, _timeout: float) -> Any:
    raise _replaced()


def _replaced() -> ModelNotReady:
    return ModelNotReady("this version was just replaced", retry_after=0)


def _full() -> Overloaded:
    return Overloaded("as much work is in hand as keeps the model busy", because="work_full", hint="try again")


def _hopeless() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the request's time is over before its turn comes: as much is in front of it", because="deadline_unreachable",
        hint="try again later, or raise x-request-timeout-ms",
    )  # fmt: skip


def _up_to(rank: int, total: int, by_class: Sequence[int]) -> int:
    """Return how much there is of a class and of more important ones; ``by_class`` does not count class default."""
    if rank == CRITICAL:
        return by_class[CRITICAL]
    return total if rank == BATCH else total - by_class[BATCH]


def _rank(entry: Entry[Any]) -> int:
    return entry.lane.rank


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "no answer within the request's time", hint="raise x-request-timeout-ms or send less at once"
    )


def _tell(future: asyncio.Future[Any], _entry: Entry[Any], outputs: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(outputs)
