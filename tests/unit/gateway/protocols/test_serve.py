"""The endpoint's own form: what is asked, and where its routing key is."""

from __future__ import annotations

from gateway.protocols.serve import ServeCall
from tests.unit.gateway.dataplane.flights import Counted, Obedient


async def test_a_body_is_read_once_for_its_key_and_its_question_and_anew_for_the_next_version() -> None:
    """Code may change what it is given: the stable version is asked what the caller has sent."""
    call = ServeCall("c", ("user", "id"), b'{"user": {"id": 7}, "x": [1]}', {})
    endpoint = Counted(Obedient())
    assert "7" == call.body_key()
    first = call.question(endpoint)
    first["x"].append(2)
    assert {"user": {"id": 7}, "x": [1]} == call.question(endpoint)
