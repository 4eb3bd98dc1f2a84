"""Renders refusals as a page if a browser asks; programs get JSON.

For all requests but POST. Only refusals change, and neither their status nor the headers that programs read.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any

import orjson

from gateway.call import Headers
from gateway.http.bridge import Send
from gateway.http.exchange import HeaderList
from gateway.http.page import POLICY, render_refusal


def wants_page(headers: HeaderList) -> bool:
    """Return whether the client of a request with these headers is a browser."""
    return any(name == b"accept" and b"text/html" in value for name, value in headers)


def explained(send: Send) -> Send:
    """Return a ``send`` of an ASGI application that renders refusals as pages."""
    refusal: MutableMapping[str, Any] | None = None
    pieces: list[bytes] = []

    async def draw(message: MutableMapping[str, Any]) -> None:
        nonlocal refusal
        if message["type"] == "http.response.start" and message["status"] >= HTTPStatus.BAD_REQUEST:
            refusal = message
            return
        if refusal is None:
            await send(message)
            return
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            headers, content = as_page(refusal["status"], refusal.get("headers", ()), b"".join(pieces))
            await send({**refusal, "headers": headers})
            await send({**message, "body": content})

    return draw


def as_page(status: int, headers: HeaderList, content: bytes) -> tuple[Headers, bytes]:
    """Return headers and body of a refusal's page; unchanged if the body is not one of the gateway's refusals."""
    try:
        said = orjson.loads(content)
    except ValueError:
        return list(headers), content
    error = said.get("error") if isinstance(said, dict) else None
    if isinstance(error, dict):  # OpenAI's form
        said, error = error, error.get("message")
    if not isinstance(error, str):
        return list(headers), content
    page = render_refusal(
        f"{status} {HTTPStatus(status).phrase}", error, said.get("hint", ""), str(said.get("code", ""))
    ).encode()
    kept = [(name, value) for name, value in headers if name.lower() not in (b"content-type", b"content-length")]
    return [
        *kept,
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(page)).encode()),
        (b"content-security-policy", POLICY.encode()),
        (b"x-content-type-options", b"nosniff"),
    ], page
