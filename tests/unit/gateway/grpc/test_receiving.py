"""The turns of incoming messages: how many are read at a time, and slow senders."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import BodyTimeout, Overloaded
from gateway.grpc.receiving import Receiving, Streams
from tests.waiting import LIMIT_S


class Sender:
    """Sends one message when the test says so."""

    def __init__(self) -> None:
        self.is_read = asyncio.Event()
        self.message: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def read(self) -> Any:
        """As the context of a call."""
        self.is_read.set()
        return await self.message


async def test_a_message_is_read_when_a_turn_is_free() -> None:
    """Unread bytes stay with their sender."""
    receiving, first, second = Receiving(1), Sender(), Sender()
    one, other = (asyncio.ensure_future(receiving.message(sender, LIMIT_S)) for sender in (first, second))
    await first.is_read.wait()
    assert not second.is_read.is_set()
    first.message.set_result("a")
    await second.is_read.wait()
    second.message.set_result("b")
    assert ["a", "b"] == await asyncio.gather(one, other)


async def test_a_slow_sender_is_refused_if_others_wait() -> None:
    """The next sender gets its turn, and no more time if a third one waits."""
    receiving, slow, slower, quick = Receiving(1, timeout=0.01), Sender(), Sender(), Sender()
    waiting = [asyncio.ensure_future(receiving.message(sender, LIMIT_S)) for sender in (slow, slower, quick)]
    for late in waiting[:2]:
        with pytest.raises(Overloaded, match="others wait") as refused:
            await late
        assert "bytes_full" == refused.value.because
    quick.message.set_result("c")
    assert "c" == await waiting[2]


async def test_a_slow_sender_has_its_full_time_if_no_other_waits() -> None:
    """Then its turn is free."""
    receiving, slow, next_one = Receiving(1, timeout=0.0), Sender(), Sender()
    with pytest.raises(BodyTimeout):
        await receiving.message(slow, 0.01)
    next_one.message.set_result("a")
    assert "a" == await receiving.message(next_one, LIMIT_S)


async def test_a_sender_without_a_turn_in_time_is_refused() -> None:
    """With the reason that the gateway had no room."""
    receiving, first, second = Receiving(1, timeout=LIMIT_S), Sender(), Sender()
    one = asyncio.ensure_future(receiving.message(first, LIMIT_S))
    await first.is_read.wait()
    with pytest.raises(Overloaded, match="as fit its memory limit"):
        await receiving.message(second, 0.01)
    first.message.set_result("a")
    assert "a" == await one


async def test_idle_streams_stay_open_while_memory_lasts() -> None:
    """Whatever their number, and whatever memory the process used before."""
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


async def test_idle_streams_end_when_the_process_grows_too_much() -> None:
    """One of them may be receiving a large message; it is unknown which. A few may receive the largest."""
    sizes = iter([100, 120, 151])
    streams = Streams(2, 50, lambda: next(sizes))
    waiting = [asyncio.ensure_future(streams.message(Sender())) for _ in range(3)]
    for one in waiting:
        with pytest.raises(Overloaded, match="messages of all streams exceed"):
            await one
    sender = Sender()
    sender.message.set_result("a")
    assert "a" == await streams.message(sender)
