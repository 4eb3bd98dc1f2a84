"""Work of a text task that is slow is done in a thread, before and after the call."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from gateway.handlers.endpoint import Lookup
from gateway.path.call import InternalCall
from tests.core_client import in_memory
from tests.unit.gateway.http.serving import post
from tests.unit.gateway.story import deploy
from tests.waiting import soon


class Told(InternalCall):
    """Records the thread in which its reply was written."""

    written_in = 0

    def render(self, answer: Any, endpoint: Any, trace: Any) -> Any:
        self.written_in = threading.get_ident()
        return super().render(answer, endpoint, trace)


@pytest.mark.parametrize(("rows", "is_aside"), [(2, False), (60, False), (600, True)])
async def test_a_large_answer_is_written_in_a_thread(served: Any, rows: int, is_aside: bool) -> None:
    """Also if it consists of several calls to the model (one call has 60 rows)."""
    call = Told("e", {"text": ["good"] * rows})
    reply = await served.gateway.plane.call(call)
    assert rows == len(reply["results"])
    assert is_aside == (call.written_in != threading.get_ident())


@pytest.mark.parametrize(("words", "is_aside"), [(2, False), (20_000, True)])
@pytest.mark.parametrize("name", ["e", "story"])
async def test_a_long_text_is_tokenized_in_a_thread(
    stack: Any, monkeypatch: pytest.MonkeyPatch, name: str, words: int, is_aside: bool
) -> None:
    """It takes milliseconds, in which no other request would be read."""
    stack.deploy("e")
    deploy(stack, "story", "m")
    await stack.served("e", "story")
    processor = stack.gateway.table.current.endpoints[name].handler.processor
    encode, threads = processor.encode, []
    monkeypatch.setattr(processor, "encode", lambda request: threads.append(threading.get_ident()) or encode(request))
    await stack.gateway.plane.call(InternalCall(name, {"text": "one " * words}))
    assert [is_aside] == [one != threading.get_ident() for one in threads]


async def test_what_a_tokenizer_alone_answers_is_found_in_a_thread(served: Any) -> None:
    """All tokens of many texts, or the text of many ids."""
    call = InternalCall("e", Lookup(lambda _: threading.get_ident()))
    assert threading.get_ident() != await served.gateway.plane.call(call)


async def test_the_rows_of_a_client_that_left_are_taken_back(served: Any) -> None:
    """Those that wait leave the queue at once; a call that serves nobody else ends."""
    batcher = served.gateway.table.current.endpoints["e"].batcher
    served.backend.hold = asyncio.Event()  # never set: no call returns by itself
    connections = []
    for _ in range(2):
        _, connection = in_memory(served.gateway.answer, served.gateway.connections)
        connection.data_received(post())
        connections.append(connection)
        await soon(lambda: batcher.queued_rows == 0 or bool(batcher._calls))
    work = batcher.work
    _, third = in_memory(served.gateway.answer, served.gateway.connections)
    third.data_received(post())
    assert batcher.work > work
    third.connection_lost(None)
    assert batcher.work == work
    for connection in connections:
        connection.connection_lost(None)
    await soon(lambda: batcher.is_idle and batcher.work == 0)
    assert 0 == served.gateway.permits.in_flight
