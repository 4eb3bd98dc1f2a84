"""Rules of the server process: port, lock, endpoint file, stop."""

# ruff: noqa: D103 - a test's name states its rule

import asyncio
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from clearml.utilities.pyhocon import ConfigFactory
from starlette.testclient import TestClient

from deploy.controlplane import ControlPlaneSettings, read_endpoint, run
from deploy.controlplane.app import build
from deploy.controlplane.credentials import Credentials
from deploy.controlplane.server import ENDPOINT_FILE, _local_names
from deploy.controlplane.store import Store
from deploy.tools.errors import DeployError
from tests.waiting import LIMIT_S, soon

ROOT = Path(__file__).parents[4]


@contextmanager
def process(state_dir: Path, **environ: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "deploy.cli.main", "controlplane", "--port", "0", "--state-dir", str(state_dir)]
    given = {f"TRITON_GATEWAY_CONTROLPLANE_{name}": value for name, value in environ.items()}
    started = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **given}, stderr=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate(timeout=LIMIT_S)


async def ready(state_dir: Path) -> str:
    return str((await soon(lambda: read_endpoint(state_dir)))["api"])


def health(url: str) -> int:
    with urllib.request.urlopen(f"{url}/healthz", timeout=LIMIT_S) as answer:
        return int(answer.status)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_keys_come_from_the_environment_clients_get_a_config_and_a_signal_stops_it_cleanly(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Its clients' file says its real address; only its user can read it."""
    state, config, keys = tmp_path / "state", tmp_path / "clients" / "clearml.conf", ("A" * 20, "s" * 40)
    with process(state, ACCESS_KEY=keys[0], SECRET_KEY=keys[1], CLIENT_CONFIG=str(config)) as server:
        url = await ready(state)
        await soon(config.exists)
        api = ConfigFactory.parse_file(str(config))["api"]
        assert (url, *keys) == (
            api["api_server"],
            *(api["credentials"][f"{name}_key"] for name in ("access", "secret")),
        )
        assert 0o600 == config.stat().st_mode & 0o777
        assert health(url) == 200
        server.send_signal(number)
        _, said = await asyncio.to_thread(server.communicate, timeout=LIMIT_S)
        assert (server.returncode, keys[1] in said) == (0, False)
    assert not (state / ENDPOINT_FILE).exists()
    assert not (state / "registry.sqlite3-wal").exists()


async def test_processes_that_fork_from_one_client_each_get_their_own_answers(tmp_path: Path) -> None:
    """The SDK forks its reporter with its session of before; a connection that both had would mix up the answers."""
    program = """
import os, sys, requests
session = requests.Session()
def ask(path):
    return session.post(f"{sys.argv[1]}/{path}", timeout=300).json()["meta"]["endpoint"]["name"]
ask("before.it")
child = os.fork()
who = "parent" if child else "child"
good = all(ask(f"{who}.ask{i}") == f"{who}.ask{i}" for i in range(100))
if not child:
    os._exit(0 if good else 1)
sys.exit(0 if good and os.waitpid(child, 0)[1] == 0 else 1)
"""
    with process(tmp_path):
        url = await ready(tmp_path)
        asked = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program, url], check=False)
    assert asked.returncode == 0


async def test_refused_caller_with_a_large_body_reads_its_refusal_and_a_second_server_is_refused(
    tmp_path: Path,
) -> None:
    """A connection that is closed in the middle of a body looks like a broken network, and clients would try again."""
    with process(tmp_path):
        url = await ready(tmp_path)
        async with httpx.AsyncClient(timeout=LIMIT_S) as client:
            for path in ("events.add_batch", "files/"):
                answer = await client.post(f"{url}/{path}", content=b"x" * (16 << 20))
                assert (answer.status_code, "missing credentials" in answer.text) == (401, True)
        with pytest.raises(DeployError, match=url):
            await asyncio.to_thread(run, ControlPlaneSettings(state_dir=tmp_path, port=0))
        assert await asyncio.to_thread(health, url) == 200


@pytest.mark.parametrize(
    ("host", "public_url", "answered", "refused"),
    [
        ("127.0.0.1", None, ("localhost:1", "127.0.0.1"), ("evil.example", "registry.example:80")),
        ("127.0.0.1", "https://Registry.example/api", ("localhost", "registry.example"), ("evil.example",)),
        ("0.0.0.0", None, ("localhost", "evil.example"), ()),
    ],
)
def test_a_control_plane_on_loopback_answers_only_to_local_names_and_its_own(
    tmp_path: Path, host: str, public_url: str | None, answered: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    # a web page may have its own name resolve to this machine, and would read what a developer has registered
    settings = ControlPlaneSettings(state_dir=tmp_path, host=host, public_url=public_url)
    client = build(state_dir=tmp_path, store=Store(tmp_path / "db"), credentials=Credentials.generate(),
                   local_names=_local_names(settings))  # fmt: skip
    for name in (*answered, *refused):
        for path in ("/healthz", "/", "/auth.login", "/files/x"):
            reply = TestClient(client).get(path, headers={"host": name})
            assert (reply.status_code == 403) == (name in refused), (name, path, reply.text)


@pytest.mark.parametrize("file", ["credentials.json", "registry.sqlite3"])
def test_a_damaged_file_is_named(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_bytes(b"not a database" * 100)
    with pytest.raises(DeployError, match=str(tmp_path)):
        run(ControlPlaneSettings(state_dir=tmp_path, port=0))
