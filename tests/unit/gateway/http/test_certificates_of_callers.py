"""Clients identified by certificates: over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from tritonclient.grpc import service_pb2 as pb

from gateway.grpc.server import Tls
from gateway.http.certificates import tls_context
from tests.unit.gateway.grpc.test_server import Caller as Client
from tests.unit.gateway.grpc.test_server import make_server, texts
from tests.unit.gateway.http.serving import Wire, made_key, post, serving, write_keys


class Authority:
    """An authority, a server's and clients' certificates, as files and contexts."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self.folder = folder
        server = self._authority.issue_cert("gateway", "127.0.0.1")
        server.private_key_pem.write_to_path(folder / "key.pem")
        for number, blob in enumerate(server.cert_chain_pems):
            blob.write_to_path(folder / "chain.pem", append=number > 0)
        self._authority.cert_pem.write_to_path(folder / "authority.pem")

    def client(self, *names: str, common: str) -> tuple[ssl.SSLContext, Any]:
        issued = self._authority.issue_cert(*names, common_name=common)
        context = ssl.create_default_context(cafile=str(self.folder / "authority.pem"))
        issued.configure_cert(context)
        credentials = grpc.ssl_channel_credentials(
            (self.folder / "authority.pem").read_bytes(), issued.private_key_pem.bytes(),
            b"".join(blob.bytes() for blob in issued.cert_chain_pems),
        )  # fmt: skip
        return context, credentials

    @property
    def context(self) -> ssl.SSLContext:
        return tls_context(*(str(self.folder / name) for name in ("chain.pem", "key.pem", "authority.pem")))


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
    async with stack.gateway.running(), serving(stack, authority.context) as port:
        stack.deploy("e")
        stack.deploy("other")
        await stack.served("e", "other")
        search, mesh, nobody = [
            await port.connect(authority.client("x.example", common=common)[0])
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
    async with stack.gateway.running(), serving(stack, authority.context) as port:
        stack.deploy("e")
        await stack.served("e")
        wire = await port.connect(authority.client("x.example", common="anybody")[0])
        assert (200, "") == await status(wire)
        assert 200 == (await wire.ask(b"GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n"))[0]
        stranger = ssl.create_default_context(cafile=str(authority.folder / "authority.pem"))
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await status(await port.connect(stranger))


async def test_grpc_knows_clients_by_the_same_names(
    authority: Authority, make_stack: Callable[..., Any], tmp_path: Path
) -> None:
    """By common name and alternative names."""
    keys = write_keys(tmp_path, certificates=[{"name": "svc.example", "tenant": "search", "endpoints": ["e"]}])
    stack = make_stack(keys_file=str(keys), tls_client_authority="set")
    async with stack.gateway.running():
        stack.deploy("e")
        await stack.served("e")
        server = make_server(stack)
        folder = authority.folder
        tls = Tls(*(str(folder / name) for name in ("chain.pem", "key.pem", "authority.pem")))
        port = await server.start("127.0.0.1", 0, tls)
        found = []
        for names in (("svc.example",), ("other.example",)):
            credentials = authority.client(*names, common="x")[1]
            async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
                try:
                    await Client(channel).call("ModelInfer", texts("e", "good"), pb.ModelInferResponse)
                    found.append("OK")
                except grpc.aio.AioRpcError as error:
                    found.append(error.code().name)
        await server.stop(0)
    assert ["OK", "UNAUTHENTICATED"] == found
    assert json.loads(keys.read_text())["certificates"]
