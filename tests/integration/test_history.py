"""Who did it, with the unmodified clearml-serving CLI, our own commands and a controller on a real control plane."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.controller.history.recorder import Observer
from deploy.tools import sections
from gateway import hocon, spec
from gateway.registry import ClearMLRegistry
from tests.control_planes import control_plane
from tests.stock import Client
from tests.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Client]:
    with control_plane(tmp_path / "state") as server:
        client = Client(server, tmp_path, TRITON_GATEWAY_USER="ann")
        client.create("history")
        with client.here():
            yield client


class Watching:
    """What a controller does about history, as often as it can."""

    def __init__(self, task: str) -> None:
        self._registry = ClearMLRegistry(task)
        self._observer = Observer(self._registry)
        self._stop = threading.Event()
        self.looks = 0
        self._observer(self._registry.task())
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self._observer(self._registry.task())
            self.looks += 1

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def has_looked(self) -> None:
        """Wait until it has seen what was done before: two changes between two of its looks are one."""
        looks = self.looks
        until(lambda: self.looks > looks + 1)  # one may have begun before


def test_the_command_that_is_told_for_a_lost_endpoint_restores_it(served: Client) -> None:
    """Two stock clients at once: the second writes back what it had read before the first had added its endpoint."""
    registry = ClearMLRegistry(served.task)
    observe = Observer(registry)
    model = served.upload("tiny-model", _file(served, "m.onnx"))
    served.add("early", "--model-id", model)
    observe(read_before := registry.task())
    served.add(
        "lost", "--version", "2", "--model-id", model, "--preprocess", _file(served, "p.py"), "--aux-config",
        "max_batch_size=8", "dynamic_batching.preferred_batch_size=[4, 8]", "gateway.task=fill-mask",
    )  # fmt: skip
    observe(added := registry.task())
    stale = hocon.parse(read_before.sections["endpoints"])
    stale["second"] = {**stale["early"], "serving_url": "second"}
    registry.write({"endpoints": sections.render(stale)})
    observe(registry.task())

    (told,) = (one for one in json.loads(served.ours("history", "--json"))["entries"] if one["restore"])
    assert told["subject"] == "lost/2"
    program, *words = shlex.split(told["restore"].replace("CODE", "p.py", 1), comments=True)
    assert program == "clearml-serving"
    assert words[:2] == ["--id", served.task]
    served.stock(*words[2:])
    restored = registry.task()
    wanted, found = (spec.decode(task).endpoints["lost/2"] for task in (added, restored))
    assert wanted.preprocess is not None
    assert found.preprocess is not None
    assert replace(wanted, preprocess=None) == replace(found, preprocess=None)
    observe(restored)
    assert "lost" not in registry.reports.read().get("leader", {})


def _file(served: Client, name: str) -> str:
    path = served.folder / name
    path.write_text("class Preprocess:\n    pass\n")
    return str(path)


@pytest.mark.long
def test_each_change_is_told_once_in_order(served: Client) -> None:
    with Watching(served.task) as controller:
        uploaded = served.stock(
            "model", "upload", "--name", "tiny-model", "--project", "models", "--framework", "custom", "--url",
            "https://example.com/m.bin",
        )  # fmt: skip
        model = re.search(r"model.*?([0-9a-f]{32})", uploaded, re.S | re.I)
        assert model

        def done(printed: str) -> str:
            controller.has_looked()
            return printed

        for version in ("1", "2"):
            done(served.add("e", "--version", version, "--model-id", model[1]))
        weights = ("--weights", "0.5", "0.5", "--input-endpoints", "e/1", "e/2")
        done(served.stock("model", "canary", "--endpoint", "e", *weights))
        done(served.ours("canary", "set", "--endpoint", "e", "2=10", "1=90"))
        files = ("--registry", "--pepper-file", "pepper")
        made = json.loads(done(served.ours("keys", "create", *files, "--tenant", "acme", "--json")))
        done(served.ours("keys", "revoke", made["id"], *files))
        done(served.stock("model", "remove", "--endpoint", "e/2"))
    shown: dict[str, Any] = json.loads(served.ours("history", "--json"))
    told = [(one["kind"], one["subject"], one["after"]) for one in shown["entries"] if one["kind"] != "default"]
    code = f"triton, model {model[1]}, x:float32[4] → y:float32[2]"
    assert [
        ("endpoint", "e/1", code), ("endpoint", "e/2", code), ("weight", "e", "e/1 50 %, e/2 50 %"),
        ("weight", "e", "e/1 90 %, e/2 10 %"), ("key", made["id"], "acme (default): infer,metadata on *"),
        ("key", made["id"], "revoked"), ("endpoint", "e/2", ""),
    ] == told  # fmt: skip
    by = [one["by"] for one in shown["entries"] if one["kind"] in ("weight", "key")]
    assert ["ann", "ann", "ann"] == by[1:]
    assert by[0].startswith("clearml-serving or ClearML's pages (user ")
    assert made["key"] not in json.dumps(shown)
