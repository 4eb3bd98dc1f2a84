"""An answer in pieces: server-sent events of ``pipeline.stream``, for the routes that offer it.

Before the first event everything is an ordinary answer, errors included; after it an error is an event of its own,
``event: error`` with the same JSON that its answer would have had.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

import orjson

from gateway.dataplane.submit import Pipeline
from gateway.edge.http.edge import Guard, Send, labels
from gateway.edge.http.problems import Headers, problem
from gateway.endpoints.endpoint import Endpoint, Event
from gateway.trace import Trace

EVENT_STREAM: Final[Headers] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def data(value: object) -> bytes:
    """One event with ``value`` as JSON."""
    return b"data: " + orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n\n"


def own_form(event: Event) -> bytes:
    """An event of ``POST /serve/…``: ``text`` and ``token_ids``; the last also has what a whole answer has beside its
    text.
    """
    content: dict[str, object] = {"text": event.text, "token_ids": event.token_ids}
    if event.finish_reason is not None:
        content |= {
            "finish_reason": event.finish_reason,
            "generated_tokens": event.generated_tokens,
            "tokens": event.tokens,
            **({"truncated": True} if event.truncated else {}),
        }
    return data(content)


async def send_events(
    send: Send,
    pipeline: Pipeline,
    endpoint: Endpoint,
    body: object,
    trace: Trace,
    deadline: float,
    guard: Guard,
    *,
    form: Callable[[Event], bytes] = own_form,
    end: bytes = b"",
) -> None:
    """Send a whole streamed answer, ``form`` writing each event; ``end`` closes a stream that went well.

    Raises what ``pipeline.stream`` raises before its first event: nothing has been sent then. Later errors are sent,
    and recorded in ``trace``. A client's departure ends the model's work.
    """
    events: AsyncGenerator[Event, None] = pipeline.stream(endpoint, body, trace, deadline)
    async with aclosing(events):
        first = await anext(events)
        headers: Headers = [*EVENT_STREAM, *endpoint.headers, *labels(trace)[:2]]
        trace.status = 200
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await send({"type": "http.response.body", "body": form(first), "more_body": True})
            async for event in events:
                await send({"type": "http.response.body", "body": form(event), "more_body": True})
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not guard.ended_it():
                pipeline.failed(trace, error)
                raise
            known = pipeline.failed(trace, guard.reason or error)
            end = b"event: error\ndata: " + problem(known, trace.request_id)[2] + b"\n\n"
    if not guard.client_left:
        await send({"type": "http.response.body", "body": end})


def wants_stream(endpoint: Endpoint, body: object) -> bool:
    """True when the caller asks for events and the endpoint can make them."""
    return endpoint.stream is not None and isinstance(body, dict) and body.get("stream") is True
