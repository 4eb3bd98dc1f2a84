"""Gathering: alone when nobody is there, together when calls are out, dropped when given up."""

from __future__ import annotations

import asyncio

import pytest

from gateway.endpoints.gathering import Gatherer


class Calls:
    """A call that waits until it is let go; remembers what it got."""

    def __init__(self) -> None:
        self.seen: list[list[object]] = []
        self.gate = asyncio.Event()

    async def __call__(self, items: list[object]) -> list[object]:
        """Double each; an exception stays one."""
        self.seen.append(items)
        await self.gate.wait()
        return [item if isinstance(item, Exception) else item * 2 for item in items]  # type: ignore[operator]


async def test_what_arrives_while_calls_are_out_shares_the_next() -> None:
    """The first leaves alone; as many as fit go together; each gets its own outcome."""
    calls = Calls()
    gatherer: Gatherer[object] = Gatherer(calls, most=3, at_once=1)
    first = asyncio.create_task(gatherer.submit(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rest = [asyncio.create_task(gatherer.submit(n)) for n in (2, ValueError("mine"), 4, 5)]
    gone = asyncio.create_task(gatherer.submit(99))
    await asyncio.sleep(0)
    gone.cancel()
    calls.gate.set()
    found = await asyncio.gather(first, *rest, return_exceptions=True)
    assert [2, 4, "mine", 8, 10] == [str(f) if isinstance(f, Exception) else f for f in found]
    assert [[1], [2, 3, 4], [5]] == [[3 if isinstance(i, Exception) else i for i in items] for items in calls.seen]


async def test_call_that_raises_fails_those_that_were_in_it() -> None:
    """And the next goes out."""

    async def broken(items: list[int]) -> list[object]:
        if 1 in items:
            raise RuntimeError("no")
        return list(items)

    gatherer: Gatherer[int] = Gatherer(broken, most=1, at_once=1)
    one, two = await asyncio.gather(gatherer.submit(1), gatherer.submit(2), return_exceptions=True)
    assert ("no", 2) == (str(one), two)
    await gatherer.close()


async def test_close_gives_up_what_is_out() -> None:
    """Those who wait are cancelled."""
    gatherer: Gatherer[object] = Gatherer(Calls(), most=1, at_once=1)
    waiting = asyncio.create_task(gatherer.submit(1))
    await asyncio.sleep(0.01)
    await gatherer.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
