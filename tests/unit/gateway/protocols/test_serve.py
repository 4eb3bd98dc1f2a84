"""The endpoint's own form."""

from __future__ import annotations

from gateway.protocols.serve import ServeCall
from tests.unit.gateway.path.asks import Counted, Obedient


async def test_a_body_is_decoded_once_per_version() -> None:
    """A hook may change its body in place, so a fallback to the stable version decodes the caller's bytes again."""
    call = ServeCall("c", b'{"x": [1]}', {})
    endpoint = Counted(Obedient())
    first = call.question(endpoint)
    first["x"].append(2)
    assert {"x": [1]} == call.question(endpoint)
