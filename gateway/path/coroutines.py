"""Requests for coroutines: start one and wait until it has ended. Also requests that no metric counts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from gateway.call import InternalCall
from gateway.errors import GatewayError
from gateway.handlers.endpoint import Endpoint
from gateway.path.deadlines import Deadlines
from gateway.path.inflight import ENDED, Done, InFlight
from gateway.trace import Trace

PINNED: Final = "pinned"
"""The route of a request that names exactly one version."""

Watch = Callable[[InFlight], Callable[[], None]]
"""``watch(request)`` cancels the request if its caller leaves; it returns a function that ends the watch."""


async def wait_until_ended(begin: Callable[[Done], InFlight], watch: Watch | None = None) -> InFlight:
    """Start a request and return it when it has ended. Cancelling this coroutine cancels the request."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_flight: InFlight) -> None:
        if not ended.done():
            ended.set_result(None)

    flight = begin(wake)
    if flight.state is ENDED:
        return flight
    stop = None if watch is None else watch(flight)
    try:
        await ended
    except asyncio.CancelledError:
        flight.cancel()
        raise
    finally:
        if stop is not None:
            stop()
    return flight


async def ask_version(endpoint: Endpoint, body: object, timeout: float, trace: Trace) -> object:
    """Return the answer of exactly this version, published or not, to ``body``. No metric counts it.

    Raises ``GatewayError``.
    """
    unrecorded = _NoLedger()

    def begin(done: Done) -> InFlight:
        flight = InFlight(InternalCall(endpoint.identity.url, body), trace, done, unrecorded, unrecorded.deadlines)
        flight.begin(endpoint, PINNED, None, timeout)
        return flight

    flight = await wait_until_ended(begin)
    if flight.error is not None:
        raise flight.error
    return flight.reply


class _NoLedger:
    """A ledger that records nothing: those who make trials and shadow requests count them."""

    keeps_pieces = False

    def __init__(self) -> None:
        self.deadlines = Deadlines(short=math.inf)

    def record(self, trace: Trace) -> None:
        """See ``Ledger.record``."""

    def fell_back(self, trace: Trace, error: GatewayError, stable: Endpoint) -> None:
        """See ``Ledger.fell_back``."""
