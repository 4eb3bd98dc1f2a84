"""A small complete stack for trials of operation: control plane, Tritons with model sync, a gateway, steady load.

Used by ``swaps`` and ``rollouts``; everything is a real process on loopback, configured through the stock CLI and the
serving Task. Latency is not what is measured here: nothing is bound to cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks import servers
from benchmarks.load import Load, Outcome, percentile, render
from benchmarks.registry import Registry
from deploy.tools.stock_cli import StockCli

_CORES = range(os.cpu_count() or 1)
ROOT = Path(__file__).resolve().parents[1]


class Small:
    """The stack; ``tritons`` 0 for endpoints that are code only. ``settings`` are further variables of the gateways.

    ``urls`` are the gateways' addresses, ``url`` the first one's.
    """

    def __init__(
        self, state: Path, *, tritons: int, workers: int = 1, gateways: int = 1,
        poll: str = "500ms", settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.state = state
        self._workers = workers
        self._poll = poll
        self._settings = settings
        self._open: list[servers.Server | Registry] = []
        state.mkdir(parents=True, exist_ok=True)
        try:
            self.registry = Registry(state, cores=_CORES)
            self._open.append(self.registry)
            # one key for all of them: the gateways ask every Triton with it
            key = {"TRITON_GATEWAY_TRITON_KEY_FILE": str(state / "triton-key")}
            self.env = {**self.registry.env, **key, "PYTHONPATH": str(ROOT)}
            self.cli = StockCli(env=self.env, log=state / "logs" / "clearml-serving.log")
            self.task = asyncio.run(self.cli.create_service("trial"))
            self.env["CLEARML_SERVING_TASK_ID"] = self.task
            flat = servers.free_ports(3 * tritons)
            self._ports = [tuple(flat[at : at + 3]) for at in range(0, len(flat), 3)]
            self.tritons = [self._triton(number) for number in range(tritons)]
            self.syncs = [self._sync(number) for number in range(tritons)]
            self.urls = [f"http://{servers.LOOPBACK}:{servers.free_port()}" for _ in range(gateways)]
            self.url = self.urls[0]
            self.gateways = [self._gateway(number) for number in range(gateways)]
        except BaseException:
            self.stop()
            raise

    def stop_registry(self) -> None:
        """Take the registry away."""
        self._open.remove(self.registry)
        self.registry.stop()

    def start_registry(self) -> None:
        """Bring it back, on its port and with its data."""
        self.registry = Registry(self.state, cores=_CORES)
        self._open.append(self.registry)

    def restart_gateway(self, number: int = 0) -> None:
        """Stop a gateway and start it anew, on its port and with its state folder."""
        self._end(self.gateways[number])
        self.gateways[number] = self._gateway(number)

    def restart_triton(self, number: int = 0) -> None:
        """Stop a Triton and start an empty one on its ports."""
        self.stop_triton(number)
        self.start_triton(number)

    def stop_triton(self, number: int = 0) -> None:
        """Take a Triton away."""
        self._end(self.tritons[number])

    def start_triton(self, number: int = 0) -> None:
        """Bring it back, empty, on its ports."""
        self.tritons[number] = self._triton(number)

    @property
    def triton_address(self) -> str:
        """The gRPC address of the first Triton."""
        return f"{servers.LOOPBACK}:{self._ports[0][0]}"

    def _gateway(self, number: int) -> servers.Server:
        addresses = [f"{servers.LOOPBACK}:{ports[0]}" for ports in self._ports]
        env = {
            **self.env, "TRITON_GATEWAY_PORT": self.urls[number].rpartition(":")[2],
            "TRITON_GATEWAY_WORKERS": str(self._workers),
            "TRITON_GATEWAY_STATE_DIR": str(self.state / f"gateway-{number}"), "CLEARML_SERVING_POLL_FREQ": self._poll,
            "TRITON_GATEWAY_TRITON_GRPC": f"ipv4:{','.join(addresses)}" if addresses else "127.0.0.1:1",
            **self._settings,
        }  # fmt: skip
        gateway = servers.Server("gateway", [sys.executable, "-m", "gateway"], env=env, cores=_CORES,
                                 log=self.state / "logs" / f"gateway-{number}.log")  # fmt: skip
        self._open.append(gateway)
        gateway.wait_for(f"{self.urls[number]}/livez")
        return gateway

    def _triton(self, number: int) -> servers.Server:
        grpc, http, metrics = map(str, self._ports[number])
        ports = ["--grpc-port", grpc, "--http-port", http, "--metrics-port", metrics]
        server = self._start("triton", [*self._paths(number), *ports], number)
        server.wait_for(f"http://{servers.LOOPBACK}:{http}/v2")
        return server

    def _sync(self, number: int) -> servers.Server:
        address = f"{servers.LOOPBACK}:{self._ports[number][0]}"
        argv = [*self._paths(number), "--triton-grpc", address, "--engine", "python", "--poll-frequency", self._poll]
        return self._start("sync", argv, number)

    def _paths(self, number: int) -> list[str]:
        folder = self.state / f"triton-{number}"
        return ["--state-dir", str(folder), "--repository", str(folder / "repository")]

    def _start(self, name: str, arguments: list[str], number: int) -> servers.Server:
        server = servers.Server(
            name, [sys.executable, "-m", "deploy.admin.cli", name, *arguments], env=self.env, cores=_CORES,
            log=self.state / "logs" / f"triton-{number}-{name}.log",
        )  # fmt: skip
        self._open.append(server)
        return server

    def _end(self, server: servers.Server) -> None:
        self._open.remove(server)
        server.stop()

    def run(self, *arguments: str) -> None:
        """Run one command of the stock CLI on the serving Task."""
        asyncio.run(self.cli.run("--id", self.task, *arguments))

    def status(self) -> Mapping[str, Any]:
        """Return the gateway's ``/v1/status``."""
        return servers.ask_json(f"{self.url}/v1/status")

    def until(self, holds: Callable[[Mapping[str, Any]], object], what: str, *, within: float = 120.0) -> float:
        """Wait until the gateway's status fulfils ``holds``; returns the seconds it took."""
        began = time.monotonic()
        while not holds(self.status()):
            if time.monotonic() - began > within:
                raise servers.ServerFailed(f"{what} did not happen within {within:.0f} s: {self.status()}")
            time.sleep(0.1)
        took = time.monotonic() - began
        if self._workers > 1:  # one of them answered
            time.sleep(1.5)
        return took

    def stop(self) -> None:
        """Stop everything in reverse order."""
        for part in reversed(self._open):
            part.stop()


