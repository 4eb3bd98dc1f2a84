"""One timer for all deadlines; in simulated time."""

from __future__ import annotations

import asyncio
import math
import random

import pytest

from gateway.path.deadlines import Deadlines

pytestmark = pytest.mark.looptime


def arm(deadlines: Deadlines, one: One, timeout: float) -> None:
    """Let ``one`` expire after ``timeout`` seconds."""
    deadlines.watch(one, timeout)


class One:
    """A request that records when it expired."""

    deadline = timeout = 0.0
    is_watched = False

    def __init__(self) -> None:
        self.at: list[float] = []

    def late(self) -> Exception:
        """Not used."""
        raise NotImplementedError

    def expire(self) -> None:
        """Record the time."""
        self.at.append(asyncio.get_running_loop().time())


async def test_each_request_expires_once_and_never_early() -> None:
    """Within 20 milliseconds."""
    deadlines, draw = Deadlines(), random.Random(1)
    ones = []
    for _ in range(300):
        one = One()
        arm(deadlines, one, draw.choice([0.002, 0.05, 0.5, 0.999, 1.0, 1.9, 30.0, 60.0]))
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
    arm(deadlines, one, 10.0)
    arm(deadlines, late, 10.0)
    await asyncio.sleep(3)
    arm(deadlines, one, 5.0)
    arm(deadlines, one, 60.0)
    await asyncio.sleep(3)
    assert [5.0] == pytest.approx(one.at, abs=0.03)
    with pytest.raises(NotImplementedError):
        arm(deadlines, late, 5.0)


async def test_a_request_that_was_removed_never_expires() -> None:
    """Even if another one that expires at the same moment removes it. Without requests no timer runs."""
    deadlines = Deadlines()
    first, second = One(), One()
    ended: list[One] = []

    def both() -> None:
        for one in (first, second):
            deadlines.forget(one)
        ended.append(first)

    first.expire = second.expire = both  # type: ignore[method-assign]
    for one in (first, second):
        arm(deadlines, one, 5.0)
    short, long = One(), One()
    arm(deadlines, short, 0.5)
    arm(deadlines, long, 3.0)
    deadlines.forget(short)
    deadlines.forget(long)
    await asyncio.sleep(10)
    assert ([], [], [first]) == (short.at, long.at, ended)
    assert math.inf == deadlines._expiry.at
    assert not deadlines._watched
