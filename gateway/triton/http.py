"""Inference over Triton's HTTP with binary tensors: the cheapest way to call it from Python.

Measured on calls of the size the micro-batcher makes (``python -m benchmarks.transports``): a fifth of the CPU time of
``grpc.aio`` here, two thirds of it in Triton, and half the time of a lone call. So ``backends.triton`` calls models
this way wherever Triton's HTTP port answers, and over gRPC where it does not; everything but inference stays gRPC.

One ``HttpCalls`` belongs to one Triton address. It looks by itself, in the background, which of the servers behind the
address answer; a call goes to the one with the fewest calls under way. ``NotAnswered`` means that nothing can have been
answered to anybody: the caller may send the same tensors another way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import httptools
import orjson
from numpy.typing import NDArray

from gateway.errors import BackendGarbage, BackendUnavailable, DeadlineExceeded, GatewayError
from gateway.triton import tensors
from gateway.triton.errors import Complaint, translate
from gateway.triton.port import Tensors
from gateway.triton.replicas import ALIVE_S, QUIET_S, RESOLVE_S, parse_address, resolve

_log = logging.getLogger("triton_gateway.backend")

_CONNECT_S: Final = 1.0
_UNHEARD_MS: Final = 5000
"""How long what was sent may stay unconfirmed by the other side's kernel."""
_MOST_IDLE: Final = 16
"""Connections kept per server for the next call."""
_ALIVE: Final = b"GET /v2/health/live HTTP/1.1\r\nHost: triton\r\n\r\n"
_COMPLAINTS: Final[dict[int, Complaint]] = {
    400: "invalid", 404: "not_found", 429: "full", 499: "cancelled", 500: "failed", 503: "unavailable", 504: "late",
}  # fmt: skip


class NotAnswered(Exception):
    """The server went away, or never was there, before it had answered."""


def http_hosts(address: str, http: str) -> list[tuple[str, int]]:
    """Return the HTTP hosts and ports of the Triton at the gRPC ``address``.

    ``http`` is a port (the same hosts), addresses of its own (``host:port``, several with commas), ``auto`` (port 8000
    where gRPC has 8001: Triton's defaults) or ``off``. Raises ``ValueError`` for anything else.
    """
    http = http.strip()
    if http == "off":
        return []
    if not (http == "auto" or http.isdecimal()):
        return _hosts(http.removeprefix("http://"))
    try:
        hosts = _hosts(address)
    except ValueError:  # a socket file, or another address that only gRPC understands
        return []
    if http == "auto":
        return [(host, 8000) for host, port in hosts if port == 8001]
    return [(host, int(http)) for host, _ in hosts]


def _hosts(address: str) -> list[tuple[str, int]]:
    target = parse_address(address)
    return [_split(part) for part in target.fixed or (f"{target.host}:{target.port}",)]


def _split(part: str) -> tuple[str, int]:
    host, _, port = part.strip().rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{part.strip()!r} is not an address; write host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


