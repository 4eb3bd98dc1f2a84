"""The limit on builds that send their first requests to Triton."""

from __future__ import annotations

import asyncio

from gateway.control.places import Places


async def test_the_number_of_places_at_a_time_is_limited() -> None:
    """Every build gets a place, also after one that failed."""
    places, now, most, done = Places(3, 60), 0, 0, 0

    async def one() -> None:
        nonlocal now, most, done
        async with places.taken():
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1
            done += 1
            raise ValueError("refused")

    await asyncio.gather(*(one() for _ in range(50)), return_exceptions=True)
    assert (3, 50) == (most, done)


async def test_a_build_that_hangs_delays_others_only_briefly() -> None:
    """Its place passes to another build, and its end frees no second one."""
    places, hangs = Places(1, 0.01), asyncio.Event()

    async def hanging() -> None:
        async with places.taken():
            await hangs.wait()

    task = asyncio.create_task(hanging())
    await asyncio.sleep(0)
    places._seconds = 60
    async with places.taken():
        hangs.set()
        await task
        waiting = asyncio.create_task(places.taken().__aenter__())
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
