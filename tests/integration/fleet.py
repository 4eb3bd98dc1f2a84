"""Real gateways behind a Service and real Tritons behind a name, on one machine; they end like pods.

A pod is a process. Ending one does what the kubelet and the endpoints controller do: the pod is removed from the list
(after a delay, on every node), its ``preStop`` sleep runs, and it gets SIGTERM. The name of the Tritons is a file
mounted over ``/etc/hosts`` for the gateways if that is allowed (root); otherwise the gateways get a fixed list of
addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from deploy.tools.clearml_serving import ClearMLServing
from tests import processes, tiny
from tests.expositions import parse
from tests.integration.callers import Callers
from tests.integration.service import Loop, Service
from tests.stack import Registry

NAME: Final = "triton.test"
ENDPOINT: Final = "rolled"
BODY: Final = b'{"text": "good film hello world"}'
_PROPAGATION_S: Final = 0.5
"""Seconds until every node knows that an endpoint is gone."""
_PRE_STOP_S: Final = 1.0
"""Seconds of the preStop hook. Kubernetes manifests use more; one machine is quicker."""
AGE: Final = {"TRITON_GATEWAY_CONNECTION_AGE": "1s", "TRITON_GATEWAY_DRAIN_DELAY": "5s"}
"""Minutes in production; seconds here, so that callers soon spread over new replicas, and each has an answer on its
connection, which is then its last, before that is closed.
"""


@dataclass
class Gateway:
    """One gateway pod."""

    name: str
    port: int
    server: processes.Server

    def counted(self) -> float:
        """Return how many requests it has answered."""
        text = processes.ask(f"http://{processes.LOOPBACK}:{self.port}/metrics").decode()
        return sum(value for name, _, value in parse(text) if name == "gateway_requests_total")


@dataclass
class Triton:
    """One Triton pod: the server and its model sync."""

    name: str
    host: str
    server: processes.Server
    sync: processes.Server
    status: Path
    ports: Mapping[str, int] = field(default_factory=dict)

    def is_ready(self) -> bool:
        """Return True if every wanted model is loaded, like its readiness probe."""
        try:
            found = json.loads(self.status.read_text())
        except (OSError, ValueError):
            return False
        states = [model["state"] for model in found["models"]]
        return bool(found["triton"]["answers"]) and bool(states) and set(states) == {"ready"}

    def counted(self) -> float:
        """Return how many calls it has answered."""
        text = processes.ask(f"http://{self.host}:{self.ports['metrics']}/metrics").decode()
        # Triton names its counters without the suffix that the parser adds.
        wanted = ("nv_inference_request_success", "nv_inference_request_success_total")
        return sum(value for name, _, value in parse(text) if name in wanted)


class Fleet:
    """The processes. ``settings`` are the gateways' environment besides the variables that make them a fleet."""

    def __init__(self, state: Path, *, say: Callable[[str], None], settings: Mapping[str, str] | None = None) -> None:
        self.state = state.absolute()
        self.settings = dict(settings or {})
        self._say = say
        self._numbers = iter(range(1, 1000))
        self.ports = dict(zip(("grpc", "http", "metrics"), processes.free_ports(3), strict=True))
        """Ports of every Triton, each on its own loopback address."""
        self.gateways: list[Gateway] = []
        self.tritons: list[Triton] = []
        self._hosts: Path | None = None
        self._open: list[Registry | processes.Server] = []
        # Its threads must live as long as the processes that they start: a child ends with its thread.
        self._threads = ThreadPoolExecutor(8)
        self._lock = threading.Lock()
        self.state.mkdir(parents=True, exist_ok=True)
        self._cores = range(os.cpu_count() or 1)
        self.loop = Loop()
        self.service = Service(self.loop)
        try:
            self.registry = registry = Registry(self.state, cores=self._cores)
            self._open.append(registry)
            # All servers are on loopback addresses, of which proxies' exceptions contain only one.
            clean = {k: v for k, v in registry.env.items() if not k.lower().endswith("_proxy")}
            key = {"TRITON_GATEWAY_TRITON_KEY_FILE": str(self.state / "triton-key")}
            self.env = {**clean, **key, "PYTHONPATH": str(processes.ROOT)}
            self.cli = ClearMLServing(env=self.env, log=self.state / "logs" / "clearml-serving.log")
            self.task = asyncio.run(self.cli.create_service("fleet"))
            self.env["CLEARML_SERVING_TASK_ID"] = self.task
            self._deploy(self.task)
            self._hosts = self._lay_hosts()
        except BaseException:
            self.stop()
            raise

    def _deploy(self, task: str) -> None:
        bundle = tiny.counting_bundle(self.state / "bundle")
        for arguments in (
            ("model", "upload", "--name", "rolled", "--project", "fleet", "--path", str(bundle), "--publish",
             "--framework", "onnx"),
            ("model", "add", "--engine", "triton", "--endpoint", ENDPOINT, "--name", "rolled", "--project", "fleet",
             "--input-name", "input_ids", "attention_mask", "--input-type", "int64", "int64",
             "--input-size", "[-1, -1]", "[-1, -1]", "--output-name", "logits", "--output-type", "float32",
             "--output-size", "[-1, 2]"),
        ):  # fmt: skip
            asyncio.run(self.cli.run("--id", task, *arguments))

    def _lay_hosts(self) -> Path | None:
        path = self.state / "hosts"
        path.write_text("127.0.0.1 localhost\n")
        tried = subprocess.run(
            ["unshare", "--mount", "sh", "-c", f"mount --bind {path} /etc/hosts"], capture_output=True, check=False
        )
        return path if tried.returncode == 0 else None

    def name(self, *hosts: str) -> None:
        """Point the name of the Tritons at these addresses."""
        if self._hosts is not None:
            named = "".join(f"{host} {NAME}\n" for host in hosts)
            self._hosts.write_text(f"127.0.0.1 localhost\n{named}")

    def next_triton(self) -> tuple[str, str]:
        """Return the name and the address of the next Triton to start."""
        number = next(self._numbers)
        return f"triton-{number}", f"127.0.0.{number + 1}"

    def start_triton(self, *, in_place_of: str = "") -> Triton:
        """Start a Triton with its sync, behind the name from the start, and wait until it has every model.

        ``in_place_of``: its address.
        """
        name, host = self.next_triton()
        host = in_place_of or host
        folder = self.state / name
        grpc = f"{host}:{self.ports['grpc']}"
        paths = ["--state-dir", str(folder), "--repository", str(folder / "repository")]
        ports = [part for kind in ("grpc", "http", "metrics") for part in (f"--{kind}-port", str(self.ports[kind]))]
        server = self._start(name, ["triton", *paths, *ports, "--host", host])
        server.wait_for(f"http://{host}:{self.ports['http']}/v2")
        argv = [
            "sync",
            *paths,
            "--triton-grpc",
            grpc,
            "--engine",
            "python",
            "--poll-frequency",
            "500ms",
            "--controller",
        ]
        sync = self._start(f"{name}-sync", argv)
        triton = Triton(name, host, server, sync, folder / "sync-status.json", self.ports)
        with self._lock:
            self.tritons = [*self.tritons, triton]
            self.name(*(t.host for t in self.tritons))
        processes.until(triton.is_ready, f"{name} has its models")
        self._say(f"{name} is ready at {host}")
        return triton

    def end_triton(self, triton: Triton) -> None:
        """End a Triton like a pod: model sync at once, preStop, SIGTERM. The name points to it until it is gone."""
        triton.sync.end()
        time.sleep(_PRE_STOP_S)
        triton.server.end()
        with self._lock:
            self.tritons = [t for t in self.tritons if t is not triton]
            self.name(*(t.host for t in self.tritons))
        self._say(f"{triton.name} has ended")

    def start_gateway(self, **settings: str) -> Gateway:
        """Start a gateway, wait until its readiness probe passes, then add it to the Service."""
        number = next(self._numbers)
        name, port = f"gateway-{number}", processes.free_port()
        grpc = self.ports["grpc"]
        addresses = ",".join(f"{t.host}:{grpc}" for t in self.tritons)
        env = {
            **self.env, "TRITON_GATEWAY_PORT": str(port), "TRITON_GATEWAY_STATE_DIR": str(self.state / name),
            "CLEARML_SERVING_POLL_FREQ": "1s", "TRITON_GATEWAY_TRITON_HTTP": str(self.ports["http"]),
            "TRITON_GATEWAY_TRITON_GRPC": f"dns:///{NAME}:{grpc}" if self._hosts else f"ipv4:{addresses}",
            **self.settings, **settings,
        }  # fmt: skip
        argv = [sys.executable, "-m", "gateway"]
        if self._hosts is not None:
            argv = ["unshare", "--mount", "sh", "-c", f'mount --bind {self._hosts} /etc/hosts && exec "$@"', "-", *argv]
        server = processes.Server(name, argv, env=env, cores=self._cores, log=self.state / "logs" / f"{name}.log")
        self._open.append(server)
        processes.until(lambda: self._is_ready(server, port), f"{name} is ready")
        made = Gateway(name, port, server)
        with self._lock:
            self.gateways = [*self.gateways, made]
            self.service.add(port)
        self._say(f"{name} is ready")
        return made

    def _is_ready(self, server: processes.Server, port: int) -> bool:
        if not Path(f"/proc/{server.pid}").exists():
            raise processes.ServerFailed(f"{server.name} ended: {server.last_lines()}")
        connection = http.client.HTTPConnection(processes.LOOPBACK, port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def end_gateway(self, gateway: Gateway) -> None:
        """End a gateway like a pod; its exit code must be 0."""
        self.gateways = [g for g in self.gateways if g is not gateway]
        time.sleep(_PROPAGATION_S)
        self.service.remove(gateway.port)
        time.sleep(max(0.0, _PRE_STOP_S - _PROPAGATION_S))
        code = gateway.server.end()
        if code:
            raise processes.ServerFailed(f"{gateway.name} ended with {code}: {gateway.server.last_lines()}")
        self._say(f"{gateway.name} has ended")

    def together(self, *work: Callable[[], Any]) -> list[Any]:
        """Run several functions at once."""
        return [future.result() for future in [self._threads.submit(one) for one in work]]

    def callers(self, *, count: int = 16, rate: float = 100.0) -> Callers:
        """Return callers of the Service."""
        return Callers(self.loop, self.service.port, f"/serve/{ENDPOINT}", BODY, count=count, rate=rate)

    def _start(self, name: str, arguments: Sequence[str]) -> processes.Server:
        server = processes.Server(
            name, [sys.executable, "-m", "deploy.cli.main", *arguments], env=self.env, cores=self._cores,
            log=self.state / "logs" / f"{name}.log",
        )  # fmt: skip
        self._open.append(server)
        return server

    def stop(self) -> None:
        """Stop everything, newest first."""
        self.service.close()
        for part in reversed(self._open):
            part.stop()
        self.loop.close()
        self._threads.shutdown()


@contextlib.contextmanager
def fleet(state: Path, *, say: Callable[[str], None], **settings: str) -> Iterator[Fleet]:
    """A fleet while the context is open."""
    made = Fleet(state, say=say, settings=settings)
    try:
        yield made
    finally:
        made.stop()


def unevenness(counts: Sequence[float]) -> float:
    """Return the largest distance of a replica from an equal share; 0 is equal."""
    mean = sum(counts) / len(counts)
    return max(abs(count / mean - 1) for count in counts) if mean else 1.0
