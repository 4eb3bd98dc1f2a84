"""Bodies: who calls is known before one is read; size and time are bounded; health answers meanwhile."""

# ruff: noqa: D103 - a test's name states its rule

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette

from deploy.controlplane.app import build
from deploy.controlplane.bodies import Limits
from deploy.controlplane.credentials import Credentials
from deploy.controlplane.server import bind, url_of
from deploy.controlplane.store import Store
from tests.waiting import LIMIT_S

LIMITS = Limits(size=1 << 20, idle_s=LIMIT_S, discard_s=LIMIT_S)
IMPATIENT = replace(LIMITS, idle_s=0.2, discard_s=0.2)
"""For bodies of which nothing more will come."""


class Running:
    """The application behind a real socket."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        self.url = url
        self.keys = (credentials.access_key, credentials.secret_key)
        self.host, self.port = url.removeprefix("http://").split(":")

    async def healthy(self) -> bool:
        async with httpx.AsyncClient() as client:
            return (await client.get(f"{self.url}/healthz", timeout=LIMIT_S)).status_code == 200

    async def raw(self, head: str, body: bytes = b"", *, auth: bool = False) -> tuple[int, bytes]:
        """Send a head and as much of a body as given, wait for the answer: (status, content)."""
        reader, writer = await asyncio.open_connection(self.host, int(self.port))
        keys = httpx.BasicAuth(*self.keys)._auth_header
        writer.write((f"{head}\r\nHost: x\r\n" + (f"Authorization: {keys}\r\n" if auth else "") + "\r\n").encode())
        writer.write(body)
        async with asyncio.timeout(LIMIT_S):
            answer = await reader.read()
        writer.close()
        first, _, content = answer.partition(b"\r\n\r\n")
        return int(first.split(b" ")[1]), content


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, lifespan="off", headers=[("connection", "close")], access_log=False)
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    yield url_of(listener)
    server.should_exit = True
    await task
    listener.close()


@pytest.fixture
def limits() -> Limits:
    """What the server of a test allows."""
    return LIMITS


@pytest.fixture
async def running(tmp_path: Path, limits: Limits) -> AsyncIterator[Running]:
    credentials = Credentials.generate()
    store = Store(tmp_path / "db")
    async with serving(build(state_dir=tmp_path, store=store, credentials=credentials, limits=limits)) as url:
        yield Running(url, credentials)
    store.close()


@pytest.mark.parametrize("limits", [IMPATIENT], ids=["impatient"])
@pytest.mark.parametrize("path", ["/tasks.get_all", "/files/", "/auth.login"])
async def test_unknown_caller_is_refused_before_the_body_has_come(running: Running, path: str) -> None:
    """Announced are 1,000 bytes, one is sent: the answer does not wait for the others."""
    status, _ = await running.raw(f"POST {path} HTTP/1.1\r\nContent-Length: 1000", b"{")
    assert status == 401


async def test_refused_caller_with_a_large_body_reads_its_refusal(running: Running) -> None:
    """A connection closed in the middle of a body would look like a broken network, and clients would try again."""
    body = b"x" * (LIMITS.size - 1)
    status, content = await running.raw(f"POST /events.add_batch HTTP/1.1\r\nContent-Length: {len(body)}", body)
    assert (status, json.loads(content)["meta"]["result_subcode"]) == (401, 20)


async def test_announced_size_is_refused_before_the_body_has_come(running: Running) -> None:
    head = f"POST /tasks.get_all HTTP/1.1\r\nContent-Length: {LIMITS.size + 1}\r\nExpect: 100-continue"
    status, content = await running.raw(head, auth=True)
    assert status == 413
    assert json.loads(content)["meta"]["result_code"] == 413


async def test_size_that_is_not_announced_is_refused_while_it_comes(running: Running) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    head = "POST /tasks.get_all HTTP/1.1\r\nTransfer-Encoding: chunked"
    status, _ = await running.raw(head, chunk * 17 + b"0\r\n\r\n", auth=True)
    assert status == 413


@pytest.mark.parametrize("limits", [IMPATIENT], ids=["impatient"])
@pytest.mark.parametrize(
    "head",
    [
        "POST /tasks.get_all HTTP/1.1\r\nContent-Length: 100",
        "POST /files/ HTTP/1.1\r\nContent-Length: 100\r\nContent-Type: multipart/form-data; boundary=x",
    ],
)
async def test_body_that_stops_coming_is_refused(running: Running, head: str) -> None:
    status, _ = await running.raw(head, b"--x", auth=True)
    assert status == 408


@pytest.mark.parametrize("limits", [IMPATIENT], ids=["impatient"])
async def test_unknown_call_is_refused_before_its_body_has_come(running: Running) -> None:
    status, _ = await running.raw("POST /no.such HTTP/1.1\r\nContent-Length: 1000", b"{", auth=True)
    assert status == 404


@pytest.mark.parametrize("pattern", ["^(a+)+$", "(a|aa)+$", "(.*)*(.*)*(.*)*x$", "(a|b)*a(a|b){500}c"])
async def test_pattern_that_would_take_minutes_keeps_nobody_waiting(running: Running, pattern: str) -> None:
    async with httpx.AsyncClient(base_url=running.url, auth=running.keys, timeout=LIMIT_S) as client:
        for number in range(20):
            body: dict[str, Any] = {"name": "a" * 5000 + f"b{number}", "type": "training"}
            assert (await client.post("/tasks.create", json=body)).status_code == 200
        asked = asyncio.create_task(client.post("/tasks.get_all", json={"name": pattern}))
        assert await running.healthy()
        answer = await asked
        assert answer.status_code == 200
        assert answer.json()["data"]["tasks"] == []


@pytest.mark.parametrize(
    "pattern", ["(?=a)b", r"(a)\1", "[", "*", "(" * 5000, "(x{1000}){1000}", "((((a{100}){100}){100}){100}){100}"]
)
async def test_pattern_that_cannot_be_searched_in_bounded_time_is_refused_and_says_why(
    running: Running, pattern: str
) -> None:
    async with httpx.AsyncClient(base_url=running.url, auth=running.keys, timeout=LIMIT_S) as client:
        meta = (await client.post("/models.get_all", json={"name": pattern})).json()["meta"]
        assert (meta["result_code"], meta["result_subcode"]) == (400, 21)
        assert meta["result_msg"].startswith("Malformed regular expression: ")
        assert len(meta["result_msg"]) > 40
