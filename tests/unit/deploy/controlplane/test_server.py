"""Rules of the server process: port, lock, endpoint file, stop."""

# ruff: noqa: D103 - a test's name states its rule

import asyncio
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from deploy.controlplane import ControlPlaneSettings, read_endpoint, run
from deploy.controlplane.server import ENDPOINT_FILE
from deploy.tools.errors import DeployError
from tests.waiting import LIMIT_S, soon

ROOT = Path(__file__).parents[4]
PROGRAM = (
    "import sys, pathlib; from deploy.controlplane import ControlPlaneSettings, run;"
    "sys.exit(run(ControlPlaneSettings(state_dir=pathlib.Path(sys.argv[1]), port=int(sys.argv[2]))))"
)


@contextmanager
def process(state_dir: Path, command: Sequence[str] = ()) -> Iterator["subprocess.Popen[str]"]:
    command = command or [sys.executable, "-c", PROGRAM, str(state_dir), "0"]
    started = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
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
async def test_signal_stops_cleanly_with_exit_code_0(tmp_path: Path, number: signal.Signals) -> None:
    with process(tmp_path) as server:
        url = await ready(tmp_path)
        assert health(url) == 200
        server.send_signal(number)
        assert await asyncio.to_thread(server.wait, LIMIT_S) == 0
    assert not (tmp_path / ENDPOINT_FILE).exists()
    assert not (tmp_path / "registry.sqlite3-wal").exists()


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


@pytest.mark.parametrize("path", ["events.add_batch", "files/"])
async def test_refused_caller_with_a_large_body_reads_its_refusal(tmp_path: Path, path: str) -> None:
    """A connection that is closed in the middle of a body looks like a broken network, and clients would try again."""
    with process(tmp_path):
        url = await ready(tmp_path)
        async with httpx.AsyncClient(timeout=LIMIT_S) as client:
            answer = await client.post(f"{url}/{path}", content=b"x" * (16 << 20))
    assert (answer.status_code, "missing credentials" in answer.text) == (401, True)


async def test_second_server_on_the_same_state_is_refused(tmp_path: Path) -> None:
    with process(tmp_path):
        url = await ready(tmp_path)
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
async def test_a_control_plane_on_loopback_answers_only_to_local_names_and_its_own(
    tmp_path: Path, host: str, public_url: str | None, answered: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    # a web page may have its own name resolve to this machine, and would read what a developer has registered
    more = ["--host", host, "--port", "0", *(["--public-url", public_url] if public_url else [])]
    command = [sys.executable, "-m", "deploy.cli.main", "controlplane", "--state-dir", str(tmp_path), *more]
    with process(tmp_path, command) as server:
        await ready(tmp_path)
        (port,) = {
            one.laddr.port for one in psutil.Process(server.pid).net_connections("tcp") if one.status == "LISTEN"
        }
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S) as client:
            for name, is_answered in [(name, True) for name in answered] + [(name, False) for name in refused]:
                for path in ("/healthz", "/", "/auth.login", "/files/x"):
                    reply = await client.get(path, headers={"host": name})
                    assert (reply.status_code != 403) == is_answered, (name, path, reply.text)
                    assert is_answered or "only to local names" in reply.text


@pytest.mark.parametrize("file", ["credentials.json", "registry.sqlite3"])
def test_a_damaged_file_is_named(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_bytes(b"not a database" * 100)
    with pytest.raises(DeployError, match=str(tmp_path)):
        run(ControlPlaneSettings(state_dir=tmp_path, port=0))
