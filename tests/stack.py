"""A small complete stack for operation trials: control plane, Tritons with model sync, gateways.

Everything is a real process on loopback, configured by the serving Task.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from tests import processes
from tests.control_planes import control_plane
from tests.gateways import GatewayProcess
from tests.stock import Client
from tests.triton_server import TritonServer
from tests.waiting import until


class Small:
    """The stack, from the beginning of the block to its end; ``settings`` are the gateways', without the prefix."""

    def __init__(self, state: Path, *, tritons: int, **settings: Any) -> None:
        self._state, self._number, self._settings = state, tritons, settings

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._open = stack
            server = stack.enter_context(control_plane(self._state / "controlplane"))
            self.client = Client(server, self._state)
            self.client.create("trial")
            self.tritons = [stack.enter_context(self._triton(number)) for number in range(self._number)]
            self.syncs = [self._sync(number) for number in range(self._number)]
            self.gateway = self.start_gateway("gateway")
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def url(self) -> str:
        """Where the first gateway answers."""
        return self.gateway.url

    def restart_gateway(self) -> None:
        """Restart the gateway, on its port and with its state folder."""
        self.gateway.end()
        self.gateway = self.start_gateway("gateway", port=self.gateway.port)

    def start_gateway(self, name: str, *, port: int = 0) -> GatewayProcess:
        """Start a gateway with a state folder of this name; it answers."""
        grpc = f"ipv4:{','.join(one.grpc for one in self.tritons)}"
        made = GatewayProcess(self.client, self._state / name, port=port, triton_grpc=grpc, **self._settings)
        self._open.enter_context(made)
        until(made.status)
        return made

    def until(self, holds: Callable[[Mapping[str, Any]], object], what: str) -> None:
        """Wait until ``holds`` is true for the gateway's status."""
        until(lambda: holds(self.gateway.status()), what=what)

    def _triton(self, number: int) -> TritonServer:
        folder = self._state / f"triton-{number}"
        return TritonServer(folder, folder / "repository")

    def _sync(self, number: int) -> processes.Server:
        folder = self._state / f"triton-{number}"
        argv = [
            sys.executable, "-m", "deploy.cli.main", "sync", "--state-dir", str(folder), "--repository",
            str(folder / "repository"), "--triton-grpc", self.tritons[number].grpc, "--engine", "python",
            "--poll-frequency", "500ms", *([] if number else ["--controller"]),
        ]  # fmt: skip
        env = {**self.client.environment, "CLEARML_SERVING_TASK_ID": self.client.task}
        made = processes.Server("sync", argv, env=env, log=folder / "sync.log")
        self._open.callback(made.stop)
        return made
