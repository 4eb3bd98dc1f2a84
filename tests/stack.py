"""A small complete stack for operation trials: control plane, Tritons with model sync, gateways.

Everything is a real process on loopback, configured with the stock CLI and the serving Task. It does not measure
latency: nothing is bound to cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from deploy.controlplane import Credentials, environment
from deploy.tools.clearml_serving import ClearMLServing, isolated
from tests import processes, tiny
from tests.waiting import LIMIT_S

_CORES = range(os.cpu_count() or 1)
POLL = "500ms"


class Registry:
    """The embedded control plane, running."""

    def __init__(self, state: Path, *, cores: Sequence[int]) -> None:
        self._state = state
        port = _remembered_port(state)
        self._address = f"http://{processes.LOOPBACK}:{port}"
        argv = [sys.executable, "-m", "deploy.cli.main", "controlplane", "--state-dir", str(state / "controlplane")]
        self._server = processes.Server(
            "control plane", [*argv, "--port", str(port)], env=dict(os.environ), cores=cores,
            log=state / "logs" / "controlplane.log",
        )  # fmt: skip
        self._server.wait_for(f"{self._address}/healthz")
        scratch = state / "tmp"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        variables = environment(Credentials.load_or_create(state / "controlplane"), self._address)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CLEARML_", "TRITON_GATEWAY_", "BENCH_"))}
        self.env = isolated(
            {**clean, **variables, "no_proxy": "127.0.0.1,localhost", "TOKENIZERS_PARALLELISM": "false"},
            cache=state / "cache", scratch=scratch, config_file=state / "clearml.conf",
        )  # fmt: skip

    def stop(self) -> None:
        """Stop the server; its data stays."""
        self._server.stop()


def _remembered_port(state: Path) -> int:
    """Return the earlier port, which the addresses of uploaded files contain. Without one, start from nothing."""
    note = state / "controlplane.port"
    with contextlib.suppress(OSError, ValueError):
        port = int(note.read_text())
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((processes.LOOPBACK, port))
        return port
    (state / "registered.json").unlink(missing_ok=True)
    port = processes.free_port()
    note.write_text(f"{port}\n")
    return port


class Small:
    """The stack. ``tritons`` is 0 for endpoints with code only; ``settings`` are further variables of the gateway."""

    def __init__(self, state: Path, *, tritons: int, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self.state = state
        self._settings = settings
        self._open: list[processes.Server | Registry] = []
        state.mkdir(parents=True, exist_ok=True)
        try:
            self.registry = Registry(state, cores=_CORES)
            self._open.append(self.registry)
            # one key for all Tritons, which their model syncs send
            key = {"TRITON_GATEWAY_TRITON_KEY_FILE": str(state / "triton-key")}
            self.env = {**self.registry.env, **key, "PYTHONPATH": str(processes.ROOT)}
            self.cli = ClearMLServing(env=self.env, log=state / "logs" / "clearml-serving.log")
            self.task = asyncio.run(self.cli.create_service("trial"))
            self.env["CLEARML_SERVING_TASK_ID"] = self.task
            flat = processes.free_ports(3 * tritons)
            self._ports = [tuple(flat[at : at + 3]) for at in range(0, len(flat), 3)]
            self.tritons = [self._triton(number) for number in range(tritons)]
            self.syncs = [self._sync(number) for number in range(tritons)]
            self.url, self.gateway = self.start_gateway("gateway")
        except BaseException:
            self.stop()
            raise

    def restart_gateway(self) -> None:
        """Restart the gateway, on its port and with its state folder."""
        self._open.remove(self.gateway)
        self.gateway.stop()
        _, self.gateway = self.start_gateway("gateway", self.url)

    def start_gateway(self, name: str, url: str = "") -> tuple[str, processes.Server]:
        """Start a gateway with a state folder of this name, at a free address or at ``url``; return where and what."""
        url = url or f"http://{processes.LOOPBACK}:{processes.free_port()}"
        addresses = [f"{processes.LOOPBACK}:{ports[0]}" for ports in self._ports]
        env = {
            **self.env, "TRITON_GATEWAY_PORT": url.rpartition(":")[2],
            "TRITON_GATEWAY_WORKERS": "1",
            "TRITON_GATEWAY_STATE_DIR": str(self.state / name), "CLEARML_SERVING_POLL_FREQ": POLL,
            "TRITON_GATEWAY_TRITON_GRPC": f"ipv4:{','.join(addresses)}" if addresses else "127.0.0.1:1",
            **self._settings,
        }  # fmt: skip
        gateway = processes.Server(name, [sys.executable, "-m", "gateway"], env=env, cores=_CORES,
                                 log=self.state / "logs" / f"{name}.log")  # fmt: skip
        self._open.append(gateway)
        gateway.wait_for(f"{url}/livez")
        return url, gateway

    @property
    def triton_urls(self) -> list[str]:
        """Where each Triton tells its metrics."""
        return [f"http://{processes.LOOPBACK}:{ports[2]}" for ports in self._ports]

    def _triton(self, number: int) -> processes.Server:
        grpc, http, metrics = map(str, self._ports[number])
        ports = ["--grpc-port", grpc, "--http-port", http, "--metrics-port", metrics]
        server = self._start("triton", [*self._paths(number), *ports], number)
        server.wait_for(f"http://{processes.LOOPBACK}:{http}/v2")
        return server

    def _sync(self, number: int) -> processes.Server:
        address = f"{processes.LOOPBACK}:{self._ports[number][0]}"
        argv = [*self._paths(number), "--triton-grpc", address, "--engine", "python", "--poll-frequency", POLL]
        return self._start("sync", argv if number else [*argv, "--controller"], number)

    def _paths(self, number: int) -> list[str]:
        folder = self.state / f"triton-{number}"
        return ["--state-dir", str(folder), "--repository", str(folder / "repository")]

    def _start(self, name: str, arguments: list[str], number: int) -> processes.Server:
        server = processes.Server(
            name, [sys.executable, "-m", "deploy.cli.main", name, *arguments], env=self.env, cores=_CORES,
            log=self.state / "logs" / f"triton-{number}-{name}.log",
        )  # fmt: skip
        self._open.append(server)
        return server

    def run(self, *arguments: str) -> None:
        """Run one command of the stock CLI on the serving Task."""
        asyncio.run(self.cli.run("--id", self.task, *arguments))

    def upload(self, path: Path, name: str) -> None:
        """Upload a multiplying model with the stock CLI."""
        self.run(*tiny.upload(path, name))

    def add(self, endpoint: str, name: str, code: Path, version: str = "") -> None:
        """Serve that model behind code, as an endpoint; returns when the registry has the change."""
        self.run(*tiny.add(endpoint, name, code, version))

    def status(self) -> Mapping[str, Any]:
        """Return the gateway's ``/v1/status``."""
        return processes.ask_json(f"{self.url}/v1/status")

    def until(self, holds: Callable[[Mapping[str, Any]], object], what: str, *, within: float = LIMIT_S) -> float:
        """Wait until ``holds`` is true for the gateway's status; return the seconds it took."""
        return processes.until(lambda: holds(self.status()), what, within=within)

    def stop(self) -> None:
        """Stop everything in reverse order."""
        for part in reversed(self._open):
            part.stop()
