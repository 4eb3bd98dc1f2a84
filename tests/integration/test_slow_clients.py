"""The unmodified stock CLI is slow and writes an old copy of the whole configuration back: nothing of ours is lost.

The control plane runs strict here, as a ClearML server is: it does not merge. A proxy in front of it holds the CLI
between its reads and its first write.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.controller.gateways import Gateways
from deploy.controller.rollouts import record
from deploy.controller.rollouts.duty import Rollouts
from deploy.controller.rollouts.record import Request
from deploy.controller.rollouts.steps import Rollout
from deploy.controller.wanted import carry_out
from gateway.registry.clearml import ClearMLRegistry
from gateway.registry.ledger import Record
from gateway.spec import decode
from tests.control_planes import RunningControlPlane
from tests.sites import Asked, site
from tests.stock import Client, ended
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.integration

HOOK = "class Preprocess:\n    def process(self, data, state, collect=None):\n        return data\n"


class Gate:
    """A proxy that lets everything through but writes of the configuration, which wait for ``opened``."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.waits, self.opened = threading.Event(), threading.Event()

    def answer(self, asked: Asked) -> tuple[int, Any]:
        """What the control plane answers, in time or later."""
        if asked.path.endswith("tasks.edit") and b'"configuration"' in asked.body:
            self.waits.set()
            self.opened.wait(LIMIT_S)
        headers = {name: value for name, value in asked.headers.items() if name.lower() not in ("host", "connection")}
        told = httpx.request(asked.method, self.target + asked.path, content=asked.body, headers=headers)
        return told.status_code, told.json()


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
        given = ("--engine", "custom", "--endpoint", endpoint, "--preprocess", "hook.py")
        with site(gate.answer) as url:
            slow = self.begin_stock("model", "add", *given, CLEARML_API_HOST=url)
            try:
                assert gate.waits.wait(LIMIT_S)
                between()
            finally:
                gate.opened.set()
                ended(slow)

    def told(self) -> dict[str, float] | None:
        """The route's weights."""
        return record.weights(decode(self.registry.task()), "c")


@pytest.fixture(scope="module")
def service(server: RunningControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Shared by the tests of this file; each begins with weights of its own."""
    client = Service(server, tmp_path_factory.mktemp("slow"))
    with client.here():
        yield client


@pytest.mark.long
def test_weights_of_a_rollout_are_put_right(service: Service) -> None:
    """The CLI reverts them in the Task; the controller writes them again within seconds. A person's choice counts."""
    store = service.registry
    controller = Rollouts(Gateways(list), "me")
    rollout = Rollout("c", "e/2", "e/1", steps=(50.0, 100.0))

    def between() -> None:
        store.write({}, [record.asked("c", Request("r1", "run", "ann", rollout))])
        for _ in range(2):
            carry_out(store, store.task(), controller)
        assert {"e/2": 0.5, "e/1": 0.5} == service.told()

    service.overtaken("slow1", between)
    assert {"e/2": 0.1, "e/1": 0.9} == service.told(), "a real server does not merge"
    assert "slow1" in decode(store.task()).endpoints

    def put_right() -> bool:
        carry_out(store, store.task(), controller)
        return service.told() == {"e/2": 0.5, "e/1": 0.5}

    until(put_right, pause=0.5)
    carry_out(store, store.task(), controller)
    service.canary("0.3", "0.7")
    carry_out(store, store.task(), controller)
    state = record.read(store.task(), "c")
    assert state is not None
    assert ("taken_over", {"e/2": 0.3, "e/1": 0.7}) == (state.phase, service.told())


def test_each_record_survives_a_slow_client(service: Service) -> None:
    """Hashes, rollouts, requests, shadows: written after the CLI has read, before it writes."""
    service.canary("0.2", "0.8")
    store = service.registry

    def between() -> None:
        service.ours("canary", "shadow", "--endpoint", "e/1", "--to", "e/2", "--percent", "5")
        store.write({}, [
            Record("content_hash", "m", {"name": "n", "uri": "u", "sha256": "a", "at": 1.0}),
            Record("version_number", "e/m", {"number": 1}), record.asked("c", Request("i", "abort", "ann")),
            record.stored(Rollout("c", "e/2", "e/1", guard="me")),
        ])  # fmt: skip

    service.overtaken("slow2", between)
    task = service.registry.task()
    assert {"e/1"} == set(decode(task).shadows)
    state, asked = record.read(task, "c"), record.request(task, "c")
    assert state is not None
    assert asked is not None
    assert ({"c": "e/1"}, "me", "abort") == (dict(decode(task).stables), state.guard, asked.command)
    kinds = {"content_hash", "version_number", "rollout_request", "rollout", "shadow"}
    assert kinds <= set(service.registry.ledger.read())
