"""Model sync from a registry to the real Triton: what users change, what breaks, what comes back.

All tests share one Triton and one model sync, each with an endpoint of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from concurrent.futures import Future

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from deploy.sync.model_folder.execution import Tuning
from deploy.sync.run import run_sync
from deploy.sync.settings import Grace, SyncSettings
from deploy.sync.stubs import stubs_of
from gateway.control.load_requests import LoadRequests
from gateway.errors import ModelNotReady
from gateway.triton.backend import TritonBackend
from tests.fakes import FakeRegistry
from tests.integration.conftest import ask_triton
from tests.processes import ServerFailed
from tests.triton_server import TritonServer
from tests.waiting import LIMIT_S, soon, until

pytestmark = pytest.mark.integration


@contextlib.contextmanager
def syncing(registry, folder, address):
    """Run model sync for the Triton at ``address`` while the context is open; yields it once it has started."""
    settings = SyncSettings(
        folder, folder / "models", address, engine="python", poll_s=0.2, records_s=0.2, retry_first_s=0.2,
        grace=Grace(settle_s=1.0, idle_s=0.0), tuning=Tuning(instances=1),
    )  # fmt: skip
    stop, started = threading.Event(), Future()
    arguments = {"args": (settings, registry, stop), "kwargs": {"started": started.set_result}}
    thread = threading.Thread(target=run_sync, **arguments)
    thread.start()
    try:
        yield started.result(LIMIT_S)
    finally:
        stop.set()
        thread.join(LIMIT_S)
        assert not thread.is_alive()


class World:
    """A Triton and a running sync on the same state folder; ``make`` saves a token model in a folder of this name."""

    def __init__(self, folder, make_token_model):
        self.registry, self.state = FakeRegistry(), folder / "state"
        self.make = lambda name: make_token_model(folder / "uploads" / name / "net.onnx")
        self.launch()
        self.grpc = self.triton.grpc
        self.client = triton.InferenceServerClient(self.grpc)

    def launch(self, ports=None):
        def started():
            with contextlib.suppress(ServerFailed):  # somebody's connection has a port of the last one for the moment
                return TritonServer(self.state, self.state / "models", ports=ports)

        self.triton = until(started)

    def serve(self, url, path, **fields):
        """Register a file as a model of its own, and let an endpoint serve it."""
        model_id = f"m{len(self.registry.models)}"
        endpoint, _, version = url.partition("/")
        self.registry.add_model(model_id, path, name=url)
        self.registry.add_endpoint(endpoint, model_id, version=version, **fields)

    def name(self, url):
        """What Triton calls the model that serves ``url`` now."""
        return self.models()[url]["name"]

    def served(self, url):
        """A new model behind a new endpoint, once it is loaded: what Triton calls it."""
        self.serve(url, self.make(url))
        self.wait(lambda: self.ready(url))
        return self.name(url)

    def models(self):
        return {one["url"]: one for one in self.sync.status()["models"]}

    def wait(self, fact):
        """Until ``fact()``; what Triton has said is shown if it does not come true."""
        try:
            until(fact)
        except AssertionError:
            sys.stderr.write((self.state / "logs" / "triton.log").read_text(errors="replace")[-4000:])
            raise

    def ready(self, url):
        return self.models().get(url, {}).get("state") == "loaded" and self.holds(self.models()[url]["name"])

    def holds(self, name):
        try:
            return self.client.is_model_ready(name)
        except InferenceServerException:  # it is not connected again yet
            return False

    def logits(self, url, feeds):
        """Ask the model that serves ``url`` now."""
        return ask_triton(self.grpc, self.models()[url]["name"], feeds)["logits"].tolist()


@pytest.fixture(scope="module")
def world(tmp_path_factory, make_token_model):
    """See the class."""
    made = World(tmp_path_factory.mktemp("world"), make_token_model)
    with syncing(made.registry, made.state, made.grpc) as made.sync:
        yield made
    made.client.close()
    made.triton.stop()


def test_endpoints_appear_change_and_disappear_in_the_real_triton(world, token_inputs):
    """Added: answers. Another model: a new name beside the old one, which leaves. Removed: unloaded, off the disk."""
    old = world.served("a/1")
    assert [[6.0]] == world.logits("a/1", token_inputs([1, 2, 3]))
    world.serve("a/1", world.make("another"))
    world.wait(lambda: world.ready("a/1") and world.name("a/1") != old)
    new = world.name("a/1")
    world.wait(lambda: not (world.state / "models" / old).exists())
    assert (False, True) == (world.client.is_model_ready(old), world.client.is_model_ready(new))
    del world.registry.endpoints["a/1"]
    world.wait(lambda: not (world.state / "models" / new).exists() and "a/1" not in world.models())
    assert not world.client.is_model_ready(new)


def test_a_killed_triton_is_filled_again_without_the_registry(world, token_inputs):
    """Kill -9 while ClearML is down: restarted, reloaded from disk, no stub of the old one left."""
    name = world.served("killed")
    world.registry.is_up = False
    os.kill(world.triton.pid, signal.SIGKILL)
    world.triton.stop()
    world.launch(world.triton.ports)
    world.wait(lambda: world.holds(name) and world.ready("killed"))
    assert [[3.0]] == world.logits("killed", token_inputs([1, 2]))
    world.wait(lambda: 1 == len(stubs_of(world.state / "models")[name]))
    world.registry.is_up = True


def test_a_killed_stub_is_replaced(world, token_inputs):
    """Triton would call the model READY for ever and fail every request."""
    name = world.served("stub")

    def stubs():
        return stubs_of(world.state / "models").get(name, set())

    (stub,) = stubs()
    # Sync must have seen it alive once before it can miss it.
    world.wait(lambda: world.sync._sees_stubs)
    os.kill(stub, signal.SIGKILL)

    def answers():
        try:
            return world.logits("stub", token_inputs([1, 2])) == [[3.0]]
        except InferenceServerException:  # Triton still tells of the old stub, or the new one is starting
            return False

    world.wait(lambda: stubs() and stub not in stubs() and answers())


def test_a_slow_download_does_not_delay_another_model(world, monkeypatch):
    """Downloads run side by side."""
    gate = threading.Event()
    plain = world.registry.download

    def download(uri, folder):
        if "/slow/" in uri:
            assert gate.wait(LIMIT_S)
        return plain(uri, folder)

    monkeypatch.setattr(world.registry, "download", download)
    world.serve("slow", world.make("slow"))
    world.served("fast")
    world.wait(lambda: world.models()["slow"]["doing"] == "downloading")
    gate.set()
    world.wait(lambda: world.ready("slow"))


async def test_a_model_that_nobody_asks_for_is_unloaded_and_a_request_brings_it_back(world, token_inputs):
    """Triton's own statistics tell when it was asked last; the request waits until sync loads it."""
    world.serve("cold", world.make("cold"), auxiliary_cfg={"gateway": {"unload_after": "10s"}})
    await soon(lambda: "idle" in world.models().get("cold", {}).get("doing", ""))
    name = world.name("cold")
    assert not world.holds(name)
    backend = TritonBackend(world.grpc, cold_s=LIMIT_S, ask_to_load=LoadRequests(world.registry.ledger).make)
    try:
        with pytest.raises(ModelNotReady):
            await backend.infer(name, token_inputs([1, 2, 3]), ["logits"], timeout=LIMIT_S)  # not known to be unloaded
        leave = backend.expect_cold(name)
        answer = await backend.infer(name, token_inputs([1, 2, 3]), ["logits"], timeout=LIMIT_S)
        assert [[6.0]] == answer["logits"].tolist()
        leave()
    finally:
        await backend.close()
