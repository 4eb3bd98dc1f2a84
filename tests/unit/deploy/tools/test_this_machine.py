"""What the tools see and change of this machine: ports, servers, the proxy's exceptions, logs of processes, folders."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from deploy.tools import http_client, ports, process_logs
from deploy.tools.errors import DeployError
from deploy.tools.folders import aside
from deploy.tools.proxies import except_loopback
from tests.sites import nobody


def test_a_taken_port_names_the_option_that_changes_it() -> None:
    """The person can then end that program or choose another port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(DeployError, match=f"port {port} for the gateway is taken") as caught:
            ports.require_free("127.0.0.1", port, what="gateway", option="--port")
        assert "--port" in caught.value.hint
    with pytest.raises(DeployError, match="not an address of this machine"):
        ports.is_free("192.0.2.1", 8080)


def test_the_port_of_last_time_is_taken_again_unless_it_is_taken() -> None:
    """Known addresses stay valid, and two parts never get the same port."""
    used: set[int] = set()
    first = ports.choose("127.0.0.1", 0, remembered=0, avoid=used)
    assert first < 32_768, "a kernel may give this one to a connection before the server is there"
    assert ports.choose("127.0.0.1", 0, remembered=first, avoid=set()) == first
    assert ports.choose("127.0.0.1", 0, remembered=first, avoid=used) != first
    with socket.create_server(("127.0.0.1", first)):
        assert ports.choose("127.0.0.1", 0, remembered=first, avoid=set()) != first


def test_server_that_does_not_listen_is_noticed_at_once() -> None:
    """The stock tools would silently retry for minutes. Behind a proxy, this check is not possible."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert http_client.listens(address, {})
    with nobody() as port:
        assert not http_client.listens(f"http://127.0.0.1:{port}", {})
        assert http_client.listens(f"http://127.0.0.1:{port}", {"http_proxy": "http://proxy:3128"})
    assert not http_client.listens("http://:x", {})


LOOPBACK = "127.0.0.1,localhost"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, (LOOPBACK, LOOPBACK)),
        ({"NO_PROXY": "inner"}, (f"inner,{LOOPBACK}", f"inner,{LOOPBACK}")),
        ({"no_proxy": "near", "NO_PROXY": "inner"}, (f"near,{LOOPBACK}", f"inner,{LOOPBACK}")),
        ({"NO_PROXY": "*"}, ("*", "*")),
        ({"no_proxy": "localhost"}, ("localhost,127.0.0.1",) * 2),
    ],
)
def test_this_machine_is_excepted_and_other_hosts_stay_so(given: dict[str, str], found: tuple[str, str]) -> None:
    """Whichever of the two names a program reads. A second time changes nothing."""
    environ = dict(given)
    for _ in range(2):
        except_loopback(environ)
        assert found == (environ["no_proxy"], environ["NO_PROXY"])


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("Traceback (most recent call last):\n  File x\nValueError: no such port\n", "ValueError: no such port"),
        ("E0101 10:00:00.1 x.cc] bind\nI0101 10:00:00.2 x.cc] no error\n", "E0101 10:00:00.1 x.cc] bind"),
        ("one\ntwo\n", "two"),
    ],
)
def test_last_error_line_says_why(log: str, line: str) -> None:
    """The last line that looks like an error is shown, otherwise the last line."""
    assert line == process_logs.last_error_line(log)


def test_a_folder_filled_aside_replaces_what_has_its_name(tmp_path: Path) -> None:
    """If filling it fails, the existing folder stays."""
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "old").touch()
    with pytest.raises(ValueError, match="no"), aside(tmp_path, tmp_path / "final"):
        raise ValueError("no")
    assert (tmp_path / "final" / "old").exists()
    with aside(tmp_path, tmp_path / "final") as folder:
        (folder / "new").touch()
    assert ["new"] == [path.name for path in (tmp_path / "final").iterdir()]
    assert ["final"] == [path.name for path in tmp_path.iterdir()]
