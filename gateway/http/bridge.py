"""Lets an ASGI application answer a request: FastAPI, what operators ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.http.exchange import Exchange

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


async def run(application: Application, exchange: Exchange) -> None:
    """Let an ASGI application answer, in a task. Its answer is written when it is whole."""
    head: MutableMapping[str, Any] = {}
    pieces: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal head
        if message["type"] == "http.response.start":
            head = message
            return
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            headers = [line for line in head["headers"] if line[0] != b"content-length"]
            exchange.reply(head["status"], headers, b"".join(pieces))

    async def receive() -> MutableMapping[str, Any]:
        # No route of the application reads a body. Starlette waits beside an answer in pieces for the client to leave.
        return await asyncio.Future[MutableMapping[str, Any]]()

    is_tls = exchange.connection.transport.get_extra_info("sslcontext") is not None
    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.0" if exchange.is_http10 else "1.1", "server": None, "client": None,
        "scheme": "https" if is_tls else "http", "root_path": "",
        "method": "GET" if exchange.method == "HEAD" else exchange.method,  # the core leaves the body out
        "path": exchange.path, "query_string": exchange.query,
        "headers": exchange.headers, "state": {}, "extensions": {},
    }  # fmt: skip
    await application(scope, receive, send)
