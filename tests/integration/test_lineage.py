"""Lineage of a model that a real training script made, through the SDK and the embedded control plane."""

from __future__ import annotations

import json
import re

import pytest

from tests.stock import Client

pytestmark = pytest.mark.integration

TRAIN = """
from pathlib import Path
from clearml import OutputModel, Task
task = Task.init("lineage", "training", auto_connect_frameworks=False, auto_resource_monitoring=False)
pipeline = Task.create("lineage", "nightly", task_type="controller")
pipeline.set_system_tags(["pipeline"])
task.set_parent(pipeline)
task.set_parameter("Args/lr", 0.25)
task.set_parameter("Args/dataset_id", task.id)
Path("model.onnx").write_bytes(b"weights")
model = OutputModel(task=task, name="trained", framework="onnx")
model.update_weights("model.onnx", auto_delete_file=False)
model.publish()
print("IDS", model.id, task.id)
task.close()
"""


@pytest.mark.long
def test_a_trained_model_leads_back_to_its_task(client: Client) -> None:
    """Model, Task, parameters, data and links, as the command prints them."""
    found = re.search(r"IDS (\w+) (\w+)", client.run("-c", TRAIN))
    assert found
    model, task = found.groups()
    client.create("lineage")
    client.add("e", "--version", "1", "--model-id", model)
    answer = json.loads(client.ours("lineage", "e/1", "--json"))
    assert (model, task) == (answer["model"]["id"], answer["task"]["id"])
    assert "0.25" == answer["task"]["hyperparameters"]["Args/lr"]
    assert ["lineage", [task]] == [answer["task"]["project"], [d["id"] for d in answer["datasets"]]]
    assert f"/{task}/" in answer["task"]["link"]
    [pipeline] = answer["parents"]
    assert ("pipeline", "nightly") == (pipeline["role"], pipeline["name"])
    assert model in client.ours("lineage", "e/1")
    client.stock("model", "remove", "--endpoint", "e/1")
    retired = client.ours("lineage", model)
    assert "not in the serving Task (any more)" in retired
    assert task in retired
    assert f"ClearML has no model {'0' * 32}" in client.ours("lineage", "0" * 32, code=1, both=True)
