"""What is written down of a request: every listener hears of its end, and the log has one line of what is news."""

from __future__ import annotations

import asyncio

import pytest

from gateway.call import InternalCall
from gateway.errors import BackendUnavailable, MalformedBody
from gateway.trace import Trace
from tests.unit.gateway.dataplane.flights import Plane


async def test_only_what_needs_an_operator_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Also where no status says whose doing it was: gRPC, and callers who leave while they send."""
    caplog.set_level("INFO")
    made = Plane("e")
    for error in (MalformedBody("no"), asyncio.CancelledError(), BackendUnavailable("away")):
        made.plane.refuse(made.plane.open("r"), error)
    levels = [(record.levelname, record.code) for record in caplog.records if record.name == "triton_gateway.request"]  # type: ignore[attr-defined]
    assert [("INFO", "malformed_body"), ("INFO", "client_gone"), ("WARNING", "backend_unavailable")] == levels


async def test_listeners_come_and_go() -> None:
    """Each hears what ends while it listens."""
    made = Plane("e")
    heard: list[Trace] = []
    leave = made.plane.records.subscribe(heard.append)
    made.submit(InternalCall("e", {}))
    made.job("e").answered(1)
    leave()
    made.submit(InternalCall("e", {}))
    made.job("e").answered(2)
    assert (1, 2) == (len(heard), len(made.ended))
