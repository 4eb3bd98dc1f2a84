"""Small HTTP calls of our own."""

from __future__ import annotations

import socket

from deploy.tools import http_client
from tests.sites import nobody


def test_server_that_does_not_listen_is_noticed_at_once() -> None:
    """The stock tools would silently retry for minutes. Behind a proxy, this check is not possible."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert http_client.listens(address, {})
    with nobody() as port:
        assert not http_client.listens(f"http://127.0.0.1:{port}", {})
        assert http_client.listens(f"http://127.0.0.1:{port}", {"http_proxy": "http://proxy:3128"})
    assert not http_client.listens("http://:x", {})
