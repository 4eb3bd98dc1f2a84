"""The limit on all hook processes: which pool may start one, which waits, which gives one up. In simulated time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.hooks.bound import ProcessBound


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0


@dataclass(eq=False)
class Process:
    """A process that the test controls."""

    pool: Pool
    idle_since: float = 0.0
    is_busy: bool = False
    is_retired: bool = False

    @property
    def is_idle(self) -> bool:
        """See ``bound.Process``."""
        return not self.is_busy and not self.is_retired

    def retire(self) -> None:
        """See ``bound.Process``; one that works ends when the test says so."""
        self.is_retired = True
        if not self.is_busy:
            self.end()

    def end(self) -> None:
        """End the process."""
        self.pool.processes.remove(self)
        self.pool.bound.release()


@dataclass(eq=False)
class Pool:
    """A pool whose processes start at once when they have a slot."""

    name: str
    bound: ProcessBound
    clock: Clock
    minimum: int = 0
    has_waiting: bool = False
    processes: list[Any] = field(default_factory=list)
    rested: int = 0

    def tick(self, *, is_full: bool) -> None:
        """See ``bound.Pool``."""

    def scale_to_zero(self) -> None:
        """See ``bound.Pool``."""
        self.rested += 1

    async def start(self, *, is_busy: bool = False) -> Process:
        """Wait for a slot and use it."""
        await self.bound.slot(self)
        process = Process(self, self.clock.now, is_busy)
        self.processes.append(process)
        return process


@pytest.fixture
def clock() -> Clock:
    """A stopped clock."""
    return Clock()


@pytest.fixture
def make(clock: Clock) -> Callable[..., Any]:
    """Return a function ``make(most, names)`` that returns a bound and pools of these names."""

    def made(most: int, names: str, **settings: Any) -> tuple[ProcessBound, list[Pool]]:
        bound = ProcessBound(most, now=lambda: clock.now, **settings)
        pools = [Pool(name, bound, clock) for name in names]
        for pool in pools:
            bound.add(pool)
        return bound, pools

    return made


async def settled() -> None:
    """Wait until granted starts have happened."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_process_that_has_idled_longest_makes_room(make: Any, clock: Clock) -> None:
    """Its pool learns that no request waits, so it starts no process in its place."""
    _, (a, b, c) = make(2, "abc")
    for pool in (a, b):
        clock.now += 1
        await pool.start()
    c.has_waiting = True
    await c.start()
    assert ([], 1, 0) == (a.processes, a.rested, b.rested)
    assert 1 == len(b.processes) == len(c.processes)


async def test_a_further_process_of_one_pool_does_not_end_the_only_one_of_another(make: Any, clock: Clock) -> None:
    """A restart would cost its pool more than a short wait costs here. The second one of another may end."""
    bound, (a, b, c) = make(4, "abc")
    await a.start()
    for pool in (b, b, c):
        await pool.start(is_busy=True)
    more = asyncio.create_task(c.start())
    await settled()
    clock.now += 600
    bound.assign()
    await settled()
    assert (1, False) == (len(a.processes), more.done())
    b.processes[0].is_busy = False
    bound.assign()
    await settled()
    assert (1, 1, True) == (len(a.processes), len(b.processes), more.done())


async def test_a_pool_without_a_process_goes_before_one_that_wants_more(make: Any) -> None:
    """Whatever the order of their requests."""
    bound, (a, b, c) = make(1, "abc")
    first = await a.start(is_busy=True)
    a.has_waiting = True
    more = asyncio.create_task(a.start())
    await settled()
    for pool in (b, c):
        pool.has_waiting = True
    waiting = [asyncio.create_task(pool.start(is_busy=True)) for pool in (b, c)]
    await settled()
    first.is_retired = True  # so that the order of grants is all that is looked at
    first.end()
    await settled()
    assert [False, True, False] == [more.done(), *(w.done() for w in waiting)]
    assert 1 == bound.taken
    for task in (more, *waiting):
        task.cancel()
    await asyncio.gather(more, *waiting, return_exceptions=True)


async def test_a_minimum_is_never_ended_for_others(make: Any, clock: Clock) -> None:
    """Nor for being idle."""
    bound, (a, b, c) = make(2, "abc")
    a.minimum = 1
    await a.start()
    clock.now += 1
    await b.start()
    c.has_waiting = True
    await c.start(is_busy=True)
    assert (1, 0) == (len(a.processes), len(b.processes)), "b has idled for a shorter time, but may end"
    clock.now += 10_000
    bound.end_idle()
    assert 1 == len(a.processes)


async def test_idle_processes_end(make: Any, clock: Clock) -> None:
    """Extra ones after a minute, the last one after the configured time, a busy one never."""
    bound, (a, b) = make(9, "ab", idle=900.0)
    await a.start()
    await a.start()
    await b.start(is_busy=True)
    clock.now = 59
    bound.end_idle()
    assert 2 == len(a.processes)
    clock.now = 61
    bound.end_idle()
    assert (1, 0) == (len(a.processes), a.rested)
    clock.now = 901
    bound.end_idle()
    assert ([], 1, 1) == (a.processes, a.rested, len(b.processes))


async def test_a_cancelled_wait_takes_no_slot(make: Any) -> None:
    """Cancelled before or after the slot was granted."""
    bound, (a, b) = make(1, "ab")
    first = await a.start(is_busy=True)
    waiting = asyncio.create_task(b.start())
    await settled()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert 1 == bound.taken
    waiting = asyncio.create_task(b.start())
    await settled()
    first.end()  # granted, not yet noticed
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert 0 == bound.taken


@pytest.mark.parametrize("seed", range(5))
async def test_the_limit_holds_and_every_pool_gets_a_process(make: Any, clock: Clock, seed: int) -> None:
    """Twenty pools share four processes, which are idle for a moment after each request."""
    chance = random.Random(seed)
    bound, pools = make(4, "abcdefghijklmnopqrst")
    served = dict.fromkeys((p.name for p in pools), 0)
    starts: dict[str, asyncio.Task[Process]] = {}
    most = 0
    for _ in range(400):
        clock.now += 0.5
        for pool in pools:
            if not pool.processes and pool.name not in starts:
                starts[pool.name] = asyncio.create_task(pool.start(is_busy=True))
        await settled()
        starts = {name: task for name, task in starts.items() if not task.done()}
        for pool in pools:
            for process in list(pool.processes):
                served[pool.name] += 1
                if chance.random() < 0.8:  # the request in it has ended
                    process.is_busy, process.idle_since = False, clock.now
        bound.assign()
        most = max(most, bound.taken)
    assert 4 == most
    assert min(served.values()) > 20, served
    for task in starts.values():
        task.cancel()
    await asyncio.gather(*starts.values(), return_exceptions=True)
