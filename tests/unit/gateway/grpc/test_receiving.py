"""Messages that arrive: any number while memory lasts, each in its time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import BodyTimeout, Overloaded
from gateway.grpc.receiving import Receiving
from tests.waiting import LIMIT_S, soon


class Sender:
    """Sends one message when the test says so."""

    def __init__(self) -> None:
        self.message: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def read(self) -> Any:
        """As the context of a call."""
        return await self.message


async def test_any_number_may_wait_while_memory_lasts() -> None:
    """Calls and idle streams, whatever memory the process used before."""
    senders = [Sender() for _ in range(5)]
    looks: list[int] = []
    receiving = Receiving(2, 50, lambda: looks.append(100) or 100)  # type: ignore[func-returns-value]
    times = [LIMIT_S] * 3 + [float("inf")] * 2
    waiting = [asyncio.ensure_future(receiving.message(*pair)) for pair in zip(senders, times, strict=True)]
    await soon(lambda: len(looks) > 3)
    for number, sender in enumerate(senders):
        sender.message.set_result(number)
    assert list(range(5)) == await asyncio.gather(*waiting)


async def test_all_that_wait_end_when_the_process_grows_too_much() -> None:
    """One of them may be receiving a large message; it is unknown which. A few may receive the largest."""
    sizes = iter([100, 120, 151])
    receiving = Receiving(2, 50, lambda: next(sizes))
    waiting = [asyncio.ensure_future(receiving.message(Sender(), *limit)) for limit in ((), (LIMIT_S,), ())]
    async with asyncio.timeout(LIMIT_S):
        found = await asyncio.gather(*waiting, return_exceptions=True)
    assert ["bytes_full"] * 3 == [one.because for one in found if isinstance(one, Overloaded)]
    sender = Sender()
    sender.message.set_result("a")
    assert "a" == await receiving.message(sender)


async def test_a_message_that_is_late_is_refused() -> None:
    """As a body over HTTP."""
    with pytest.raises(BodyTimeout):
        await Receiving(1, 50).message(Sender(), 0.01)
