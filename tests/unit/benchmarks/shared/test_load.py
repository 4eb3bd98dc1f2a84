"""The load generator against a server of a few lines: counts, latencies, schedules, limits."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from benchmarks.shared.http_load import Outcome
from benchmarks.shared.load import Load, arrivals, render
from tests.waiting import until


def test_an_open_loop_is_scheduled_beforehand() -> None:
    """Times are seeded, rising, within the time, and as many as the rate asks for."""
    times = list(arrivals(1000, 5, seed=3))
    assert times == list(arrivals(1000, 5, seed=3))
    assert times == sorted(times)
    assert 0 < times[0]
    assert times[-1] < 5
    assert 5000 == pytest.approx(len(times), rel=0.06)


def test_load_stays_on_this_machine() -> None:
    """A benchmark is no way to load somebody else's server."""
    with pytest.raises(ValueError, match="this machine"):
        Load("http://example.com/", [b"x"], connections=1)


@contextmanager
def server(answers: list[bytes]) -> Iterator[str]:
    """Answer every request on every connection with the next of ``answers``, the last one again and again."""
    listener = socket.create_server(("127.0.0.1", 0))
    taken = iter(answers)
    lock = threading.Lock()

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection, suppress(ConnectionResetError):  # of a caller who goes away
            while connection.recv(65536):
                with lock:
                    answer = next(taken, answers[-1])
                # in two parts, as a network may deliver it
                connection.sendall(answer[:20])
                connection.sendall(answer[20:])
                if b"connection: close" in answer:
                    return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        # wakes accept(), which a plain close would not
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


_GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
_BAD = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nfull"


def loaded(*answers: bytes, connections: int) -> Outcome:
    """What a second of load finds; again if this machine had no time for it in that second."""

    def found() -> Outcome | None:
        with server([*answers]) as url:
            load = Load(url, render(url, [b"{}"]), connections=connections)
            outcome = load.closed_loop(1.0)
            load.close()
        return outcome if outcome.requests > 1 else None

    outcome: Outcome = until(found)
    return outcome


def test_a_closed_loop_counts_what_was_answered() -> None:
    """Every answer has a latency; refusals are errors with their status, and the connection goes on."""
    outcome = loaded(_GOOD, _BAD, _GOOD, connections=3)
    assert outcome.requests == len(outcome.latencies)
    assert 1 == outcome.errors
    assert {"503": 1} == outcome.statuses
    assert "full" in outcome.first_error


def test_an_open_loop_sends_what_was_scheduled() -> None:
    """As many answers as arrivals, whatever the server's speed; latency counts from the time a request was due."""
    with server([_GOOD]) as url:
        load = Load(url, render(url, [b"{}"]), connections=4)
        outcome = load.open_loop(200, 0.4, seed=5)
        load.close()
    assert len(list(arrivals(200, 0.4, seed=5))) == outcome.requests
    assert 0 == outcome.errors
    assert all(latency > 0 for latency in outcome.latencies)
