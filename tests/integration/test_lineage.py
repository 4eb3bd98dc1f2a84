"""Lineage of a model that a real training script made, through the SDK and the embedded control plane."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.controlplane.testing import control_plane
from deploy.tools.clearml_serving import PROGRAM

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


def test_a_trained_model_leads_back_to_its_task(tmp_path: Path) -> None:
    """Model, Task, parameters, data and links, as the command prints them."""
    root = str(Path(__file__).parents[2])
    with control_plane(tmp_path / "state") as server:
        environment = {**server.client_environment(os.environ, tmp_path), "PYTHONPATH": root}

        def run(*argv: str) -> str:
            done = subprocess.run([sys.executable, *argv], env=environment, cwd=tmp_path, capture_output=True,
                                  text=True, timeout=120)  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        found = re.search(r"IDS (\w+) (\w+)", run("-c", TRAIN))
        assert found
        model, task = found.groups()
        service = re.search(r"id=([0-9a-f]{32})", run(*PROGRAM, "create", "--name", "lineage"))
        assert service
        tensors = [f"--{side}-{what}" for side in ("input", "output") for what in ("size", "name", "type")]
        described = [part for flag, value in zip(tensors, ["4", "x", "float32", "2", "y", "float32"], strict=True)
                     for part in (flag, value)]  # fmt: skip
        run(*PROGRAM, "--id", service[1], "model", "add", "--engine", "triton", "--endpoint", "e",
            "--version", "1", "--model-id", model, *described)  # fmt: skip
        command = ["-m", "deploy.admin.cli", "lineage", "e/1", "--serving-task-id", service[1]]
        answer = json.loads(run(*command, "--json"))
        assert (model, task) == (answer["model"]["id"], answer["task"]["id"])
        assert "0.25" == answer["task"]["hyperparameters"]["Args/lr"]
        assert ["lineage", [task]] == [answer["task"]["project"], [d["id"] for d in answer["datasets"]]]
        assert f"/{task}/" in answer["task"]["link"]
        [pipeline] = answer["parents"]
        assert ("pipeline", "nightly") == (pipeline["role"], pipeline["name"])
        assert [(task, "training", True)] == [(s["id"], s["name"], s["is_own"]) for s in pipeline["steps"]]
        assert model in run(*command)
        run(*PROGRAM, "--id", service[1], "model", "remove", "--endpoint", "e/1")
        retired = run("-m", "deploy.admin.cli", "lineage", model, "--serving-task-id", service[1])
        assert "no version of the serving Task (any more)" in retired
        assert task in retired
