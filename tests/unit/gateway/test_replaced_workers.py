"""Workers that start or end beside others: nobody is connected to one that cannot answer."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_gateway import NAMES, FakeGateway
from tests.waiting import LIMIT_S, until

HALF = b"POST /serve/e0 HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 16\r\n\r\n{"
"""A request that is in flight until the rest of its body comes."""
REST = b'"text": "good"}'


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[FakeGateway]:
    """Two workers that serve. They would wait ten minutes for a request that has begun."""
    with FakeGateway(tmp_path, drain_timeout="600s", request_timeout="600s") as made:
        made.served()
        yield made


def test_a_replaced_worker_takes_no_requests_before_it_can_answer_them(gateway: FakeGateway) -> None:
    """The other worker answers them. The log names what the new one waits for."""
    gateway.hold(held=True)
    victim, other = sorted(gateway.workers())
    os.kill(victim, signal.SIGKILL)
    until(lambda: victim not in gateway.workers() and len(gateway.workers()) == 2)
    answers: list[int] = []

    def has_told() -> bool:
        answers.extend(gateway.ask(name) for name in NAMES)
        assert {200} == set(answers)
        return "leaves requests to the other workers, because it still lacks e0, e1" in gateway.logged()

    until(has_told)
    gateway.hold(held=False)
    os.kill(other, signal.SIGSTOP)  # only the new one can answer from now on
    until(lambda: 200 == gateway.ask("c"))
    assert {200} == {gateway.ask(name) for name in NAMES}
    with contextlib.suppress(ProcessLookupError):  # unless it was missed and replaced
        os.kill(other, signal.SIGKILL)


def test_without_another_worker_a_replaced_one_listens_at_once(gateway: FakeGateway) -> None:
    """Nobody else could answer operators. Requests learn that it is not ready."""
    gateway.hold(held=True)
    for pid in gateway.workers():
        os.kill(pid, signal.SIGKILL)
    until(lambda: 503 == gateway.ask("c"))
    assert 200 == gateway.get("/livez")
    assert {503} == {gateway.ask(name) for name in NAMES}
    gateway.hold(held=False)
    gateway.served()


@contextlib.contextmanager
def in_flight(gateway: FakeGateway) -> Iterator[socket.socket]:
    """A request that a worker waits for."""
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.sendall(HALF)
        until(lambda: gateway.in_flight() == 1)
        yield connection


def answered(connection: socket.socket) -> bytes:
    """Send the rest of the request and return the status line."""
    connection.sendall(REST)
    connection.settimeout(LIMIT_S)
    return connection.recv(4096).partition(b"\r\n")[0]


def test_a_gateway_that_stops_refuses_connections_while_it_finishes_requests(gateway: FakeGateway) -> None:
    """A connection that nobody will accept would hang until the last request has ended."""
    with in_flight(gateway) as connection:
        gateway.process.terminate()
        until(lambda: not gateway.is_listening())
        assert b"HTTP/1.1 200 OK" == answered(connection)
    assert 0 == gateway.process.wait(LIMIT_S)


def test_workers_of_a_killed_parent_stop_accepting(tmp_path: Path) -> None:
    """At once, whatever the drain delay: the next gateway needs the port. What they have begun is answered."""
    with FakeGateway(tmp_path, drain_timeout="600s", request_timeout="600s", drain_delay="600s") as gateway:
        gateway.served()
        with in_flight(gateway) as connection:
            gateway.process.kill()
            until(lambda: not gateway.is_listening())
            assert b"HTTP/1.1 200 OK" == answered(connection)
        until(lambda: not gateway.workers())
