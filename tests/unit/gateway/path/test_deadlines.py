"""One timer for all deadlines; in simulated time."""

from __future__ import annotations

import asyncio
import math
import random

import pytest

from gateway.errors import DeadlineExceeded
from gateway.path.ask import Ask
from gateway.path.deadlines import Deadlines

pytestmark = pytest.mark.looptime


class One(Ask):
    """A request that records when it expired."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[float] = []

    def expire(self) -> None:
        """Record the time."""
        self.at.append(asyncio.get_running_loop().time())


async def test_each_request_expires_once_and_never_early() -> None:
    """Within 20 milliseconds."""
    deadlines, draw = Deadlines(), random.Random(1)
    ones = []
    for _ in range(300):
        one = One()
        deadlines.watch(one, draw.choice([0.002, 0.05, 0.5, 0.999, 1.0, 1.9, 30.0, 60.0]))
        ones.append(one)
        await asyncio.sleep(draw.random() * 0.3)
    await asyncio.sleep(70)
    for one in ones:
        [at] = one.at
        late = at - one.deadline
        assert -0.001 <= late <= 0.022, (one.timeout, late)


async def test_a_shorter_time_out_counts_from_the_first() -> None:
    """A longer one changes nothing. One that is over is refused."""
    deadlines, one, late = Deadlines(), One(), One()
    deadlines.watch(one, 10.0)
    deadlines.watch(late, 10.0)
    await asyncio.sleep(3)
    deadlines.watch(one, 5.0)
    deadlines.watch(one, 60.0)
    await asyncio.sleep(3)
    assert [5.0] == pytest.approx(one.at, abs=0.03)
    with pytest.raises(DeadlineExceeded):
        deadlines.watch(late, 5.0)


async def test_a_request_that_was_removed_never_expires() -> None:
    """Even if another one that expires at the same moment removes it. Without requests no timer runs."""
    deadlines = Deadlines()
    first, second, short, long = ones = [One() for _ in range(4)]
    ended: list[One] = []

    def both() -> None:
        for one in (first, second):
            deadlines.forget(one)
        ended.append(first)

    first.expire = second.expire = both  # type: ignore[method-assign]
    for one, timeout in zip(ones, (5.0, 5.0, 0.5, 3.0), strict=True):
        deadlines.watch(one, timeout)
    deadlines.forget(short)
    deadlines.forget(long)
    await asyncio.sleep(10)
    assert ([], [], [first]) == (short.at, long.at, ended)
    assert math.inf == deadlines._rings_at
    assert not deadlines._watched
