"""Refusals as a page, for a person who opened an address in a browser; programs get the JSON they always got.

Called by ``app`` for requests that are no POST. Changes no status, no header that a program reads, and no answer but
a refusal.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any

import orjson

from gateway.call import Headers
from gateway.edge.http.edge import Scope, Send
from gateway.edge.http.fast import EXTENSION
from gateway.edge.http.page import POLICY, render_refusal


def explained(scope: Scope, send: Send) -> tuple[Scope, Send]:
    """Return scope and sender of a request whose refusal is drawn as a page if a browser asked."""
    if not any(name == b"accept" and b"text/html" in value for name, value in scope["headers"]):
        return scope, send
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
            headers, content = _page(refusal["status"], refusal.get("headers", ()), b"".join(pieces))
            await send({**refusal, "headers": headers})
            await send({**message, "body": content})

    # an answer that the server takes in one piece would pass by what is drawn here
    extensions = {name: value for name, value in scope.get("extensions", {}).items() if name != EXTENSION}
    return {**scope, "extensions": extensions}, draw


def _page(status: int, headers: Headers, content: bytes) -> tuple[Headers, bytes]:
    """Return headers and body of a refusal's page; as they are if the body is not one of ours."""
    try:
        said = orjson.loads(content)
    except ValueError:
        return list(headers), content
    error = said.get("error") if isinstance(said, dict) else None
    if isinstance(error, dict):  # as OpenAI's API has it
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
