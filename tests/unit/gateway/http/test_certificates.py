"""Clients identified by certificates, and renewed certificates: over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from gateway.grpc.server import credentials
from gateway.http.certificates import tls_context
from tests.unit.gateway.grpc.test_server import Caller as Client
from tests.unit.gateway.grpc.test_server import make_server, texts
from tests.unit.gateway.http.serving import Serve, Wire, made_key, post, serving, write_keys


class Authority:
    """An authority, a server's certificate in files, and clients' certificates."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self.files = [str(folder / name) for name in ("chain.pem", "key.pem", "authority.pem")]
        server = self._authority.issue_cert("gateway", "localhost")
        blobs = server.cert_chain_pems[0], server.private_key_pem, self._authority.cert_pem
        for name, blob in zip(self.files, blobs, strict=True):
            blob.write_to_path(name)
            os.utime(name, (time.time() + 5, time.time() + 5))
        self.trusting = ssl.create_default_context(cadata=self._authority.cert_pem.bytes().decode())

    def client(self, *names: str, common: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self._authority.cert_pem.bytes().decode())
        self._authority.issue_cert(*names, common_name=common).configure_cert(context)
        return context

    async def rpc(self, port: int, name: str = "") -> str:
        """Call by gRPC with the certificate of this name, or without any; return the code of the answer."""
        shown: tuple[Any, ...] = (None, None)
        if name:
            issued = self._authority.issue_cert(name, common_name="x")
            shown = issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes()
        mine = grpc.ssl_channel_credentials(self._authority.cert_pem.bytes(), *shown)
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(f"localhost:{port}", mine, options) as channel:
            try:
                await Client(channel).infer(texts("e", "good"))
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)
        return "OK"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """See the class."""
    return Authority(tmp_path)


async def status(wire: Wire, *headers: str, path: str = "/serve/e") -> tuple[int, str]:
    """Return the status of one inference, and the reason of its refusal."""
    found, lines, _ = await wire.ask(post(path=path) if not headers else post(b'{"text": "good"}', path, *headers))
    return found, lines.get("x-refused-because", "")


async def test_equal_requests_of_different_clients_are_not_confused(
    authority: Authority, make_stack: Callable[..., Any], tmp_path: Path
) -> None:
    """The same bytes on two connections. A key takes precedence over a certificate."""
    text, key = made_key("keyed", endpoints=("other",))
    keys = write_keys(
        tmp_path, key,
        certificates=[
            {"name": "search-*", "tenant": "search", "endpoints": ["e"]},
            {"name": "spiffe://cluster/*", "tenant": "mesh", "endpoints": ["other"]},
        ],
    )  # fmt: skip
    stack = make_stack(keys_file=str(keys), tls_client_authority="set")
    async with stack.gateway.running(), serving(stack, tls_context(*authority.files)) as port:
        stack.deploy("e")
        stack.deploy("other")
        await stack.served("e", "other")
        search, mesh, nobody = [
            await port.connect(authority.client("x.example", common=common))
            for common in ("search-team", "spiffe://cluster/a", "stranger")
        ]
        for _ in range(3):
            assert (200, "") == await status(search)
            assert (403, "endpoint_not_permitted") == await status(mesh)
            assert (401, "unknown_certificate") == await status(nobody)
            assert (200, "") == await status(mesh, path="/serve/other")
        assert (403, "endpoint_not_permitted") == await status(search, f"x-api-key: {text}")
        assert (401, "unknown_key") == await status(search, "x-api-key: tgk_a_b")
        # Revoked while it is in use.
        write_keys(tmp_path, certificates=[{"name": "search-*", "tenant": "search"}], ended=["search-team"])
        await stack.gateway._callers.look()
        assert (401, "revoked") == await status(search)


async def test_without_a_list_every_certificate_of_the_authority_is_accepted(
    authority: Authority, make_stack: Callable[..., Any]
) -> None:
    """The authority decides who gets one, as before there were keys. Without one the handshake fails."""
    stack = make_stack(tls_client_authority="set")
    async with stack.gateway.running(), serving(stack, tls_context(*authority.files)) as port:
        stack.deploy("e")
        await stack.served("e")
        wire = await port.connect(authority.client("x.example", common="anybody"))
        assert (200, "") == await status(wire)
        assert 200 == (await wire.ask(b"GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n"))[0]
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await status(await port.connect(authority.trusting))


async def test_grpc_knows_clients_by_the_same_names_and_uses_renewed_certificates(
    authority: Authority, make_stack: Callable[..., Any], tmp_path: Path
) -> None:
    """By common name and alternative names. New connections use replaced files, the authority of clients included."""
    keys = write_keys(tmp_path, certificates=[{"name": "svc.example", "tenant": "search", "endpoints": ["e"]}])
    stack = make_stack(keys_file=str(keys), tls_client_authority="set")
    async with stack.gateway.running():
        stack.deploy("e")
        await stack.served("e")
        server = make_server(stack)
        port = await server.start("127.0.0.1", 0, credentials(*authority.files))
        found = [await authority.rpc(port, name) for name in ("svc.example", "other.example", "")]
        assert ["OK", "UNAUTHENTICATED", "UNAVAILABLE"] == found
        assert "OK" == await Authority(tmp_path).rpc(port, "svc.example")
        await server.stop(0)


async def test_a_renewed_certificate_is_shown_to_new_connections(
    authority: Authority, serve: Serve, tmp_path: Path
) -> None:
    """One that does not match its key changes nothing."""
    key = tmp_path / "key.pem"
    async with serve(tls=tls_context(*authority.files[:2])) as port:
        first = await port.connect(authority.trusting)
        assert (200, "") == await status(first)
        before = key.read_bytes()
        renewed = Authority(tmp_path)
        after = key.read_bytes()
        key.write_bytes(before)
        assert (200, "") == await status(await port.connect(authority.trusting))
        key.write_bytes(after)
        assert (200, "") == await status(await port.connect(renewed.trusting))
        assert (200, "") == await status(first)
        with pytest.raises(ssl.SSLCertVerificationError):
            await port.connect(authority.trusting)
