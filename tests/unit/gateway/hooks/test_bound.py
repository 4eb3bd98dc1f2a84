"""The limit on all hook processes: who waits for a place, and which process gives one up. In simulated time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.hooks.bound import ProcessBound


@dataclass(eq=False)
class Process:
    """A process that the test controls."""

    pool: Pool
    idle_since: float
    is_busy: bool = False
    is_retired: bool = False
    ends_later: bool = False

    @property
    def is_idle(self) -> bool:
        """See ``HookProcess``."""
        return not self.is_busy and not self.is_retired

    def retire(self) -> None:
        """See ``HookProcess``; one that works ends when the test says so."""
        self.is_retired = True
        if not (self.is_busy or self.ends_later):
            self.end()

    def end(self) -> None:
        """End the process."""
        self.pool.processes.remove(self)
        self.pool.bound.release()


@dataclass(eq=False)
class Pool:
    """A pool whose processes start at once when they have a slot."""

    bound: ProcessBound
    processes: list[Process] = field(default_factory=list)

    async def start(self, idle_since: float = 0.0, *, is_busy: bool = False) -> Process:
        """Wait for a slot and use it."""
        await self.bound.slot()
        process = Process(self, idle_since, is_busy)
        self.processes.append(process)
        return process


def made(most: int, pools: int) -> tuple[Any, ...]:
    """Return a bound and its pools."""
    bound = ProcessBound(most)
    found = [Pool(bound) for _ in range(pools)]
    bound.pools.update(found)  # type: ignore[arg-type]
    return bound, *found


async def settled() -> None:
    """Wait until granted starts have happened."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_process_that_has_idled_longest_makes_room() -> None:
    """One for each that waits, however often that is looked at before it has ended; a busy one never."""
    bound, a, b, c = made(3, 3)
    await b.start(2.0)
    first = await a.start(1.0)
    first.ends_later = True
    busy = await a.start(is_busy=True)
    waiting = asyncio.create_task(c.start(is_busy=True))
    await settled()
    bound.assign()
    assert [first] == [one for pool in (a, b) for one in pool.processes if one.is_retired]
    first.end()
    await waiting
    await c.start(is_busy=True)
    assert ([busy], [], 2) == (a.processes, b.processes, len(c.processes))


async def test_a_cancelled_wait_takes_no_slot() -> None:
    """Cancelled before or after the slot was granted."""
    bound, a, b = made(1, 2)
    first = await a.start(is_busy=True)
    waiting = asyncio.create_task(b.start())
    await settled()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert 1 == bound.taken
    cancelled, granted = asyncio.create_task(b.start()), asyncio.create_task(b.start())
    await settled()
    cancelled.cancel()
    first.end()  # granted to the other one, which has not noticed yet
    granted.cancel()
    await asyncio.gather(cancelled, granted, return_exceptions=True)
    assert 0 == bound.taken


@pytest.mark.parametrize("seed", range(5))
async def test_the_limit_holds_and_every_pool_gets_a_process(seed: int) -> None:
    """Twenty pools share four processes, which are idle for a moment after each request."""
    chance = random.Random(seed)
    bound, *pools = made(4, 20)
    served = dict.fromkeys(pools, 0)
    starts: dict[Pool, asyncio.Task[Process]] = {}
    most = 0
    for now in range(400):
        for pool in pools:
            if not pool.processes and pool not in starts:
                starts[pool] = asyncio.create_task(pool.start(is_busy=True))
        await settled()
        starts = {pool: task for pool, task in starts.items() if not task.done()}
        for pool in pools:
            for process in list(pool.processes):
                served[pool] += 1
                if chance.random() < 0.8:  # the request in it has ended
                    process.is_busy, process.idle_since = False, now
        bound.assign()
        most = max(most, bound.taken)
    assert 4 == most
    assert min(served.values()) > 20, served
    for task in starts.values():
        task.cancel()
    await asyncio.gather(*starts.values(), return_exceptions=True)
