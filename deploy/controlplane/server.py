"""Runs the control plane: one process, one port, one state directory.

The commands `controlplane` and `up` call it. It owns what belongs to the process: the lock on the state directory,
signals, and `endpoint.json`, which tells others where the server listens. It never prints secrets.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sqlite3
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn

from deploy.controlplane.app import build
from deploy.controlplane.credentials import Credentials, client_config
from deploy.controlplane.store import Store
from deploy.tools.errors import DeployError
from deploy.tools.http_client import reachable_host
from gateway import durable, locks
from gateway.local_names import is_loopback

ENDPOINT_FILE = "endpoint.json"
DATABASE_FILE = "registry.sqlite3"
LOCK_FILE = "lock"
STOP_TIMEOUT_S = 5

_log = logging.getLogger("controlplane")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneSettings:
    """Where to keep the state and where to listen. Port 0 takes a free one, which `endpoint.json` names."""

    state_dir: Path
    host: str = "127.0.0.1"
    port: int = 8008
    # the address for clients if it differs from host:port (a service name, a proxy)
    public_url: str | None = None
    # a clearml.conf for clients that share a folder with the server, written once it answers requests
    client_config: Path | None = None
    # keys that were chosen elsewhere; empty: the generated ones
    access_key: str = ""
    secret_key: str = field(default="", repr=False)


def run(settings: ControlPlaneSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises `DeployError` if the state directory cannot be used."""
    try:
        _serve(settings)
    except (OSError, sqlite3.DatabaseError) as error:
        raise DeployError(f"the control plane cannot use {settings.state_dir}: {error}") from error


def _serve(settings: ControlPlaneSettings) -> None:
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_locked(settings.state_dir))
        keys = {"access_key": settings.access_key, "secret_key": settings.secret_key}
        credentials = Credentials.load_or_create(settings.state_dir, **keys)
        store = Store(settings.state_dir / DATABASE_FILE)
        stack.callback(store.close)
        tempfile.tempdir = str(settings.state_dir)  # starlette keeps uploads there, and /tmp may be memory
        app = build(
            state_dir=settings.state_dir, store=store, credentials=credentials, local_names=_local_names(settings)
        )
        endpoint = settings.state_dir / ENDPOINT_FILE
        stack.callback(endpoint.unlink, missing_ok=True)

        def announce(listener: socket.socket) -> None:
            host, bound = listener.getsockname()[:2]
            base_url = settings.public_url or f"http://{reachable_host(host)}:{bound}"
            write_endpoint(endpoint, base_url)
            if settings.client_config is not None:
                durable.replace(settings.client_config, client_config(credentials, base_url))
            _log.info("control plane ready at %s", base_url)

        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            lifespan="off",
            # The SDK forks a reporting process (clearml/utilities/process/mp.py), and both processes go on with the
            # same session. On a kept connection, each would read the other's answers. ClearML's own server keeps no
            # connections either.
            headers=[("connection", "close")],
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
            server_header=False,
        )
        _Server(config, announce).run()


def _local_names(settings: ControlPlaneSettings) -> Collection[str] | None:
    """Return the names that a control plane on loopback answers to beside those of loopback; None: to every name."""
    if not is_loopback(settings.host):
        return None
    public = urlsplit(settings.public_url or "").hostname
    return [settings.host.lower(), *([public] if public else [])]


def write_endpoint(path: Path, base_url: str) -> None:
    """Write where the server listens, atomically: a reader sees all of it or nothing."""
    base = base_url.rstrip("/")
    text = json.dumps({"api": base, "web": base, "files": f"{base}/files", "pid": os.getpid()}, indent=1)
    durable.replace(path, text + "\n", mode=0o644)


def read_endpoint(state_dir: Path) -> dict[str, str] | None:
    """Read what a running control plane has written; None if there is none. Keys: api, web, files (URLs) and pid."""
    try:
        values = json.loads((state_dir / ENDPOINT_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return {key: str(value) for key, value in values.items()}


class _Server(uvicorn.Server):
    """uvicorn that says when it listens, and ends with exit code 0 after SIGTERM and SIGINT."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[socket.socket], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, setattr, self, "should_exit", True)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_started(self.servers[0].sockets[0])


@contextlib.contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    """Hold the lock of the state directory: two servers would each believe to be the only writer. Ends with the
    process.
    """
    with (state_dir / LOCK_FILE).open("a") as file:
        try:
            locks.lock(file, waits=False)
        except BlockingIOError as exc:
            running = read_endpoint(state_dir)
            where = f" at {running['api']} (pid {running['pid']})" if running else ""
            raise DeployError(
                f"{state_dir} is served by another control plane{where}",
                hint="stop that one or choose another --state-dir",
            ) from exc
        yield
