"""Who did it, with the unmodified clearml-serving CLI, our own commands and a controller on a real control plane."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.controller.history.recorder import Observer
from deploy.tools import sections
from gateway import hocon, spec
from gateway.registry import ClearMLRegistry
from tests.control_planes import control_plane
from tests.stock import Client

pytestmark = pytest.mark.integration


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Client]:
    with control_plane(tmp_path / "state") as server:
        client = Client(server, tmp_path, TRITON_GATEWAY_USER="ann")
        client.create("history")
        with client.here():
            yield client


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
