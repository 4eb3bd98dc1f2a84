"""Runs an ASGI application for requests of the core: the operators' routes, which FastAPI serves.

Each request is a task. Its answer is written with ``content-length``, or in chunks if the application gives none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from gateway.callers.access import Names
from gateway.http.exchange import Exchange

_log = logging.getLogger("triton_gateway.http")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

NAMES: Final = "gateway.names"
"""The key in a scope's extensions of the names in the client's certificate."""


class Bridge:
    """Starts a task of ``application`` for each request; ``tasks`` are those that run."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self.tasks: set[asyncio.Task[None]] = set()

    def __call__(self, exchange: Exchange) -> None:
        """Answer one request."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._answered(exchange))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _answered(self, exchange: Exchange) -> None:
        head: MutableMapping[str, Any] | None = None

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                head = message
                return
            body, goes_on = bytes(message.get("body", b"")), message.get("more_body", False)
            if head is None:
                raise RuntimeError("the application sent a body before its head")
            headers = [(name.lower(), value) for name, value in head.get("headers", ())]
            if not exchange.has_begun:
                if not goes_on:
                    if not any(name == b"content-length" for name, _ in headers):
                        headers.append((b"content-length", b"%d" % len(body)))
                    exchange.reply(head["status"], headers, body)
                    return
                exchange.begin(head["status"], headers)
            if goes_on:
                exchange.piece(body)
                await exchange.drained()
            else:
                exchange.end(body)

        failure: BaseException | None = None
        try:
            await self._application(scope_of(exchange), exchange.receive, send)
        except asyncio.CancelledError:
            failure = RuntimeError("the server stopped before the answer was ready")
            raise
        except Exception as error:  # noqa: BLE001 - a bug: this request fails, and no other
            failure = error
        finally:
            exchange.over(failure)


def scope_of(exchange: Exchange) -> Scope:
    """Return the ASGI scope of a request."""
    connection = exchange.connection
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.0" if exchange.is_http10 else "1.1", "server": ("", connection.port),
        "client": connection.client, "scheme": connection.scheme, "root_path": "", "method": exchange.method,
        "path": exchange.path, "raw_path": exchange.raw_path, "query_string": exchange.query,
        "headers": exchange.headers, "state": {}, "extensions": {NAMES: exchange.names} if exchange.names else {},
    }  # fmt: skip


def names_of(scope: Scope) -> Names:
    """Return the names in the client's certificate; empty if it has shown none."""
    found: Names = scope.get("extensions", {}).get(NAMES, ())
    return found


async def send_reply(send: Send, status: int, headers: list[tuple[bytes, bytes]], content: bytes) -> None:
    """Send a whole answer; the headers must have its ``content-length``."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
