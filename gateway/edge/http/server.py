"""uvicorn's server, except that it accepts what waits in the listen queue before it stops listening.

Closing a listening socket resets the connections in its queue, whose clients believe that they are connected.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Sequence
from typing import Final

import uvicorn

_QUEUE_S: Final = 1.0
"""New connections may come faster than they are accepted."""
_QUIET_STEPS: Final = 3


class Server(uvicorn.Server):
    """Serves on listening sockets. Only what stops it differs from uvicorn."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept until no connection waits, stop listening, and let the connections end."""
        await _accepted(sockets or ())
        await super().shutdown(sockets)


async def _accepted(listeners: Sequence[socket.socket]) -> None:
    """Return when nothing waits to be accepted; the event loop accepts meanwhile.

    What was accepted belongs to the server only in a later step of the loop, so nothing must have waited for some.
    """
    waiting = select.poll()
    for listener in listeners:
        waiting.register(listener, select.POLLIN)
    loop = asyncio.get_running_loop()
    until, quiet_steps = loop.time() + _QUEUE_S, 0
    while loop.time() < until:
        quiet_steps = 0 if waiting.poll(0) else quiet_steps + 1
        if quiet_steps == _QUIET_STEPS:
            return
        await asyncio.sleep(0)
