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
from typing import Any

from benchmarks import servers
from benchmarks.load import Load, Outcome, percentile, render
from benchmarks.registry import Registry
from deploy.stock_cli import StockCli

ROOT = Path(__file__).resolve().parents[1]


class Small:
    """The stack; ``tritons`` 0 for endpoints that are code only."""

    def __init__(self, state: Path, *, tritons: int, workers: int = 1) -> None:
        self.state = state
        self._workers = workers
        self._open: list[servers.Server | Registry] = []
        cores = range(os.cpu_count() or 1)
        state.mkdir(parents=True, exist_ok=True)
        try:
            registry = Registry(state, cores=cores)
            self._open.append(registry)
            self.env = {**registry.env, "PYTHONPATH": str(ROOT)}
            self.cli = StockCli(env=self.env, log=state / "logs" / "clearml-serving.log")
            self.task = asyncio.run(self.cli.create_service("trial"))
            self.env["CLEARML_SERVING_TASK_ID"] = self.task
            addresses = [self._triton(number, cores) for number in range(tritons)]
            port = servers.free_port()
            self.url = f"http://{servers.LOOPBACK}:{port}"
            env = {
                **self.env, "TRITON_GATEWAY_PORT": str(port), "TRITON_GATEWAY_WORKERS": str(workers),
                "TRITON_GATEWAY_STATE_DIR": str(state / "gateway"), "CLEARML_SERVING_POLL_FREQ": "500ms",
                "TRITON_GATEWAY_TRITON_GRPC": f"ipv4:{','.join(addresses)}" if addresses else "127.0.0.1:1",
            }  # fmt: skip
            gateway = servers.Server("gateway", [sys.executable, "-m", "gateway"], env=env, cores=cores,
                                     log=state / "logs" / "gateway.log")  # fmt: skip
            self._open.append(gateway)
            gateway.wait_for(f"{self.url}/livez")
        except BaseException:
            self.stop()
            raise

    def _triton(self, number: int, cores: range) -> str:
        folder = self.state / f"triton-{number}"
        grpc, http, metrics = (servers.free_port() for _ in range(3))
        ports = ["--grpc-port", str(grpc), "--http-port", str(http), "--metrics-port", str(metrics)]
        paths = ["--state-dir", str(folder), "--repository", str(folder / "repository")]
        self._start("triton", [*paths, *ports], cores, folder).wait_for(f"http://{servers.LOOPBACK}:{http}/v2")
        address = f"{servers.LOOPBACK}:{grpc}"
        argv = [*paths, "--triton-grpc", address, "--engine", "python", "--poll-frequency", "500ms"]
        self._start("sync", argv, cores, folder)
        return address

    def _start(self, name: str, arguments: list[str], cores: range, folder: Path) -> servers.Server:
        server = servers.Server(
            name, [sys.executable, "-m", "deploy.cli", name, *arguments], env=self.env, cores=cores,
            log=self.state / "logs" / f"{folder.name}-{name}.log",
        )  # fmt: skip
        self._open.append(server)
        return server

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
