"""The limit on builds that send their first requests to Triton."""

from __future__ import annotations

import asyncio

import pytest

from gateway.control.turns import Turns


async def test_the_number_of_turns_at_a_time_is_limited() -> None:
    """Every build gets a turn."""
    turns, now, most, done = Turns(3, 60), 0, 0, 0

    async def one() -> None:
        nonlocal now, most, done
        async with turns.taken():
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1
        done += 1

    await asyncio.gather(*(one() for _ in range(50)))
    assert (3, 50) == (most, done)


async def test_a_build_that_hangs_delays_others_only_briefly() -> None:
    """Its turn passes to another build, and its end frees no second one."""
    turns, hangs = Turns(1, 0.01), asyncio.Event()

    async def hanging() -> None:
        async with turns.taken():
            await hangs.wait()

    task = asyncio.create_task(hanging())
    await asyncio.sleep(0)
    turns._seconds = 60
    async with turns.taken():
        hangs.set()
        await task
        waiting = asyncio.create_task(turns.taken().__aenter__())
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()


async def test_a_turn_also_ends_with_an_error() -> None:
    """A failed version is tried again later."""
    turns = Turns(1, 60)
    with pytest.raises(ValueError, match="refused"):
        async with turns.taken():
            raise ValueError("refused")
    async with turns.taken():
        pass
