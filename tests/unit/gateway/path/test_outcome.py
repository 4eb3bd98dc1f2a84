"""The coroutine of a request, driven without a task: what it may await, who leaves, and what fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import pytest

from gateway.errors import ClientGone
from gateway.http.exchange import Exchange
from gateway.outcome import Outcome
from gateway.path.ask import Ask
from tests.core_client import in_memory
from tests.unit.gateway.http.serving import post
from tests.waiting import soon


@pytest.mark.parametrize("foreign", [lambda: asyncio.sleep(1), lambda: asyncio.get_running_loop().create_future()])
async def test_awaiting_what_needs_a_task_is_an_error(foreign: Any) -> None:
    """Of this request: it is answered with 500, and the next one is answered."""

    async def answer(exchange: Exchange) -> None:
        if exchange.path == "/wrong":
            await foreign()
        exchange.reply(200, [], b"ok")

    ear, connection = in_memory(answer)
    connection.data_received(post(path="/wrong"))
    connection.data_received(post(path="/right"))
    assert [b"500", b"200"] == [part[:3] for part in ear.heard.split(b"HTTP/1.1 ")[1:]]


async def test_a_client_that_leaves_is_thrown_into_the_coroutine_wherever_it_waits() -> None:
    """Again, if it waits once more."""
    told: list[str] = []

    async def answer() -> None:
        for _ in range(2):
            try:
                await Outcome[None]()
            except ClientGone:
                told.append("left")

    ask = Ask()
    ask.run(answer())
    ask.leave()
    assert (["left", "left"], True) == (told, ask.is_over)


@pytest.mark.parametrize(
    ("head", "then", "heard"),
    [
        (post(), lambda _: 1 / 0, b"\r\n\r\n6\r\na part\r\n"),  # nothing may follow
        (post(), lambda exchange: exchange.connection._limits.leave(), b"\na part\r\n6\r\n of it\r\n0\r\n\r\n"),
        (b"GET / HTTP/1.0\r\n\r\n", lambda _: None, b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\na part of it"),
    ],
    ids=["a bug after the head", "the gateway leaves", "HTTP/1.0 without chunks"],
)
async def test_an_answer_in_pieces_whose_client_was_told_nothing_ends_with_its_connection(
    head: bytes, then: Callable[[Exchange], object], heard: bytes
) -> None:
    """A part of it is written already."""

    async def answer(exchange: Exchange) -> None:
        exchange.begin(200, [])
        exchange.piece(b"a part")
        then(exchange)
        exchange.end(b" of it")

    ear, connection = in_memory(answer)
    connection.data_received(head)
    assert ear.is_closed
    assert ear.heard.endswith(heard)


async def test_a_requests_time_does_not_include_that_behind_earlier_ones_of_its_connection() -> None:
    """It is counted from when it is their turn: for its deadline, its headers and its metrics."""
    first, asked = Outcome[None](), list[Exchange]()

    async def answer(exchange: Exchange) -> None:
        asked.append(exchange)
        if len(asked) == 1:
            await first
        exchange.reply(200, [], b"ok")

    _, connection = in_memory(answer)
    connection.data_received(post() + post())
    now = perf_counter_ns()
    first.set_result(None)
    await soon(lambda: len(asked) == 2)
    assert asked[1].started_ns >= now
