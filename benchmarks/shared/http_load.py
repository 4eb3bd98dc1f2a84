"""Generates HTTP load, as a closed or open loop, in one process, with limits on time and connections.

A closed loop keeps every connection busy: the next request is sent when the answer has arrived. An open loop sends at
times that are fixed in advance, and measures latency from the time a request was due. A stalling server is therefore
charged for the requests that it delayed. One thread uses ``epoll`` and prepared request bytes, because the generator
must cost little compared with what it measures.
"""

from __future__ import annotations

import random
import re
import select
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_GRACE_S = 5.0
"""Seconds to wait for outstanding answers when the time is over."""
_MAX_SECONDS = 600.0
_MAX_CONNECTIONS = 1024
_MAX_FAILURES = 100
"""Lost connections after which the load ends: the server is down."""


@dataclass(slots=True)
class Outcome:
    """The result of one load. Latencies are in seconds; ``requests`` counts answers of status 200 within the time."""

    requests: int = 0
    errors: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    first_error: str = ""

    def summary(self) -> dict[str, object]:
        """Return it as plain values: rate, exact percentiles in ms, errors."""
        ordered = sorted(self.latencies)
        return {
            "requests": self.requests,
            "errors": self.errors,
            "seconds": self.seconds,
            "rps": self.requests / self.seconds if self.seconds else 0.0,
            **{f"p{q:g}_ms": percentile(ordered, q) * 1000 for q in (50, 90, 99)},
            "max_ms": (ordered[-1] if ordered else 0.0) * 1000,
            "statuses": self.statuses,
            "first_error": self.first_error,
        }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` % of the sorted values do not exceed; 0 without values."""
    if not ordered:
        return 0.0
    if not 0 < percent <= 100:
        raise ValueError(f"{percent} is not a percentage")
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[int(rank) - 1]


def arrivals(rate: float, seconds: float, seed: int) -> Iterator[float]:
    """Yield the times (from 0, rising, below ``seconds``) of a Poisson stream of ``rate`` requests per second."""
    if rate <= 0:
        raise ValueError("the rate must be above 0")
    source = random.Random(seed)
    at = source.expovariate(rate)
    while at < seconds:
        yield at
        at += source.expovariate(rate)


CLIENTS: Final = ("constant", "proxy", "traceparent")
"""Heads of clients: always the same; as an ingress adds to them (a new request id, a changing client address); with the
trace of a client of OpenTelemetry.
"""


def render(url: str, bodies: Iterable[bytes], client: str = "constant") -> list[bytes]:
    """Return one complete HTTP/1.1 request per body; ``client``: see ``CLIENTS``."""
    parts = urlsplit(url)
    head = (f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n").encode()
    draw = random.Random(1)
    return [b"%s%scontent-length: %d\r\n\r\n%s" % (head, _own(client, draw), len(body), body) for body in bodies]


def _own(client: str, draw: random.Random) -> bytes:
    """Return the lines of one request's head that no other request has."""
    if client == "proxy":
        address = ".".join(str(draw.randrange(1, 255)) for _ in range(4))
        return (
            f"x-request-id: {draw.getrandbits(128):032x}\r\nx-forwarded-for: {address}\r\n"
            "x-forwarded-proto: https\r\nx-forwarded-host: example.com\r\n"
        ).encode()
    if client == "traceparent":
        return f"traceparent: 00-{draw.getrandbits(128) | 1:032x}-{draw.getrandbits(64) | 1:016x}-01\r\n".encode()
    return b""


def address_of(url: str) -> tuple[str, int]:
    """Return host and port of ``url``. Raises ``ValueError`` if it is not HTTP, or names another machine."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{url} is not an http:// address")
    if parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        raise ValueError(f"{parts.hostname}: load is sent to this machine only")
    return (parts.hostname, parts.port or 80)


class _Connection:
    __slots__ = ("buffer", "due", "is_last", "sock", "wanted")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = b""
        self.wanted = 0
        self.is_last = False
        self.due = 0.0


class Load:
    """One load on one address: its connections, the requests (sent in turn), and the result.

    Raises ``ValueError`` for an address of another machine, ``OSError`` if nothing listens.
    """

    def __init__(self, url: str, requests: Sequence[bytes], *, connections: int, start: int = 0) -> None:
        if not 1 <= connections <= _MAX_CONNECTIONS:
            raise ValueError(f"connections must be between 1 and {_MAX_CONNECTIONS}")
        self._address = address_of(url)
        self._requests = requests
        self._next = start % len(requests)
        self._epoll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._failures = 0
        self._outcome = Outcome()
        for _ in range(connections):
            self._connect()

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.sock.close()
        self._connections.clear()
        self._epoll.close()

    def closed_loop(self, seconds: float) -> Outcome:
        """Keep every connection busy for ``seconds``."""
        _check(seconds)
        clock, outcome = time.perf_counter, self._outcome
        began = clock()
        until = began + seconds
        waiting = set(self._connections)
        for connection in list(self._connections.values()):
            self._send(connection, clock())
        while waiting:
            events = self._epoll.poll(0.05, 512)
            now = clock()
            if now > until + _GRACE_S:
                self._failed(f"{len(waiting)} requests were not answered", len(waiting))
                break
            for number, _ in events:
                connection = self._connections[number]
                read = self._read(connection)
                if read is None:
                    continue
                replaced, is_answered = read
                now = clock()
                if is_answered and now <= until:
                    outcome.requests += 1
                    outcome.latencies.append(now - connection.due)
                if replaced is not connection:
                    waiting.discard(number)
                    waiting.add(replaced.sock.fileno())
                if now < until:
                    self._send(replaced, now)
                else:
                    waiting.discard(replaced.sock.fileno())
        outcome.seconds = seconds
        return outcome

    def open_loop(self, rate: float, seconds: float, seed: int = 1) -> Outcome:
        """Send at the times of ``arrivals``; a request that finds no idle connection waits, and its latency counts."""
        _check(seconds)
        clock, outcome = time.perf_counter, self._outcome
        schedule = arrivals(rate, seconds, seed)
        idle = deque(self._connections.values())
        due: deque[float] = deque()
        busy = 0
        began = clock()
        upcoming = next(schedule, None)
        while upcoming is not None or due or busy:
            now = clock() - began
            while upcoming is not None and upcoming <= now:
                due.append(upcoming)
                upcoming = next(schedule, None)
            while due and idle:
                self._send(idle.popleft(), began + due.popleft())
                busy += 1
            if now > seconds + _GRACE_S:
                self._failed(f"{len(due) + busy} requests were not answered", len(due) + busy)
                break
            pause = 0.05 if upcoming is None else min(0.05, max(0.0, upcoming - now))
            for number, _ in self._epoll.poll(pause, 512):
                connection = self._connections[number]
                read = self._read(connection)
                if read is None:
                    continue
                replaced, is_answered = read
                if is_answered:
                    outcome.requests += 1
                    outcome.latencies.append(clock() - connection.due)
                busy -= 1
                idle.append(replaced)
        outcome.seconds = max(seconds, clock() - began)
        return outcome

    def _connect(self) -> _Connection:
        sock = socket.create_connection(self._address, timeout=10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(sock)
        self._connections[sock.fileno()] = connection
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        return connection

    def _send(self, connection: _Connection, due: float) -> None:
        connection.due = due
        connection.sock.sendall(self._requests[self._next])
        self._next += 1
        if self._next == len(self._requests):
            self._next = 0

    def _read(self, connection: _Connection) -> tuple[_Connection, bool] | None:
        """Return the connection to continue with, and whether the answer was 200; None if it is not complete yet."""
        try:
            data = connection.sock.recv(262144)
        except OSError as error:
            return self._lost(connection, str(error))
        if not data:
            return self._lost(connection, "the server closed the connection")
        if connection.buffer:
            data = connection.buffer + data
        if not connection.wanted:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                connection.buffer = data
                return None
            found = _LENGTH.search(data, 0, end + 2)
            if found is None:
                return self._lost(connection, "an answer without content-length")
            connection.wanted = end + 4 + int(found[1])
            connection.is_last = b"onnection: close" in data[:end]
        if len(data) < connection.wanted:
            connection.buffer = data
            return None
        connection.buffer, connection.wanted = b"", 0
        is_good = data[9:12] == b"200"
        if not is_good:
            status = data[9:12].decode("latin-1")
            self._outcome.statuses[status] = self._outcome.statuses.get(status, 0) + 1
            self._failed(data[:600].decode("latin-1"), 1)
        # `connection: close` is no failure: the server shuts down, or balances its connections.
        return (self._replace(connection) if connection.is_last else connection), is_good

    def _lost(self, connection: _Connection, reason: str) -> tuple[_Connection, bool]:
        self._failed(reason, 1)
        self._failures += 1
        if self._failures > _MAX_FAILURES:
            raise ConnectionError(f"the server closed {self._failures} connections: {self._outcome.first_error}")
        return self._replace(connection), False

    def _replace(self, connection: _Connection) -> _Connection:
        number = connection.sock.fileno()
        self._epoll.unregister(number)
        del self._connections[number]
        connection.sock.close()
        return self._connect()

    def _failed(self, reason: str, count: int) -> None:
        self._outcome.errors += count
        self._outcome.first_error = self._outcome.first_error or reason


def _check(seconds: float) -> None:
    if not 0 < seconds <= _MAX_SECONDS:
        raise ValueError(f"a load must be longer than 0 s and take {_MAX_SECONDS:.0f} s at most")
