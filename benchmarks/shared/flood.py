"""Callers that send more than fits: connections that are always busy, and a stranger that sends a request now and then.

``python -m benchmarks.shared.flood PORT PATH BODY CONNECTIONS [--new]``, in its own process, reports when its
connections are open. For each number of seconds on its stdin, it counts for that long and prints what it saw. With 0
connections, it is the stranger.
"""

from __future__ import annotations

import argparse
import contextlib
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.shared.command import tell
from benchmarks.shared.load import percentile, render

_LOOPBACK: Final = "127.0.0.1"
_STRANGER: Final = "127.0.0.2"
_OPEN_WITHIN_S: Final = 30.0
_EVERY_S: Final = 0.05
_RESET: Final = struct.pack("ii", 1, 0)


def _ms(seconds: Sequence[float], percent: float) -> float:
    return round(percentile(sorted(seconds), percent) * 1e3, 1)


class _One:
    __slots__ = ("buffer", "is_open", "sent", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.buffer, self.sent, self.is_open = sock, b"", 0.0, False


class Flood:
    """Connections that are always busy, from one thread. Counts answers and refusals."""

    def __init__(self, port: int, raw: bytes, count: int, *, opens_new: bool) -> None:
        self._address, self._raw, self._opens_new = (_LOOPBACK, port), raw, opens_new
        self._epoll = select.epoll()
        self._all: dict[int, _One] = {}
        self.counts = {"answers": 0, "refusals": 0, "lost": 0}
        self.latencies: list[float] = []
        self._missing = count
        self._opening = 0

    def open(self) -> None:
        """Wait until all connections are open, or some time has passed."""
        self._go_on(time.monotonic() + _OPEN_WITHIN_S, until_open=True)

    def count(self, seconds: float) -> dict[str, Any]:
        """Keep them busy for ``seconds`` and return what they saw."""
        self.counts = dict.fromkeys(self.counts, 0)
        self.latencies.clear()
        self._go_on(time.monotonic() + seconds)
        return {**self.counts, "p50_ms": _ms(self.latencies, 50), "p99_ms": _ms(self.latencies, 99)}

    def _go_on(self, until: float, *, until_open: bool = False) -> None:
        while time.monotonic() < until and not (until_open and not self._missing and not self._opening):
            for _ in range(min(self._missing, 64)):
                self._open()
            for number, _ in self._epoll.poll(0 if self._missing else 0.02, 256):
                self._handle(self._all[number])

    def _open(self) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(BlockingIOError):
            sock.connect(self._address)
        self._all[sock.fileno()] = _One(sock)
        self._epoll.register(sock.fileno(), select.EPOLLOUT)
        self._missing -= 1
        self._opening += 1

    def _handle(self, one: _One) -> None:
        if not one.is_open:
            self._opening -= 1
            one.is_open = True
            if one.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._end(one)
                return
            self._epoll.modify(one.sock.fileno(), select.EPOLLIN)
            self._send(one)
            return
        try:
            data = one.sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.counts["lost"] += 1
            self._end(one)
            return
        one.buffer += data
        head, found, rest = one.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        if len(rest) < length:
            return
        one.buffer = b""
        if head[9:12] == b"200":
            self.counts["answers"] += 1
            self.latencies.append(time.monotonic() - one.sent)
        else:
            self.counts["refusals"] += 1
            if self._opens_new:
                self._end(one)
                return
        if b"connection: close" in head:
            self._end(one)
        else:
            self._send(one)

    def _send(self, one: _One) -> None:
        one.sent = time.monotonic()
        try:
            one.sock.send(self._raw)
        except OSError:
            self._end(one)

    def _end(self, one: _One) -> None:
        number = one.sock.fileno()
        self._epoll.unregister(number)
        del self._all[number]
        one.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        one.sock.close()
        self._missing += 1


def strange(port: int, raw: bytes, seconds: float) -> dict[str, Any]:
    """Send one request on a new connection, twenty times a second, from another address; return answers and times."""
    took: dict[str, list[float]] = {"200": [], "429": [], "other": []}
    until = time.monotonic() + seconds
    unanswered = 0
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            with socket.create_connection((_LOOPBACK, port), timeout=10, source_address=(_STRANGER, 0)) as sock:
                sock.sendall(raw)
                head = sock.recv(65536)
            status = head[9:12].decode("latin-1")
            took[status if status in took else "other"].append(time.monotonic() - began)
        except OSError:
            unanswered += 1
        time.sleep(max(0.0, began + _EVERY_S - time.monotonic()))
    return {
        "answered": len(took["200"]), "refused": len(took["429"]), "other": len(took["other"]),
        "unanswered": unanswered, "answered_p50_ms": _ms(took["200"], 50),
        **{f"refused_p{percent}_ms": _ms(took["429"], percent) for percent in (50, 99, 100)},
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Be a flood, or a stranger; see the module."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.shared.flood", description=main.__doc__)
    arguments.add_argument("port", type=int)
    arguments.add_argument("path")
    arguments.add_argument("body")
    arguments.add_argument("connections", type=int)
    arguments.add_argument("--new", action="store_true", help="open a new connection after each refusal")
    given = arguments.parse_args(argv)
    [raw] = render(f"http://gateway{given.path}", [given.body.encode()])
    flood = Flood(given.port, raw, given.connections, opens_new=given.new)
    flood.open()
    tell({"is_open": True})
    poll = select.poll()
    poll.register(sys.stdin, select.POLLIN)
    while True:
        while not poll.poll(0):
            flood.count(0.1) if given.connections else time.sleep(0.02)
        line = sys.stdin.readline()
        if not line:
            return 0
        seconds = float(line)
        found = flood.count(seconds) if given.connections else strange(given.port, raw, seconds)
        tell(found)


if __name__ == "__main__":
    sys.exit(main())
