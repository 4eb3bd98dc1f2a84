"""Work of a text task that is slow is done in a thread, before and after the call."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gateway.path.ask import InternalAsk
from gateway.path.call import InternalCall


class Told(InternalCall):
    """Records the thread in which its reply was written."""

    written_in = 0

    def render(self, answer: Any, endpoint: Any, trace: Any, outputs: Any) -> Any:
        self.written_in = threading.get_ident()
        return super().render(answer, endpoint, trace, outputs)


@pytest.mark.parametrize(("rows", "is_aside"), [(2, False), (60, False), (600, True)])
async def test_a_large_answer_is_written_in_a_thread(stack: Any, rows: int, is_aside: bool) -> None:
    """Also if it consists of several calls to the model (one call has 60 rows)."""
    stack.deploy("e")
    await stack.served("e")
    call = Told("e", {"text": ["good"] * rows})
    reply = await stack.gateway.plane.answer_to(InternalAsk(call))
    assert rows == len(reply["results"])
    assert is_aside == (call.written_in != threading.get_ident())
