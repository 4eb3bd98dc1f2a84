"""Coroutines that wait for a request, and questions to one version that are counted nowhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.dataplane.coroutines import ask_version
from gateway.errors import DeadlineExceeded
from gateway.trace import Trace
from tests.unit.gateway.dataplane.flights import Counted, Echo, Plane


async def test_cancelling_who_asks_cancels_the_request() -> None:
    """A coroutine that waits and is cancelled leaves no lease and no job behind."""
    made = Plane("e")
    asking = asyncio.create_task(made.plane.ask(Echo()))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (1, ["client_gone"]) == (made.endpoints["e"].released, [trace.outcome for trace in made.ended])


async def test_a_version_can_be_asked_that_nobody_else_knows() -> None:
    """Trials and shadows: the same way, recorded nowhere; a hung one ends at its deadline."""

    class Doubles:
        takes_bytes = False

        async def answer(self, body: Any, _trace: Trace, _deadline: float) -> object:
            if body == "hang":
                await asyncio.Event().wait()
            return body * 2

        async def close(self) -> None: ...

    endpoint = Counted(Doubles())
    endpoint.handler.is_closed = False  # type: ignore[attr-defined]
    assert "abab" == await ask_version(endpoint, "ab", 5.0, Trace("trial"))
    with pytest.raises(DeadlineExceeded):
        await ask_version(endpoint, "hang", 0.02, Trace("trial"))
    assert (2, 2) == (endpoint.leased, endpoint.released)
