"""clearml-serving's own inference container beside model sync: whatever it counts, every version keeps its model."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.controller.auto_update import AutoUpdate
from deploy.controller.wanted import carry_out
from gateway import hocon
from gateway.registry.clearml import ClearMLRegistry
from gateway.spec import decode
from tests.control_planes import control_plane
from tests.stock import TENSORS, Client
from tests.waiting import LIMIT_S, until

pytestmark = [pytest.mark.integration, pytest.mark.long]

# The container without its HTTP server: its own Task as `setup_task` names it, its own synchronisation thread.
CONTAINER = """
import json, sys, time
sys.modules["torch"] = None  # imported where there is one, for seconds, and not used here
from clearml import Task
from clearml_serving.serving.model_request_processor import ModelRequestProcessor
service = Task.get_task(task_id=sys.argv[1])
instance = Task.init(project_name=service.get_project_name(), task_name=service.name + " - serve instance",
                     task_type="inference", auto_connect_frameworks=False, auto_resource_monitoring=False)
processor = ModelRequestProcessor(task_id=sys.argv[1])
processor.launch(poll_frequency_sec=0.5)
print("RUNS", flush=True)
sys.stdin.readline()
print("COUNTED " + json.dumps(processor._model_monitoring_versions), flush=True)
instance.mark_completed()
"""


class World:
    """A service with an auto-update rule, a controller that numbers, and a gateway that looks."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.service = client.create("beside")
        client.stock("model", "auto-update", "--engine", "triton", "--endpoint", "auto", "--name", "my model",
                     "--project", "auto", "--published", "--max-versions", "2", *TENSORS)  # fmt: skip
        # Without an endpoint of its own the container divides by zero.
        client.add("fixed", "--model-id", self.publish("0", name="fixed"))
        self.registry = ClearMLRegistry(self.service)
        self.seen: dict[str, set[str]] = {}
        self.faults: set[str] = set()
        self.rounds = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._sync, self._look)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def publish(self, content: str, name: str = "my model") -> str:
        (self.client.folder / "model.onnx").write_text(content)
        return self.client.upload(name, "model.onnx", project="auto")

    def _sync(self) -> None:
        store = ClearMLRegistry(self.service)
        auto = AutoUpdate(store, lambda: set(self.served().items()), clock=time.monotonic, every_s=0.2, settle_s=0)
        while not self._stop.wait(0.1):
            carry_out(store, store.task(), auto)
            self.rounds += 1

    def _look(self) -> None:
        registry = ClearMLRegistry(self.service)
        while not self._stop.wait(0.05):
            spec = decode(registry.task())
            for url, endpoint in spec.endpoints.items():
                if not endpoint.is_auto:
                    continue
                self.seen.setdefault(url, set()).add(str(endpoint.model_id))
            self.faults |= {fault.subject for fault in spec.faults}

    def served(self) -> dict[str, str | None]:
        return {url: e.model_id for url, e in decode(self.registry.task()).endpoints.items() if e.is_auto}

    def section(self) -> dict[str, str]:
        text = self.registry.task().sections["model_monitoring_eps"]
        return {key: fields["model_id"] for key, fields in hocon.parse(text).items()}

    def until(self, condition: Callable[[], bool], what: str) -> None:
        until(condition, what=what)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """On a control plane of its own; this process is a client of it too."""
    with control_plane(tmp_path / "state") as server:
        client = Client(server, tmp_path, CLEARML_BKG_THREAD_REPORT="1")
        with client.here():
            made = World(client)
            try:
                yield made
            finally:
                made.close()


def test_a_container_that_counts_for_itself_and_a_stale_write_change_no_version(world: World) -> None:
    """Publications with and without it, and an old copy of everything written back."""
    a, b = world.publish("1"), world.publish("2")
    world.until(lambda: world.served() == {"auto/1": a, "auto/2": b}, "the first two versions")
    old = {name: {"name": name, "value": text} for name, text in world.registry.task().sections.items()}
    c = world.publish("3")
    world.until(lambda: world.served() == {"auto/2": b, "auto/3": c} == world.section(), "the third version")
    assert set() == world.faults

    container = world.client.start("-c", CONTAINER, world.service, errors=None)
    try:
        world.until(lambda: world.section() == {"auto/1": b, "auto/2": c}, "the container counts from 1")
        d = world.publish("4")
        world.until(lambda: world.section() == {"auto/2": c, "auto/3": d}, "the container's next version")
        world.until(lambda: world.served() == {"auto/3": c, "auto/4": d}, "our next version")
        rounds = world.rounds  # for what must not happen there is nothing else to wait for
        world.until(lambda: world.rounds > rounds + 10, "ten rounds of our own")
        assert {"auto/2": c, "auto/3": d} == world.section(), "its own Triton helper must find its own numbers"
        world.until(lambda: {"auto-update auto"} == world.faults, "the fault that is seen")

        world.registry.call("tasks", "edit", {"task": world.service, "configuration": old, "force": True})
        e = world.publish("5")
        world.until(lambda: world.served() == {"auto/4": d, "auto/5": e}, "after an old copy was written back")
        assert container.stdin is not None
        assert container.stdout is not None
        output, _ = container.communicate("end\n", timeout=LIMIT_S)
    finally:
        container.kill()
        container.communicate()
    counted = json.loads(output.rsplit("COUNTED ", 1)[1].splitlines()[0])
    assert "auto" in counted, "it was the real one that counted"
    wanted = {"auto/1": {a}, "auto/2": {b}, "auto/3": {c}, "auto/4": {d}, "auto/5": {e}}
    world.until(lambda: len(world.seen) == len(wanted), "that each was seen")
    assert wanted == world.seen
