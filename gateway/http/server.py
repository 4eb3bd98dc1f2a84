"""Listens, and stops in order: what waits in the listen queue is accepted and answered before the server ends."""

from __future__ import annotations

import asyncio
import logging
import select
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

import uvloop

from gateway.http.connections import Connections
from gateway.http.core import Connection
from gateway.http.exchange import Exchange
from gateway.outcome import Serving

_log = logging.getLogger("triton_gateway.http")

_QUEUE_S: Final = 1.0
"""New connections may come faster than they are accepted."""
_QUIET_STEPS: Final = 3
_LOOK_S: Final = 0.05


class Served(Protocol):
    """What a server serves: the gateway."""

    connections: Connections

    def answer(self, exchange: Exchange) -> Serving:
        """See ``core.Answer``."""
        ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Work while the context is open."""
        ...

    def leave(self) -> float:
        """Tell callers to go elsewhere; return for how many seconds requests must still be taken."""
        ...


async def listen(
    served: Served, listener: socket.socket, tls: ssl.SSLContext | None = None, backlog: int = 100
) -> asyncio.Server:
    """Accept connections."""
    return await asyncio.get_running_loop().create_server(
        lambda: Connection(served.answer, served.connections), sock=listener, ssl=tls, backlog=backlog
    )


async def stop(served: Served, server: asyncio.Server, listener: socket.socket, timeout: float) -> None:
    """Accept until no connection waits, stop listening, and let the connections end, ``timeout`` seconds long."""
    await _accepted(listener)
    server.close()
    listener.close()
    served.connections.leave()
    for connection in tuple(served.connections.open):
        connection.shutdown()
    try:
        async with asyncio.timeout(timeout):
            while served.connections.open:  # noqa: ASYNC110 - a set that others change
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        _log.error("%d connections did not end within %g s: dropped", len(served.connections.open), timeout)
        for connection in tuple(served.connections.open):
            connection.abort()


@dataclass
class Server:
    """Serves what ``make`` returns on ``listener``, in this thread, until SIGTERM or SIGINT. ``make`` runs in the loop.

    ``backlog``: connections that may wait to be accepted. ``drain_timeout``: seconds that requests may take when it
    stops.
    """

    make: Callable[[], Served]
    listener: socket.socket
    tls: Callable[[], ssl.SSLContext] | None
    backlog: int
    drain_timeout: float
    started: bool = False
    """Whether it accepts requests."""

    def run(self) -> None:
        """Serve until the process gets a signal to stop."""
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except Exception:  # noqa: BLE001 - it ends, and says why
            _log.exception("the gateway ended with an error" if self.started else "the gateway cannot start")

    async def _serve(self) -> None:
        """Serve until SIGINT, or leave in order at SIGTERM: a server that stops at once closes connections on which a
        request may be arriving, and callers that are told in a reply open their next connection elsewhere.
        """
        stops = asyncio.Event()
        served: Served | None = None
        is_leaving = False

        def leave() -> None:
            nonlocal is_leaving
            if served is None or is_leaving:  # asked twice
                stops.set()
                return
            is_leaving = True
            delay = served.leave()
            _log.info("leaving: stops in %g s", delay)
            loop.call_later(delay, stops.set)

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, leave)
        loop.add_signal_handler(signal.SIGINT, stops.set)
        served = self.make()
        async with served.running():
            if not (stops.is_set() or is_leaving):
                server = await listen(served, self.listener, self.tls and self.tls(), self.backlog)
                self.started = True
                _log.info("accepts connections")
                await stops.wait()
                await stop(served, server, self.listener, self.drain_timeout)


async def _accepted(listener: socket.socket) -> None:
    """Return when nothing waits to be accepted; the event loop accepts meanwhile.

    What was accepted belongs to the server only in a later step of the loop, so nothing must have waited for some.
    """
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    loop = asyncio.get_running_loop()
    until, quiet_steps = loop.time() + _QUEUE_S, 0
    while loop.time() < until:
        quiet_steps = 0 if waiting.poll(0) else quiet_steps + 1
        if quiet_steps == _QUIET_STEPS:
            return
        await asyncio.sleep(0)
