"""uvicorn's HTTP/1.1 protocol with one addition: an answer that is known whole can be written in one piece.

uvicorn checks every header of every answer against two regular expressions and writes head and body apart; with the
eleven headers of an inference answer that costs about as much as tokenizing a short text. The addition is an ASGI
extension, ``gateway.reply``: a route that finds it in the scope may call it instead of sending two messages; any other
server, and every other route, goes the ordinary way. Chosen in ``gateway.__main__``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

EXTENSION: Final = "gateway.reply"

Reply = Callable[[int, Sequence[tuple[bytes, bytes]], bytes], bool]
"""``reply(status, headers, body)``; False when it could not be used now and the messages must be sent instead.

Header names and values must be free of control characters, and ``content-length`` must be among them.
"""


class WholeReplyProtocol(HttpToolsProtocol):
    """Adds the extension to every request's scope."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope["extensions"] = {EXTENSION: partial(_reply, cycle)}  # type: ignore[dict-item]  # ours
        super()._start_asgi_task(cycle, app)


def _reply(cycle: RequestResponseCycle, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
    if cycle.flow.write_paused or cycle.response_started:
        return False
    if cycle.disconnected:
        return True
    parts = [STATUS_LINE[status]]
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    if not cycle.keep_alive:
        parts.append(b"connection: close\r\n")
    parts += (b"\r\n", body)
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.write(b"".join(parts))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True
