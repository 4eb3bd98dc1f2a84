"""W3C trace context: read from the caller and sent to Triton with each call, unless it is invalid."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.trace import TRACEPARENT, parse_traceparent
from gateway.triton.backend import TritonBackend
from tests.waiting import LIMIT_S

from .servers import together, tritons

INPUT = {"x": np.zeros((1, 1), np.int64)}
ONE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f" {ONE} ", ONE), ("", ""), (ONE[:-1], ""), (ONE.upper(), ""), (ONE.replace("00-4", "ff-4"), ""),
        ("00-" + "0" * 32 + ONE[35:], ""), (ONE[:36] + "0" * 16 + "-01", ""), ("x" * 10_000, ""), ("\xff" * 55, ""),
    ],
)  # fmt: skip
def test_only_a_valid_traceparent_is_taken(header: str, expected: str) -> None:
    """By the standard: lower case, no zero ids, not version ff."""
    assert expected == parse_traceparent(header.encode("latin-1"))


async def test_traceparent_reaches_triton_as_metadata() -> None:
    """Over a real gRPC channel. A call without one sends none."""
    async with tritons("a") as (server,):
        backend = TritonBackend(together(server))
        await backend.infer("m", INPUT, [], timeout=LIMIT_S)
        token = TRACEPARENT.set(ONE)
        await backend.infer("m", INPUT, [], timeout=LIMIT_S)
        TRACEPARENT.reset(token)
        await backend.close()
    assert [None, ONE] == server.traces
