"""Model sync from a registry to the real Triton: what users change, what breaks, what comes back."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from deploy.sync.model_folder.model_config import Tuning
from deploy.sync.plan import Grace
from deploy.sync.run import run_sync
from deploy.sync.settings import SyncSettings
from deploy.sync.stubs import count_stubs
from deploy.tools.errors import PortTaken
from deploy.tritonserver.launcher import Ports, TritonLauncher, detect_server
from gateway.registry.ledger import Record
from gateway.registry.reports import read
from tests.fakes import FakeRegistry
from tests.integration.conftest import ask_triton
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.integration


def serve(registry, url, path, **fields):
    """Register a file as a model of its own, and let an endpoint serve it."""
    model_id = f"m{len(registry.models)}"
    endpoint, _, version = url.partition("/")
    registry.add_model(model_id, path, name=url)
    registry.add_endpoint(endpoint, model_id, version=version, **fields)


@pytest.fixture
def world(tmp_path, make_token_model):
    """A launcher and a running sync on the same state folder; ``wait`` waits for a state of an endpoint."""
    w = SimpleNamespace(registry=FakeRegistry(), state=tmp_path / "state", stop=threading.Event())
    w.make = lambda name: make_token_model(tmp_path / "uploads" / name / "net.onnx")
    w.sync = None

    def launch(ports=None):
        w.launcher = TritonLauncher(
            detect_server(), state_dir=w.state, repository=w.state / "models", ports=ports, exit_timeout_s=1.0
        )

        def started():
            with contextlib.suppress(PortTaken):  # somebody's connection has a port of the last one for the moment
                return w.launcher.start(timeout_s=LIMIT_S)

        return until(started)

    w.launch = launch
    w.grpc = launch().grpc
    w.client = triton.InferenceServerClient(w.grpc)
    w.settings = SyncSettings(
        w.state,
        w.state / "models",
        w.grpc,
        engine="python",
        poll_s=0.2,
        records_s=0.2,
        retry_first_s=0.2,
        grace=Grace(settle_s=1.0, idle_s=0.0),
        tuning=Tuning(instances=1),
    )

    def begin():
        w.stop.clear()
        ready = threading.Event()
        w.thread = threading.Thread(
            target=run_sync,
            args=(w.settings, w.registry, w.stop),
            kwargs={"started": lambda s: (setattr(w, "sync", s), ready.set())},
        )
        w.thread.start()
        assert ready.wait(LIMIT_S)

    def end():
        w.stop.set()
        w.thread.join(LIMIT_S)
        assert not w.thread.is_alive()

    def models():
        path = w.settings.status_path
        return {m["url"]: m for m in json.loads(path.read_text())["models"]} if path.exists() else {}

    def wait(holds):
        until = time.monotonic() + LIMIT_S
        while not holds():
            if time.monotonic() > until:
                said = (w.state / "logs" / "triton.log").read_text(errors="replace")[-4000:]
                pytest.fail(f"{w.settings.status_path.read_text()}\n{said}")
            time.sleep(0.05)

    def ready(url):
        return models().get(url, {}).get("state") == "loaded" and holds(models()[url]["name"])

    def holds(name):
        try:
            return w.client.is_model_ready(name)
        except InferenceServerException:  # it is not connected again yet
            return False

    w.begin, w.end, w.models, w.wait, w.ready, w.holds = begin, end, models, wait, ready, holds
    begin()
    yield w
    end()
    w.client.close()
    w.launcher.stop()


def logits(world, url, token_inputs, ids):
    """Ask the model that serves ``url`` now."""
    return ask_triton(world.grpc, world.models()[url]["name"], token_inputs(ids))["logits"].tolist()


def test_endpoints_appear_change_and_disappear_in_the_real_triton(world, token_inputs):
    """Added: answers. Another model: a new name beside the old one, which leaves. Removed: unloaded, off the disk."""
    serve(world.registry, "a/1", world.make("one"))
    world.wait(lambda: world.ready("a/1"))
    assert [[6.0]] == logits(world, "a/1", token_inputs, [1, 2, 3])
    old = world.models()["a/1"]["name"]

    serve(world.registry, "a/1", world.make("two"))
    world.wait(lambda: world.ready("a/1") and world.models()["a/1"]["name"] != old)
    new = world.models()["a/1"]["name"]
    world.wait(lambda: not (world.state / "models" / old).exists())
    assert (False, True) == (world.client.is_model_ready(old), world.client.is_model_ready(new))

    del world.registry.endpoints["a/1"]
    world.wait(lambda: not (world.state / "models" / new).exists() and world.models() == {})
    assert not world.client.is_model_ready(new)


def test_a_killed_triton_is_filled_again_without_the_registry(world, token_inputs):
    """Kill -9 while ClearML is down: restarted, reloaded from disk, no stub of the old one left."""
    serve(world.registry, "a", world.make("one"))
    world.wait(lambda: world.ready("a"))
    world.registry.is_up = False
    addresses = world.launcher.addresses
    os.kill(world.launcher.pid, signal.SIGKILL)
    world.wait(lambda: world.launcher.ended)
    world.launch(Ports(*(int(address.rpartition(":")[2]) for address in (addresses.grpc, addresses.http))))
    world.wait(lambda: world.holds(world.models()["a"]["name"]))
    world.wait(lambda: world.ready("a"))
    assert [[3.0]] == logits(world, "a", token_inputs, [1, 2])
    world.wait(lambda: [1] == list(count_stubs(world.state / "models").values()))


def test_a_killed_stub_is_replaced(world, token_inputs):
    """Triton would call the model READY for ever and fail every request."""
    serve(world.registry, "a", world.make("one"))
    world.wait(lambda: world.ready("a"))
    name = world.models()["a"]["name"]

    def stubs():
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                model = (entry.parent / "cwd").readlink() / entry.read_bytes().split(b"\0")[1].decode()
                if model.is_relative_to(world.state / "models" / name):
                    found.append(int(entry.parent.name))
            except (OSError, IndexError):
                continue
        return found

    (stub,) = stubs()
    # Sync must have seen it alive once before it can miss it.
    world.wait(lambda: world.sync.sees_stubs)
    os.kill(stub, signal.SIGKILL)

    def answers():
        try:
            return logits(world, "a", token_inputs, [1, 2]) == [[3.0]]
        except InferenceServerException:  # Triton still tells of the old stub, or the new one is starting
            return False

    world.wait(lambda: stubs() and stub not in stubs() and answers())


def test_a_slow_download_does_not_delay_another_model(world):
    """Downloads run side by side."""
    gate = threading.Event()
    slow = world.make("slow")
    plain = world.registry.download

    def download(uri, folder):
        if "/slow/" in uri:
            assert gate.wait(LIMIT_S)
        return plain(uri, folder)

    world.registry.download = download
    serve(world.registry, "slow", slow)
    serve(world.registry, "fast", world.make("fast"))
    world.wait(lambda: world.ready("fast"))
    world.wait(lambda: world.models()["slow"]["doing"] == "downloading")
    gate.set()
    world.wait(lambda: world.ready("slow"))


def test_a_model_that_was_overwritten_is_refused_by_name_and_what_is_loaded_stays(world, token_inputs):
    """A sync that has lost its files gets the bytes of another upload; the right ones end the refusal."""
    path = world.make("one")
    serve(world.registry, "a", path)
    world.wait(lambda: world.ready("a"))
    name, first = world.models()["a"]["name"], path.read_bytes()

    def reported():
        told = read(world.registry.reports.read()).values()
        return [one.sha256 for models in told for one in models if one.name == name and one.sha256]

    world.wait(reported)
    assert [hashlib.sha256(first).hexdigest()] == reported()
    content = {"name": "a", "uri": path.as_uri(), "sha256": reported()[0]}  # as the controller records it
    world.registry.ledger.write([Record("content_hash", "m0", content)])
    world.end()
    path.write_bytes(world.make("two").read_bytes() + b"another upload")
    shutil.rmtree(world.state / "cache")
    shutil.rmtree(world.state / "models" / name)
    world.begin()
    said = "model a \\(m0\\) was registered with sha256.*another upload has overwritten it"
    world.wait(lambda: re.search(said, world.models().get("a", {}).get("reason", ""), re.S))
    assert world.client.is_model_ready(name)
    path.write_bytes(first)
    world.wait(lambda: world.ready("a"))
    assert [[3.0]] == logits(world, "a", token_inputs, [1, 2])
