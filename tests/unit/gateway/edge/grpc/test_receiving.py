"""Turns of messages that come in: how many at a time, and what becomes of those that dawdle."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.edge.grpc.receiving import Receiving
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
    receiving, slow, slower, quick = Receiving(1, patience=0.01), Sender(), Sender(), Sender()
    waiting = [asyncio.ensure_future(receiving.message(sender, 20)) for sender in (slow, slower, quick)]
    for late in waiting[:2]:
        with pytest.raises(Overloaded, match="others wait") as refused:
            await late
        assert "bytes_full" == refused.value.because
    quick.message.set_result("c")
    assert "c" == await waiting[2]


async def test_who_dawdles_has_its_time_when_nobody_waits() -> None:
    """Until it is over; the turn is free then."""
    receiving, slow, next_one = Receiving(1, patience=0.0), Sender(), Sender()
    with pytest.raises(BodyTimeout):
        await receiving.message(slow, 0.01)
    next_one.message.set_result("a")
    assert "a" == await receiving.message(next_one, 20)


async def test_who_gets_no_turn_in_its_time_is_refused() -> None:
    """It is the gateway that had no room."""
    receiving, first, second = Receiving(1, patience=20), Sender(), Sender()
    one = asyncio.ensure_future(receiving.message(first, 20))
    await first.is_read.wait()
    with pytest.raises(Overloaded, match="as it has room for"):
        await receiving.message(second, 0.01)
    first.message.set_result("a")
    assert "a" == await one
