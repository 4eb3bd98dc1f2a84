"""HTTP load on loopback, closed loop or open loop, one process, bounded in time, connections and requests.

A closed loop keeps every connection busy: the next request leaves when the answer is there. An open loop sends at
times fixed beforehand and counts latency from the time a request was due, so a server that stalls is charged for the
requests it delayed. One thread over ``epoll`` with prepared request bytes: the generator must cost little beside what
it measures. ``python -m benchmarks.load`` runs one load and prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_GRACE_S = 5.0
"""How long answers to requests already sent are waited for when the time is over."""
_MOST_SECONDS = 600.0
_MOST_CONNECTIONS = 1024
_MOST_RECONNECTS = 100


@dataclass(slots=True)
class Outcome:
    """What one load saw. Latencies are in seconds; ``requests`` are answers of status 200 within the time."""

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


def render(url: str, bodies: Iterable[bytes]) -> list[bytes]:
    """Return one complete HTTP/1.1 request per body."""
    parts = urlsplit(url)
    head = (
        f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\ncontent-length: "
    ).encode()
    return [b"%s%d\r\n\r\n%s" % (head, len(body), body) for body in bodies]


class _Connection:
    __slots__ = ("buffer", "due", "sock", "wanted")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = b""
        self.wanted = 0
        self.due = 0.0


class Load:
    """One load on one address: connections, requests taken in turn, what came back."""

    def __init__(self, url: str, requests: Sequence[bytes], *, connections: int, start: int = 0) -> None:
        if not 1 <= connections <= _MOST_CONNECTIONS:
            raise ValueError(f"connections must be between 1 and {_MOST_CONNECTIONS}")
        parts = urlsplit(url)
        if parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError("load is sent to this machine only")
        self._address = (parts.hostname, parts.port or 80)
        self._requests = requests
        self._next = start % len(requests)
        self._epoll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._reconnects = 0
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
                replaced = self._read(connection)
                if replaced is None:
                    continue
                now = clock()
                if replaced is connection:
                    if now <= until:
                        outcome.requests += 1
                        outcome.latencies.append(now - connection.due)
                else:
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
                replaced = self._read(connection)
                if replaced is None:
                    continue
                if replaced is connection:
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

    def _read(self, connection: _Connection) -> _Connection | None:
        """Return the connection when its answer is complete and good, a new one when it failed, else None."""
        try:
            data = connection.sock.recv(262144)
        except OSError as error:
            return self._replace(connection, str(error))
        if not data:
            return self._replace(connection, "the server closed the connection")
        if connection.buffer:
            data = connection.buffer + data
        if not connection.wanted:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                connection.buffer = data
                return None
            found = _LENGTH.search(data, 0, end + 2)
            if found is None:
                return self._replace(connection, "an answer without content-length")
            connection.wanted = end + 4 + int(found[1])
        if len(data) < connection.wanted:
            connection.buffer = data
            return None
        connection.buffer, connection.wanted = b"", 0
        if data[9:12] != b"200":
            status = data[9:12].decode("latin-1")
            self._outcome.statuses[status] = self._outcome.statuses.get(status, 0) + 1
            self._failed(data[:600].decode("latin-1"), 1)
            if b"onnection: close" in data:
                return self._replace(connection, "")
            # the connection is good, the answer is not: continue on it without counting the request
            self._epoll.unregister(connection.sock.fileno())
            del self._connections[connection.sock.fileno()]
            again = _Connection(connection.sock)
            self._connections[again.sock.fileno()] = again
            self._epoll.register(again.sock.fileno(), select.EPOLLIN)
            return again
        return connection

    def _replace(self, connection: _Connection, reason: str) -> _Connection:
        if reason:
            self._failed(reason, 1)
        number = connection.sock.fileno()
        self._epoll.unregister(number)
        del self._connections[number]
        connection.sock.close()
        self._reconnects += 1
        if self._reconnects > _MOST_RECONNECTS:
            raise ConnectionError(f"the server closed {self._reconnects} connections: {self._outcome.first_error}")
        return self._connect()

    def _failed(self, reason: str, count: int) -> None:
        self._outcome.errors += count
        self._outcome.first_error = self._outcome.first_error or reason


def _check(seconds: float) -> None:
    if not 0 < seconds <= _MOST_SECONDS:
        raise ValueError(f"a load takes up to {_MOST_SECONDS:.0f} s")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one load; the last line on stdout is its summary as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=main.__doc__)
    parser.add_argument("url")
    parser.add_argument("--bodies", type=Path, required=True, help="a file with one JSON body per line")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second of an open loop; 0: closed loop")
    parser.add_argument("--start", type=int, default=0, help="the first body to send")
    given = parser.parse_args(argv)
    requests = render(given.url, given.bodies.read_bytes().splitlines())
    load = Load(given.url, requests, connections=given.connections, start=given.start)
    try:
        outcome = load.open_loop(given.rate, given.seconds) if given.rate else load.closed_loop(given.seconds)
    finally:
        load.close()
    sys.stdout.write(json.dumps(outcome.summary()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
