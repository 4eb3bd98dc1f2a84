"""A separate port for operators."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.callers.keys import Key, digest, new_key
from gateway.http.server import Listening
from tests.unit.gateway.callers.test_keys import PEPPER, written_file
from tests.unit.gateway.http.serving import Wire, post
from tests.waiting import LIMIT_S

TOLD_OF_ALL = (
    "/metrics",
    "/v1/status",
    "/",
    "/docs",
    "/openapi.json",
    "/v1/endpoints/e/lineage",
    "/v1/endpoints/e/learned",
    "/v1/endpoints/e/history",
)


@asynccontextmanager
async def two_ports(make_stack: Callable[..., Any], **settings: Any) -> AsyncIterator[tuple[Wire, Wire]]:
    """A gateway on two ports, with the endpoint `e`: a connection to each."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [one.getsockname()[1] for one in sockets]
    stack = make_stack(admin=str(ports[1]), **settings)
    async with stack.gateway.running():
        stack.deploy("e")
        await stack.served("e")
        server = Listening(stack.gateway)
        await server.start(sockets)
        wires = [Wire(*await asyncio.open_connection("127.0.0.1", port)) for port in ports]
        try:
            yield wires[0], wires[1]
        finally:
            for wire in wires:
                wire.close()
            await server.stop(sockets, LIMIT_S)


async def get(wire: Wire, path: str, *headers: str) -> int:
    """Return the status of a GET."""
    wire.send("\r\n".join([f"GET {path} HTTP/1.1", "host: x", *headers, "", ""]).encode())
    status, found = await wire.head()
    await wire._reader.readexactly(int(found["content-length"]))
    return status


async def ask(wire: Wire, *headers: str) -> int:
    """Return the status of an inference."""
    wire.send(post(b'{"text": "good"}', "/serve/e", *headers))
    return (await wire.answer())[0]


async def test_each_port_answers_only_its_own_routes(make_stack: Callable[..., Any]) -> None:
    """Health is on both."""
    async with two_ports(make_stack) as (main, admin):
        for path in TOLD_OF_ALL:
            assert [404, 200] == [await get(main, path), await get(admin, path)], path
        for path in ("/v1/models", "/v2/models/e", "/v2"):
            assert [200, 404] == [await get(main, path), await get(admin, path)], path
        assert [200, 200] == [await get(main, "/readyz"), await get(admin, "/readyz")]
        for _ in range(2):
            assert [200, 404] == [await ask(main), await ask(admin)]


async def test_only_the_callers_port_needs_a_key(make_stack: Callable[..., Any], tmp_path: Path) -> None:
    """No key allows inference at the operators' port."""
    text, name = new_key()
    tmp_path.joinpath("keys.json.pepper").write_bytes(PEPPER)
    tmp_path.joinpath("keys.json").write_bytes(written_file(Key(name, digest(PEPPER, text.encode()).hex(), "acme")))
    async with two_ports(make_stack, keys_file=str(tmp_path / "keys.json")) as (main, admin):
        assert [404, 200] == [await get(wire, "/metrics", f"x-api-key: {text}") for wire in (main, admin)]
        assert [401, 200] == [await get(main, "/v1/models"), await get(admin, "/v1/status")]
        assert [401, 200, 404] == [
            await ask(main), await ask(main, f"x-api-key: {text}"), await ask(admin, f"x-api-key: {text}"),
        ]  # fmt: skip
    assert json.loads((tmp_path / "keys.json").read_text())
