"""Streams an answer as server-sent events.

An error before the first event is an ordinary answer. A later error is an event of its own, ``event: error``, with the
JSON of the ordinary answer.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.call import Headers
from gateway.handlers.endpoint import Event
from gateway.http.exchange import Exchange
from gateway.http.problems import problem
from gateway.http.replies import labels
from gateway.path.inflight import InFlight

EVENT_STREAM: Final[Headers] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventSender:
    """Sends the events of one request. ``has_begun``: the head is sent, so ``end`` must be called."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.has_begun = False

    async def __call__(self, flight: InFlight, event: Event) -> None:
        """Send one event, from the task that makes them; return when there is room for the next."""
        exchange = self._exchange
        if not self.has_begun:
            endpoint = flight.endpoint
            own = endpoint.headers if endpoint is not None else ()
            exchange.begin(200, [*EVENT_STREAM, *own, *labels(flight.trace)[:2]])
            self.has_begun = True
        exchange.piece(flight.call.piece(event))
        await exchange.drained(asyncio.get_running_loop().create_future)

    def end(self, flight: InFlight) -> None:
        """End the stream: send the protocol's last event, or the error."""
        error = flight.error
        last = flight.call.end
        if error is not None:
            last = b"event: error\ndata: " + problem(error, flight.trace.request_id).content + b"\n\n"
        self._exchange.end(last)
