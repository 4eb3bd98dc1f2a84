"""The log gets one line for each ended request that matters."""

from __future__ import annotations

import pytest

from gateway.errors import BackendUnavailable, MalformedBody
from tests.unit.gateway.path.asks import Echo, Plane


async def test_only_errors_that_need_an_operator_are_logged_as_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """Also without an HTTP status: over gRPC, and if a caller leaves while it sends."""
    caplog.set_level("INFO")
    made = Plane("e")
    for error in (MalformedBody("no"), None, BackendUnavailable("away")):
        ask = made.ask(Echo())
        if error is None:
            ask.leave()
        else:
            made.job("e").failed(error)
    levels = [(record.levelname, record.code) for record in caplog.records if record.name == "triton_gateway.request"]  # type: ignore[attr-defined]
    assert [("INFO", "malformed_body"), ("INFO", "client_gone"), ("WARNING", "backend_unavailable")] == levels
