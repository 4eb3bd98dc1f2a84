"""Who did it, with the unmodified clearml-serving CLI, our own commands and a controller on a real control plane."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from deploy.controller.history.recorder import Observer
from deploy.tools import sections
from gateway import hocon, spec
from gateway.registry import ClearMLRegistry
from tests.stock import Client

pytestmark = pytest.mark.integration


def test_the_command_that_is_told_for_a_lost_endpoint_restores_it(client: Client) -> None:
    """Two stock clients at once: the second writes back what it had read before the first had added its endpoint."""
    client.create("history")
    registry = ClearMLRegistry(client.task)
    observe = Observer(registry)
    model = client.upload("tiny-model", _file(client, "m.onnx"))
    client.add("early", "--model-id", model)
    observe(read_before := registry.task())
    client.add(
        "lost", "--version", "2", "--model-id", model, "--preprocess", _file(client, "p.py"), "--aux-config",
        "max_batch_size=8", "dynamic_batching.preferred_batch_size=[4, 8]", "gateway.task=fill-mask",
    )  # fmt: skip
    observe(added := registry.task())
    stale = hocon.parse(read_before.sections["endpoints"])
    stale["second"] = {**stale["early"], "serving_url": "second"}
    registry.write({"endpoints": sections.render(stale)})
    observe(registry.task())

    (told,) = (one for one in json.loads(client.ours("history", "--json"))["entries"] if one["restore"])
    assert told["subject"] == "lost/2"
    printed, _, command = told["restore"].rpartition(" | ")
    assert command == "triton-gateway apply -f -"
    client.ours("apply", "-f", _file(client, "lost.json", shlex.split(printed)[2]))
    restored = registry.task()
    wanted, found = (spec.decode(task).endpoints["lost/2"] for task in (added, restored))
    assert wanted.preprocess is not None
    assert found.preprocess is not None
    assert replace(wanted, preprocess=None) == replace(found, preprocess=None)
    observe(restored)
    assert "lost" not in registry.reports.read().get("leader", {})


def _file(client: Client, name: str, text: str = "class Preprocess:\n    pass\n") -> str:
    path = client.folder / name
    path.write_text(text)
    return str(path)
