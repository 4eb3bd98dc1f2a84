"""An open loop of callers at random times, which a slow server cannot slow down.

``python -m benchmarks.shared.crowd URL … --bodies FILE --phase RATE:SECONDS …`` sends the phases one after the other
and prints the result of each. A caller comes at a time fixed beforehand and sends one request: on a connection that a
caller of the same class left open after an answer, else on a new one. A refused caller closes its connection; a caller
that has waited for ``--patience`` seconds leaves. Times count from when a request was due. ``--critical`` callers per
second, whatever the rate, send ``x-priority: critical``.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import heapq
import re
import resource
import select
import socket
import struct
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from benchmarks.shared.command import tell
from benchmarks.shared.http_load import address_of
from benchmarks.shared.load import arrivals, percentile, render

WINDOW_S: Final = 0.1
"""Seconds: callers of one window are judged together to see when a server has recovered."""
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_RESET: Final = struct.pack("ii", 1, 0)
_SPARE_FILES: Final = 200
_CRITICAL: Final = 0
"""The top class; all others are 1."""


class _Caller:
    __slots__ = ("buffer", "due", "is_critical", "is_open", "phase", "raw", "sock", "wanted")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer, self.wanted, self.is_open = b"", 0, False
        self.raw, self.due, self.is_critical, self.phase = b"", 0.0, False, 0


class Seen:
    """Results of the callers of one phase."""

    def __init__(self) -> None:
        self.offered = self.sent = self.gave_up = self.lost = 0
        self.late: list[float] = []
        self.answered: list[float] = []
        self.refused: list[float] = []
        self.statuses: Counter[str] = Counter()
        self.critical = Counter(due=0, answered=0)
        """How critical callers ended, by status or word; "not connected": the server took no connection."""
        self.came: Counter[int] = Counter()
        """Number of callers in each window."""
        self.took: dict[int, list[float]] = defaultdict(list)
        """Times of the answered callers in each window."""

    def summary(self, seconds: float) -> dict[str, Any]:
        """Return the results as plain values; times in ms."""

        def ms(times: Sequence[float], *percents: int) -> dict[str, float]:
            ordered = sorted(times)
            return {f"p{percent}_ms": round(percentile(ordered, percent) * 1e3, 2) for percent in percents}

        return {
            "seconds": seconds, "offered": self.offered, "sent": self.sent, "late": ms(self.late, 50, 99),
            "answers": len(self.answered), "answered": ms(self.answered, 50, 99),
            "refusals": len(self.refused), "refused": ms(self.refused, 50, 99), "statuses": dict(self.statuses),
            "gave_up": self.gave_up, "lost": self.lost, "critical": dict(self.critical),
        }  # fmt: skip


def recovered_after(seen: Seen, within: float) -> float:
    """Return the seconds until, in every window, 19 of 20 callers were answered ``within`` that many seconds."""
    bad = [n for n, came in seen.came.items() if sum(took <= within for took in seen.took[n]) < 0.95 * came]
    return (max(bad) + 1) * WINDOW_S if bad else 0.0


class Crowd:
    """One crowd; ``requests`` are sent in turn."""

    def __init__(self, url: str, requests: Sequence[bytes], *, patience: float) -> None:
        self._address = address_of(url)
        self._requests = requests
        self._critical = [one.replace(b"\r\n", b"\r\nx-priority: critical\r\n", 1) for one in requests]
        self._patience = patience
        self._epoll = select.epoll()
        self._all: dict[int, _Caller] = {}
        self._idle: tuple[list[_Caller], list[_Caller]] = ([], [])
        """Idle connections by class: services of different importance have their own connections."""
        self._leaving: deque[tuple[float, _Caller, float]] = deque()
        self._next = 0
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FILES
        self._starts: list[float] = []
        self.seen: list[Seen] = []

    def close(self) -> None:
        """Close every connection."""
        for caller in self._all.values():
            caller.sock.close()
        self._epoll.close()

    def send(self, phases: Sequence[tuple[float, float]], critical: float, seed: int = 1) -> list[Seen]:
        """Send ``(rate, seconds)`` phases in order; return the result of each when all callers are gone."""
        self.seen = [Seen() for _ in phases]
        clock, schedule = time.perf_counter, _schedule(phases, critical, seed)
        self._starts = list(accumulate((seconds for _, seconds in phases), initial=0.0))
        began = clock() + 0.05
        upcoming = next(schedule, None)
        while upcoming is not None or self._leaving:
            now = clock() - began
            while upcoming is not None and upcoming[0] <= now:
                self._come(*upcoming, now)
                upcoming = next(schedule, None)
            while self._leaving:
                until, caller, due = self._leaving[0]
                is_waiting = bool(caller.raw) and caller.due == due
                if is_waiting and until > now:
                    break
                self._leaving.popleft()
                if is_waiting:
                    self._end(caller, now, "gave up")
            wait = 0.01 if upcoming is None else min(max(upcoming[0] - now, 0.0), 0.01)
            for number, event in self._epoll.poll(wait, 256):
                if number in self._all:
                    self._handle(self._all[number], event, began)
        return self.seen

    def _come(self, due: float, phase: int, rank: int, now: float) -> None:
        is_critical = rank == _CRITICAL
        seen = self.seen[phase]
        seen.offered += 1
        seen.critical["due"] += is_critical
        seen.came[self._window(phase, due)] += 1
        idle = self._idle[is_critical]
        caller = idle.pop() if idle else self._open()
        if caller is None:
            return
        seen.sent += 1
        seen.late.append(now - due)
        requests = self._critical if is_critical else self._requests
        self._next = (self._next + 1) % len(requests)
        caller.raw, caller.due, caller.is_critical, caller.phase = requests[self._next], due, is_critical, phase
        self._leaving.append((due + self._patience, caller, due))
        if caller.is_open:
            self._write(caller, now)

    def _open(self) -> _Caller | None:
        if len(self._all) >= self._most:
            return None
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        caller = self._all[sock.fileno()] = _Caller(sock)
        with contextlib.suppress(BlockingIOError):
            sock.connect(self._address)
        self._epoll.register(sock.fileno(), select.EPOLLOUT)
        return caller

    def _write(self, caller: _Caller, now: float) -> None:
        try:
            caller.sock.send(caller.raw)
        except OSError:
            self._end(caller, now, "lost")

    def _handle(self, caller: _Caller, event: int, began: float) -> None:
        now = time.perf_counter() - began
        if not caller.is_open:
            if event & (select.EPOLLERR | select.EPOLLHUP):
                self._end(caller, now, "lost")
                return
            caller.is_open = True
            self._epoll.modify(caller.sock.fileno(), select.EPOLLIN)
            self._write(caller, now)
            return
        try:
            data = caller.sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._end(caller, now, "lost")
            return
        data = caller.buffer = caller.buffer + data
        if not caller.wanted:
            end = data.find(b"\r\n\r\n")
            found = _LENGTH.search(data, 0, end + 2) if end >= 0 else None
            if found is None:
                return
            caller.wanted = end + 4 + int(found[1])
        if len(data) >= caller.wanted and caller.raw:
            self._end(caller, now, data[9:12].decode("latin-1"), keeps=b"onnection: close" not in data[:400])

    def _end(self, caller: _Caller, now: float, what: str, *, keeps: bool = False) -> None:
        """Record how a caller ended; if it was answered, the next caller may use its connection."""
        if caller.raw:
            seen, took = self.seen[caller.phase], now - caller.due
            if caller.is_critical:
                seen.critical["answered" if what == "200" else what if caller.is_open else "not connected"] += 1
            if what == "200":
                seen.answered.append(took)
                seen.took[self._window(caller.phase, caller.due)].append(took)
            elif what == "gave up":
                seen.gave_up += 1
            elif what == "lost":
                seen.lost += 1
            else:
                seen.refused.append(took)
                seen.statuses[what] += 1
        caller.raw, caller.buffer, caller.wanted = b"", b"", 0
        if what == "200" and keeps:
            self._idle[caller.is_critical].append(caller)
            return
        with contextlib.suppress(ValueError):
            self._idle[caller.is_critical].remove(caller)
        self._epoll.unregister(caller.sock.fileno())
        del self._all[caller.sock.fileno()]
        caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        caller.sock.close()

    def _window(self, phase: int, due: float) -> int:
        return int((due - self._starts[phase]) / WINDOW_S)


def _schedule(phases: Sequence[tuple[float, float]], critical: float, seed: int) -> Iterator[tuple[float, int, int]]:
    """Yield when callers are due, in which phase, and of which class."""
    start = 0.0
    for phase, (rate, seconds) in enumerate(phases):
        yield from heapq.merge(*(
            [(start + at, phase, rank) for at in arrivals(part, seconds, seed * 100 + phase * 2 + rank)]
            for rank, part in ((_CRITICAL, critical), (1, rate - critical)) if part > 0
        ))  # fmt: skip
        start += seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Send one crowd; the last line on stdout is a list with the result of each phase, as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared.crowd", description=main.__doc__)
    parser.add_argument("url")
    parser.add_argument("--bodies", type=Path, required=True, help="a file with one JSON body per line")
    parser.add_argument("--phase", action="append", required=True, help="RATE:SECONDS; may be repeated")
    parser.add_argument("--critical", type=float, required=True, help="callers of the top class per second")
    parser.add_argument("--patience", type=float, default=2.0, help="seconds after which a caller goes away [2]")
    parser.add_argument("--seed", type=int, default=1, help="of the random times [1]")
    parser.add_argument("--within", type=float, default=0.0, help="seconds of an answer once a server has recovered")
    given = parser.parse_args(argv)
    phases = [(float(rate), float(seconds)) for rate, _, seconds in (one.partition(":") for one in given.phase)]
    crowd = Crowd(given.url, render(given.url, given.bodies.read_bytes().splitlines()), patience=given.patience)
    gc.disable()  # a pause of the sender would look like a pause of the server
    try:
        seen = crowd.send(phases, given.critical, given.seed)
    finally:
        crowd.close()
    found = [
        {**one.summary(seconds), "recovered_s": recovered_after(one, given.within) if given.within else None}
        for one, (_, seconds) in zip(seen, phases, strict=True)
    ]
    tell({"phases": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
