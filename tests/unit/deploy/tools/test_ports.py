"""Ports before anything is started on them."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from deploy.tools import ports
from deploy.tools.errors import PortTaken


def test_a_taken_port_names_the_process_that_holds_it_and_the_option_that_changes_it() -> None:
    """What a person does next is end that program or choose another port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortTaken) as caught:
            ports.require_free("127.0.0.1", port, what="gateway", option="--port")
        assert f"(pid {os.getpid()})" in caught.value.message
        assert "--port" in caught.value.hint
    assert ports.held_by(port) == ""


def test_the_port_of_last_time_is_taken_again_unless_it_is_taken() -> None:
    """Addresses that people wrote down stay; two parts never get one port."""
    used: set[int] = set()
    first = ports.choose("127.0.0.1", 0, remembered=0, avoid=used)
    assert ports.choose("127.0.0.1", 0, remembered=first, avoid=set()) == first
    assert ports.choose("127.0.0.1", 0, remembered=first, avoid=used) != first
    with socket.create_server(("127.0.0.1", first)):
        assert ports.choose("127.0.0.1", 0, remembered=first, avoid=set()) != first


def test_a_taken_port_is_told_without_psutil_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image of the control plane has no psutil: it does not know who holds the port, and that is all."""
    monkeypatch.setitem(sys.modules, "psutil", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {port} for the control plane is taken$"):
            ports.require_free("127.0.0.1", port, what="control plane", option="--port")
