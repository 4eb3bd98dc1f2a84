"""One timer serves many deadlines, and each of them ends in its turn; in simulated time."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from math import inf

import pytest

from gateway.earliest_deadline import EarliestDeadline

pytestmark = pytest.mark.looptime


class Owner:
    """Keeps deadlines, and notes when each was found to be due."""

    def __init__(self) -> None:
        self.timer = EarliestDeadline()
        self.left: list[float] = []
        self.ended: list[tuple[float, float]] = []

    def add(self, deadline: float) -> None:
        """Add one, in loop time."""
        self.left.append(deadline)
        self.timer.add(deadline, asyncio.get_running_loop(), self.expire)

    def expire(self, now: float) -> float:
        """End what is due."""
        self.ended += [(deadline, now) for deadline in sorted(self.left) if deadline <= now]
        self.left = [deadline for deadline in self.left if deadline > now]
        return min(self.left, default=inf)


@pytest.mark.parametrize("seed", range(20))
async def test_each_deadline_ends_once_and_when_it_is_due(seed: int) -> None:
    """In any order of arrival, also beside others that are forgotten before they are due."""
    draw, owner = random.Random(seed), Owner()
    loop = asyncio.get_running_loop()
    expected = []
    for _ in range(50):
        deadline = loop.time() + draw.choice([0.001, 0.2, 1.0, draw.uniform(0, 30)])
        owner.add(deadline)
        if draw.random() < 0.5:
            owner.left.remove(deadline)
        else:
            expected.append(deadline)
        await asyncio.sleep(draw.choice([0, 0, 0.05, 2.0]))
    await asyncio.sleep(31)
    assert sorted(expected) == [deadline for deadline, _ in owner.ended]
    assert all(abs(now - deadline) < 2e-3 for deadline, now in owner.ended)
    assert inf == owner.timer.at


async def test_a_deadline_may_be_added_while_others_end() -> None:
    """By what a request does that has just ended; the nearest one counts."""
    owner, loop = Owner(), asyncio.get_running_loop()
    began = loop.time()

    def expire(now: float) -> float:
        if not owner.ended:
            owner.add(began + 2)
        owner.expire(now)
        return began + 5 if owner.left else inf

    owner.timer.add(began + 1, loop, expire)
    owner.left.append(began + 1)
    await asyncio.sleep(10)
    assert [began + 1, began + 2] == pytest.approx([now for _, now in owner.ended], abs=2e-3)


async def test_an_owner_without_deadlines_is_freed_at_once() -> None:
    """Nothing refers to it that only a garbage collection would find."""
    owner = Owner()
    owner.add(asyncio.get_running_loop().time() + 1)
    await asyncio.sleep(2)
    gone = weakref.ref(owner)
    gc.disable()
    try:
        del owner
        assert gone() is None
    finally:
        gc.enable()


async def test_nothing_ends_after_it_was_cancelled() -> None:
    """The timer can be used again."""
    owner = Owner()
    owner.add(asyncio.get_running_loop().time() + 1)
    owner.timer.cancel()
    await asyncio.sleep(2)
    assert not owner.ended
    owner.add(asyncio.get_running_loop().time() + 1)
    await asyncio.sleep(2)
    assert 2 == len(owner.ended)