class _Connection(asyncio.Protocol):
    """One keep-alive connection: one request at a time, whole answers."""

    __slots__ = ("_body", "_json_length", "_parser", "_transport", "_waiting", "is_open")

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._waiting: asyncio.Future[tuple[int, int, bytes]] | None = None
        self._body: list[bytes] = []
        self._json_length = 0
        self.is_open = False

    def send(self, parts: Sequence[bytes], answer: asyncio.Future[tuple[int, int, bytes]]) -> None:
        """Write a request; ``answer`` gets its status, the length of its JSON part and its body."""
        self._waiting = answer
        self._transport.write(b"".join(parts))

    def end(self) -> None:
        """Close at once; a request without an answer is not answered."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.is_open = True
        # A server whose node is lost does not even refuse: without this a call to it hangs until its deadline.
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNHEARD_MS)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(NotAnswered(str(exc or "the connection was closed")))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserCallbackError) as error:
            waiting, self._waiting = self._waiting, None
            if waiting is not None and not waiting.done():
                waiting.set_exception(BackendGarbage(f"what Triton sent is not HTTP: {error}"))
            self.end()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"inference-header-content-length":
            self._json_length = int(value)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        json_length, self._json_length, self._body = self._json_length, 0, []
        if not self._parser.should_keep_alive():
            self.is_open = False
            self._transport.close()
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result((self._parser.get_status_code(), json_length, body))


class _Host:
    """One server: its idle connections, those that wait for an answer, and how many calls it has."""

    __slots__ = ("address", "asked", "busy", "calls", "idle", "is_up", "name")

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.name = f"{address[0]}:{address[1]}"
        self.calls = 0
        self.idle: list[_Connection] = []
        self.busy: set[_Connection] = set()
        self.is_up = False
        self.asked: asyncio.Task[None] | None = None
        """Finds out whether it is alive, while a call has waited for long."""

    def take(self) -> _Connection | None:
        """Return an idle connection that is open."""
        while self.idle:
            connection = self.idle.pop()
            if connection.is_open:
                return connection
        return None

    def keep(self, connection: _Connection) -> None:
        """Keep a connection for the next call."""
        if connection.is_open and self.is_up and len(self.idle) < _MOST_IDLE:
            self.idle.append(connection)
        else:
            connection.end()

    def down(self) -> None:
        """Send nothing here until it answers again."""
        self.is_up = False
        while self.idle:
            self.idle.pop().end()


async def _nobody() -> None:
    """Nobody else has to look."""


class HttpCalls:
    """Calls models over HTTP. ``address`` names the Triton in errors; ``hosts`` as ``http_hosts`` returns them.

    ``doubted`` is awaited when a server is silent, before its calls are given up: who else calls it looks too.
    """

    def __init__(
        self, address: str, hosts: Sequence[tuple[str, int]], doubted: Callable[[], Awaitable[object]] = _nobody
    ) -> None:
        self._address = address
        self._doubted = doubted
        self._names = tuple(hosts)
        self._hosts: dict[tuple[str, int], _Host] = {}
        self._up: tuple[_Host, ...] = ()
        self._turn = 0
        self._watch: asyncio.Task[None] | None = None
        self._look_now = asyncio.Event()

    @property
    def is_up(self) -> bool:
        """True when a server answered lately: ``infer`` may be called."""
        return bool(self._up)

    async def start(self) -> None:
        """Find out who answers, and keep finding out; returns after the first look. May be called again."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_hosts(), name="triton-http")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CONNECT_S * 2):
                    while not self._hosts:  # noqa: ASYNC110 - a fact, not an event
                        await asyncio.sleep(0.005)

    async def infer(
        self, model: str, inputs: Tensors, outputs: Sequence[str], *, timeout: float, request_id: str, parent: str
    ) -> dict[str, NDArray[Any]]:
        """Run one inference, as ``Backend.infer``. Raises ``NotAnswered`` too: it may be made another way."""
        head: dict[str, Any] = {"id": request_id} if request_id else {}
        described = head["inputs"] = []
        packed: list[bytes] = []
        size = 0
        for name, array in inputs.items():
            datatype, raw = tensors.pack(name, array)
            described.append({
                "name": name, "shape": array.shape, "datatype": datatype,
                "parameters": {"binary_data_size": len(raw)},
            })  # fmt: skip
            packed.append(raw)
            size += len(raw)
        if outputs:
            head["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
        else:
            head["parameters"] = {"binary_data_output": True}
        json = orjson.dumps(head)
        line = b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: triton\r\n%bInference-Header-Content-Length: %d\r\n" % (
            model.encode(), b"traceparent: %b\r\n" % parent.encode() if parent else b"", len(json),
        )  # fmt: skip
        length = b"Content-Length: %d\r\n\r\n" % (len(json) + size)
        host = self._choose()
        status, json_length, body = await self._ask(host, (line, length, json, *packed), timeout)
        if status == 200:
            return _read(body, json_length)
        error = self._complaint(status, body, model)
        if isinstance(error, BackendUnavailable):  # it is going away
            self._lost(host)
            raise NotAnswered(error.message)
        raise error

    async def _ask(self, host: _Host, parts: Sequence[bytes], timeout: float) -> tuple[int, int, bytes]:
        loop = asyncio.get_running_loop()
        host.calls += 1
        connection = None
        timer = doubt = None
        try:
            connection = host.take() or await self._connect(host, min(timeout, _CONNECT_S))
            answer: asyncio.Future[tuple[int, int, bytes]] = loop.create_future()
            timer = loop.call_later(max(timeout, 0), _late, answer)
            if len(self._up) > 1:
                doubt = loop.call_later(QUIET_S, self._doubt, host)
            host.busy.add(connection)
            connection.send(parts, answer)
            found = await answer
        except NotAnswered:
            self._lost(host)
            raise
        except BaseException:  # late, or the caller left: what comes on this connection belongs to nobody
            if connection is not None:
                connection.end()
            raise
        else:
            host.keep(connection)
            return found
        finally:
            host.calls -= 1
            if connection is not None:
                host.busy.discard(connection)
            if timer is not None:
                timer.cancel()
            if doubt is not None:
                doubt.cancel()

    def _doubt(self, host: _Host) -> None:
        """Ask a server that owes an answer whether it is alive, unless it is being asked."""
        if host.is_up and host.busy and (host.asked is None or host.asked.done()):
            host.asked = asyncio.create_task(self._ask_alive(host), name=f"triton-alive {host.name}")

    async def _ask_alive(self, host: _Host) -> None:
        alive, _ = await asyncio.gather(self._alive(host, ALIVE_S), self._doubted(), return_exceptions=True)
        if isinstance(alive, _Connection):
            host.keep(alive)
            # Slow, and alive: its calls wait. It is asked again as long as there are any.
            asyncio.get_running_loop().call_later(QUIET_S, self._doubt, host)
        elif len(self._up) > 1 and host.is_up:  # of one server nothing is known that another could do better
            _log.warning("Triton at %s gives no sign of life: its calls are made again elsewhere", host.name)
            self._lost(host)
            for connection in tuple(host.busy):
                connection.end()

    def _choose(self) -> _Host:
        up = self._up
        if len(up) == 1:
            return up[0]
        if not up:
            raise NotAnswered(f"no HTTP server at {self._address}")
        # The fewest calls under way; of equals one after the other.
        self._turn += 1
        turn = self._turn
        return min((up[(turn + i) % len(up)] for i in range(len(up))), key=lambda host: host.calls)

    async def _connect(self, host: _Host, timeout: float) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                return (await loop.create_connection(_Connection, *host.address))[1]
        except (OSError, TimeoutError) as error:
            raise NotAnswered(str(error)) from error

    def _lost(self, host: _Host) -> None:
        # One lost connection says little (a server may close an idle one), so the look decides; until then nothing new
        # goes there.
        host.down()
        self._up = tuple(h for h in self._up if h is not host)
        self._look_now.set()

    def _complaint(self, status: int, body: bytes, model: str) -> GatewayError:
        try:
            text = str(orjson.loads(body)["error"])
        except (ValueError, KeyError, TypeError):
            text = body[:200].decode("utf-8", "replace")
        complaint = _COMPLAINTS.get(status, "other")
        line = (text.splitlines() or [""])[0]
        shown = line if complaint != "other" else f"{status}: {line}"
        return translate(complaint, shown, model=model, address=self._address)

    async def _watch_hosts(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:  # noqa: BLE001 - whatever it was, gRPC serves, and the next look may find more
                _log.exception("looking for Triton's HTTP at %s failed", self._address)
            self._look_now.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RESOLVE_S):
                    await self._look_now.wait()
                await asyncio.sleep(0.1)  # what was lost a moment ago is not asked in a tight loop

    async def _look(self) -> None:
        found = await self._resolve()
        hosts = {address: self._hosts.get(address) or _Host(address) for address in found}
        await asyncio.gather(*(self._try(host) for host in hosts.values() if not host.is_up))
        for address, host in self._hosts.items():
            if address not in hosts:
                host.down()
        self._hosts = hosts
        before, self._up = self._up, tuple(host for host in hosts.values() if host.is_up)
        if {h.name for h in before} != {h.name for h in self._up}:
            _log.info(
                "models at %s are called over %s", self._address,
                "HTTP at " + ", ".join(h.name for h in self._up) if self._up else "gRPC",
            )  # fmt: skip

    async def _resolve(self) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for host, port in self._names:
            try:
                found += [_split(target) for target in await resolve(host, port)]
            except OSError:
                # A name service that is away for a moment does not move anybody.
                found += [address for address in self._hosts if address[1] == port]
        return list(dict.fromkeys(found))

    async def _try(self, host: _Host) -> None:
        connection = await self._alive(host, _CONNECT_S)
        host.is_up = connection is not None
        if connection is not None:
            host.keep(connection)

    async def _alive(self, host: _Host, within: float) -> _Connection | None:
        """Ask a server whether it is alive: the connection over which it said so, or None."""
        connection = None
        try:
            connection = await self._connect(host, within)
            answer: asyncio.Future[tuple[int, int, bytes]] = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(within):
                connection.send((_ALIVE,), answer)
                status = (await answer)[0]
        except (NotAnswered, BackendGarbage, TimeoutError):
            status = 0
        if status == 200:
            return connection
        if connection is not None:
            connection.end()
        return None

    async def close(self) -> None:
        """End every connection; calls under way are not answered."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        self._up = ()
        for host in self._hosts.values():
            host.down()
            if host.asked is not None:
                host.asked.cancel()


def _late(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(DeadlineExceeded("Triton did not answer within the request's time"))


def _read(body: bytes, json_length: int) -> dict[str, NDArray[Any]]:
    view = memoryview(body)
    found: dict[str, NDArray[Any]] = {}
    try:
        head = orjson.loads(view[: json_length or len(body)])
        at = json_length
        for output in head["outputs"]:
            name, size = output["name"], output["parameters"]["binary_data_size"]
            found[name] = tensors.unpack(name, output["datatype"], output["shape"], view[at : at + size])
            at += size
    except (ValueError, KeyError, TypeError) as error:
        raise BackendGarbage(f"Triton's answer cannot be read: {error!r}") from error
    return found
