"""Checks of ports before servers are started."""

from __future__ import annotations

import socket

import pytest

from deploy.tools import ports
from deploy.tools.errors import DeployError


def test_a_taken_port_names_the_option_that_changes_it() -> None:
    """The person can then end that program or choose another port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(DeployError, match=f"port {port} for the gateway is taken") as caught:
            ports.require_free("127.0.0.1", port, what="gateway", option="--port")
        assert "--port" in caught.value.hint


def test_the_port_of_last_time_is_taken_again_unless_it_is_taken() -> None:
    """Known addresses stay valid, and two parts never get the same port."""
    used: set[int] = set()
    first = ports.choose("127.0.0.1", 0, remembered=0, avoid=used)
    assert first < 32_768, "a kernel may give this one to a connection before the server is there"
    assert ports.choose("127.0.0.1", 0, remembered=first, avoid=set()) == first
    assert ports.choose("127.0.0.1", 0, remembered=first, avoid=used) != first
    with socket.create_server(("127.0.0.1", first)):
        assert ports.choose("127.0.0.1", 0, remembered=first, avoid=set()) != first


def test_an_address_of_another_machine_is_refused() -> None:
    """It is not reported as a taken port."""
    with pytest.raises(DeployError, match="not an address of this machine"):
        ports.is_free("192.0.2.1", 8080)
