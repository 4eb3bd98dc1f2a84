"""Streams an answer as server-sent events.

An error before the first event is an ordinary answer. A later error is an event of its own, ``event: error``, with the
JSON of the ordinary answer.
"""

from __future__ import annotations

from typing import Final

from gateway.call import Headers
from gateway.dataplane.inflight import InFlight
from gateway.edge.http.edge import Send, labels
from gateway.edge.http.problems import problem
from gateway.endpoints.endpoint import Event

EVENT_STREAM: Final[Headers] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventSender:
    """Sends the events of one request. ``has_begun``: the head is sent, so ``end`` must be called."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def __call__(self, flight: InFlight, event: Event) -> None:
        """Send one event; return when there is room for the next."""
        if not self.has_begun:
            endpoint = flight.endpoint
            own = endpoint.headers if endpoint is not None else ()
            headers: Headers = [*EVENT_STREAM, *own, *labels(flight.trace)[:2]]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            self.has_begun = True  # not before: a request that is cancelled while it waits for room has sent nothing
        await self._send({"type": "http.response.body", "body": flight.call.piece(event), "more_body": True})

    async def end(self, flight: InFlight) -> None:
        """End the stream: send the protocol's last event, or the error."""
        error = flight.error
        last = flight.call.end
        if error is not None:
            last = b"event: error\ndata: " + problem(error, flight.trace.request_id).content + b"\n\n"
        await self._send({"type": "http.response.body", "body": last})
