"""The unmodified stock CLI is slow and writes an old copy of the whole configuration back: nothing of ours is lost.

The control plane runs strict here, as a ClearML server is: it does not merge. A proxy in front of it holds the CLI
between its reads and its first write.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from deploy.controller.rollouts import record
from deploy.controller.rollouts.record import Lease
from deploy.controller.rollouts.steps import Rollout
from deploy.controller.weights import SETTLED_S, WeightsKeeper
from gateway.registry.clearml import ClearMLRegistry
from gateway.registry.ledger import Record
from gateway.spec import decode
from tests.control_planes import RunningControlPlane, control_plane
from tests.stock import Client, ended

pytestmark = pytest.mark.integration

HOOK = "class Preprocess:\n    def process(self, data, state, collect=None):\n        return data\n"


class Gate(ThreadingHTTPServer):
    """A proxy that lets everything through but writes of the configuration, which wait for ``opened``."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        self.target = urlsplit(target)
        self.waits, self.opened = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        """Where the CLI calls."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        gate = self.server
        assert isinstance(gate, Gate)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.endswith("tasks.edit") and b'"configuration"' in body:
            gate.waits.set()
            gate.opened.wait(60)
        connection = http.client.HTTPConnection(str(gate.target.hostname), gate.target.port, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        connection.request("GET", self.path, body=body, headers=headers)
        answer = connection.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        connection.close()

    def log_message(self, *_: Any) -> None:
        """Be quiet."""


class Service(Client):
    """One serving Task with the route ``c`` over ``e/2`` and ``e/1``."""

    def __init__(self, server: RunningControlPlane, folder: Path) -> None:
        super().__init__(server, folder)
        (folder / "hook.py").write_text(HOOK)
        self.create("slow")
        for version in "12":
            self.add("e", "--version", version, "--preprocess", "hook.py", engine="custom")
        self.canary("0.1", "0.9")
        self.registry = ClearMLRegistry(self.task)

    def canary(self, *weights: str) -> None:
        """`model canary`, as a person types it."""
        self.stock("model", "canary", "--endpoint", "c", "--weights", *weights, "--input-endpoints", "e/2", "e/1")

    def overtaken(self, endpoint: str, between: Any) -> None:
        """Add an endpoint so slowly that ``between`` happens after the CLI has read and before it writes."""
        gate = Gate(self.server.url)
        threading.Thread(target=gate.serve_forever, daemon=True).start()
        given = ("--engine", "custom", "--endpoint", endpoint, "--preprocess", "hook.py")
        slow = self.begin_stock("model", "add", *given, CLEARML_API_HOST=gate.url)
        try:
            assert gate.waits.wait(60)
            between()
        finally:
            gate.opened.set()
            ended(slow)
            gate.shutdown()
            gate.server_close()

    def told(self) -> dict[str, float] | None:
        """The route's weights in the Task itself."""
        return record.weights(self.registry.task(), "c")

    def served(self) -> dict[str, float]:
        """The route's weights as gateways have them."""
        route = decode(self.registry.task()).canaries["c"]
        return dict(zip(route.load_endpoints, route.weights, strict=True))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Shared by the tests of this file; each begins with weights of its own."""
    folder = tmp_path_factory.mktemp("slow")
    with control_plane(folder / "state") as server:
        client = Service(server, folder)
        with client.here():
            yield client


@pytest.mark.long
def test_weights_that_were_decided_meanwhile_stay_in_force_and_are_put_right(service: Service) -> None:
    """The CLI reverts them in the Task; gateways do not follow it there, and the Task follows within seconds."""
    service.overtaken("slow1", lambda: service.ours("canary", "set", "--endpoint", "c", "e/2=0.5", "e/1=0.5"))
    assert {"e/2": 0.1, "e/1": 0.9} == service.told(), "a real server does not merge"
    assert "slow1" in decode(service.registry.task()).endpoints
    assert {"e/2": 0.5, "e/1": 0.5} == service.served()
    assert ["canary c"] == [fault.subject for fault in decode(service.registry.task()).faults]
    keeper = WeightsKeeper(service.registry, clock=time.monotonic, wall=time.time)
    until = time.monotonic() + 12 * SETTLED_S
    while not keeper(service.registry.task()) and time.monotonic() < until:
        time.sleep(0.5)
    assert {"e/2": 0.5, "e/1": 0.5} == service.told()
    assert () == decode(service.registry.task()).faults
    service.canary("0.3", "0.7")
    assert {"e/2": 0.3, "e/1": 0.7} == service.told() == service.served(), "what a person sets counts"


def test_each_record_survives_a_slow_client(service: Service) -> None:
    """Hashes, rollouts, commands, shadows, decisions: written after the CLI has read, before it writes."""
    service.canary("0.2", "0.8")
    store = service.registry

    def between() -> None:
        service.ours("canary", "shadow", "--endpoint", "e/1", "--to", "e/2", "--percent", "5")
        service.ours("canary", "set", "--endpoint", "c", "e/2=0.6", "e/1=0.4")
        store.write({}, [
            Record("content_hash", "m", {"name": "n", "uri": "u", "sha256": "a", "at": 1.0}),
            Record("version_number", "e/m", {"number": 1}), Record("command", "c", {"id": "i", "command": "abort"}),
            record.written(Rollout("c", "e/2", "e/1"), Lease("me", 2e9)),
        ])  # fmt: skip

    service.overtaken("slow2", between)
    task = service.registry.task()
    assert {"e/1"} == set(decode(task).shadows)
    rollout, lease = record.read(task, "c")
    assert ({"c": "e/1"}, "me") == (dict(decode(task).stables), lease.holder)
    assert rollout is not None
    assert {"e/2": 0.6, "e/1": 0.4} == service.served()
    asked = record.pending_command(task, "c")
    assert asked is not None
    assert "abort" == asked.command
    kinds = {"content_hash", "version_number", "command", "rollout", "shadow", "decision"}
    assert kinds <= set(service.registry.ledger.read())