class Steady:
    """An open loop on one endpoint in a thread of its own, without a retry, until it is stopped."""

    def __init__(self, url: str, body: bytes, *, rate: float) -> None:
        self._url, self._body, self._rate = url, body, rate
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.total = Outcome()

    def _run(self) -> None:
        seed = 0
        while not self._stopping.is_set():
            seed += 1
            load = Load(self._url, render(self._url, [self._body]), connections=64)
            try:
                one = load.open_loop(self._rate, 4.0, seed)
            finally:
                load.close()
            total = self.total
            total.requests += one.requests
            total.errors += one.errors
            total.latencies += one.latencies
            total.first_error = total.first_error or one.first_error
            for status, count in one.statuses.items():
                total.statuses[status] = total.statuses.get(status, 0) + count

    def summary(self) -> dict[str, Any]:
        """Return what it saw so far."""
        ordered = sorted(self.total.latencies)
        return {"requests": self.total.requests, "failed": self.total.errors, "statuses": self.total.statuses,
                "first_error": self.total.first_error, "p50_ms": round(percentile(ordered, 50) * 1e3, 1),
                "p99_ms": round(percentile(ordered, 99) * 1e3, 1)}  # fmt: skip

    @contextlib.contextmanager
    def running(self) -> Iterator[Steady]:
        """Send while the context is open."""
        self._thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            self._thread.join()
