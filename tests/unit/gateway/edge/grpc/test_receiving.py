"""Turns of messages that come in: how many at a time, and what becomes of those that dawdle."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.edge.grpc.receiving import Receiving, Streams
from gateway.errors import BodyTimeout, Overloaded


class Sender:
    """Sends one message, when it is told to."""

    def __init__(self) -> None:
        self.is_read = asyncio.Event()
        self.message: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def read(self) -> Any:
        """See ``Messages.read``."""
        self.is_read.set()
        return await self.message


async def test_a_message_is_read_when_another_one_is_here() -> None:
    """What nobody reads stays with its sender."""
    receiving, first, second = Receiving(1), Sender(), Sender()
    one, other = (asyncio.ensure_future(receiving.message(sender, 20)) for sender in (first, second))
    await first.is_read.wait()
    assert not second.is_read.is_set()
    first.message.set_result("a")
    await second.is_read.wait()
    second.message.set_result("b")
    assert ["a", "b"] == await asyncio.gather(one, other)


async def test_who_dawdles_is_refused_when_others_wait() -> None:
    """And gives its turn to the next, who has no more time while there is a third."""
    receiving, slow, slower, quick = Receiving(1, timeout=0.01), Sender(), Sender(), Sender()
    waiting = [asyncio.ensure_future(receiving.message(sender, 20)) for sender in (slow, slower, quick)]
    for late in waiting[:2]:
        with pytest.raises(Overloaded, match="others wait") as refused:
            await late
        assert "bytes_full" == refused.value.because
    quick.message.set_result("c")
    assert "c" == await waiting[2]


async def test_who_dawdles_has_its_time_when_nobody_waits() -> None:
    """Until it is over; the turn is free then."""
    receiving, slow, next_one = Receiving(1, timeout=0.0), Sender(), Sender()
    with pytest.raises(BodyTimeout):
        await receiving.message(slow, 0.01)
    next_one.message.set_result("a")
    assert "a" == await receiving.message(next_one, 20)


async def test_who_gets_no_turn_in_its_time_is_refused() -> None:
    """It is the gateway that had no room."""
    receiving, first, second = Receiving(1, timeout=20), Sender(), Sender()
    one = asyncio.ensure_future(receiving.message(first, 20))
    await first.is_read.wait()
    with pytest.raises(Overloaded, match="as fit its memory limit"):
        await receiving.message(second, 0.01)
    first.message.set_result("a")
    assert "a" == await one


async def test_streams_wait_for_hours_while_memory_lasts() -> None:
    """However many there are, and whatever the process had before."""
    senders = [Sender() for _ in range(5)]
    looks: list[int] = []
    looked = asyncio.Event()

    def memory() -> int:
        looks.append(100)
        if len(looks) > 3:
            looked.set()
        return looks[-1]

    streams = Streams(2, 50, memory)
    waiting = [asyncio.ensure_future(streams.message(sender)) for sender in senders]
    await looked.wait()
    for number, sender in enumerate(senders):
        sender.message.set_result(number)
    assert list(range(5)) == await asyncio.gather(*waiting)


async def test_streams_that_wait_end_when_the_process_grows_too_much() -> None:
    """One of them is sent something large; nobody knows which. A few may be sent the largest."""
    sizes = iter([100, 120, 151])
    streams = Streams(2, 50, lambda: next(sizes))
    waiting = [asyncio.ensure_future(streams.message(Sender())) for _ in range(3)]
    for one in waiting:
        with pytest.raises(Overloaded, match="messages of all streams exceed"):
            await one
    sender = Sender()
    sender.message.set_result("a")
    assert "a" == await streams.message(sender)
