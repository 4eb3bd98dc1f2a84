"""Coroutines that wait for a request, and requests to one version that are not recorded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import DeadlineExceeded
from gateway.path.coroutines import ask_version
from gateway.trace import Trace
from tests.unit.gateway.path.flights import Counted, Echo, Plane


async def test_cancelling_the_waiting_coroutine_cancels_the_request() -> None:
    """No lease and no job are left."""
    made = Plane("e")
    asking = asyncio.create_task(made.plane.ask(Echo()))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (1, ["client_gone"]) == (made.endpoints["e"].released, [trace.outcome for trace in made.ended])


async def test_a_version_that_is_not_served_can_be_called() -> None:
    """For trials and shadows. Nothing is recorded, and a call that hangs ends at its deadline."""

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
