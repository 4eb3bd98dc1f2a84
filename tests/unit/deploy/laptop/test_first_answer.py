"""The wait for an endpoint and its first answer, with the reasons why it is not served yet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from deploy.laptop.first_answer import answer, why_not_served
from deploy.tools.errors import DeployError


class Gateway(ThreadingHTTPServer):
    """Answers each POST with the next status of ``statuses``, and records the paths."""

    statuses: list[int]
    paths: list[str]


class Handler(BaseHTTPRequestHandler):
    """The one route."""

    server: Gateway

    def do_POST(self) -> None:
        """The next status, with an error's body."""
        self.server.paths.append(self.path)
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.server.statuses.pop(0))
        self.end_headers()
        self.wfile.write(b'{"error": "text is missing", "hint": "send a text"}')

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    """A server in a thread."""
    server = Gateway(("127.0.0.1", 0), Handler)
    server.paths = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(5)


async def test_the_first_request_is_repeated_until_it_is_answered(gateway: Gateway) -> None:
    """A version that another worker does not have yet answers 503; names are escaped as every client escapes them."""
    gateway.statuses = [503, 200]
    shown: list[str] = []
    found = await answer(f"http://127.0.0.1:{gateway.server_address[1]}", "Größe/1", {"text": "x"}, live=shown.append)
    assert 200 == found.status
    assert ["waiting for Größe/1: text is missing"] == shown
    assert ["/serve/Gr%C3%B6%C3%9Fe/1"] * 2 == gateway.paths


async def test_a_refusal_that_will_not_change_is_reported_at_once(gateway: Gateway) -> None:
    """The message contains the gateway's own reason."""
    gateway.statuses = [422]
    with pytest.raises(DeployError, match="refused its example request: text is missing") as refused:
        await answer(f"http://127.0.0.1:{gateway.server_address[1]}", "e/1", {"text": "x"}, live=lambda _: None)
    assert "send a text" == refused.value.hint


def test_what_is_in_the_way_is_told_by_the_part_nearest_to_it() -> None:
    """A model that fails to load is a better reason than the gateway's waiting for it."""
    waiting = {"pending": [{"url": "e/1", "state": "building", "reason": "not loaded"}]}
    failed = {"models": [{"endpoint": "e/1", "state": "failed", "reason": "bad graph"}]}
    assert why_not_served("e/1", waiting, failed) == "its Triton model is failed: bad graph"
    assert why_not_served("e/1", waiting, None) == "building: not loaded"
    assert why_not_served("e/2", waiting, failed) == "the gateway has not seen it yet"
    assert why_not_served("e/1", {}, failed) == "the gateway does not answer"
