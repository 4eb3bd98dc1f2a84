"""Auto-update with the unmodified clearml-serving CLI, the real SDK and the embedded control plane."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.controlplane.testing import control_plane
from deploy.tools import sections
from deploy.tools.clearml_serving import PROGRAM

pytestmark = pytest.mark.integration

TENSORS = ["--input-size", "4", "--input-name", "x", "--input-type", "float32",
           "--output-size", "2", "--output-name", "y", "--output-type", "float32"]  # fmt: skip

# Looks once, in a process of its own like every model sync; prints what it sees when nothing changes any more.
WRITER = """
import json, sys, time
from deploy.modelsync.auto_update import AutoUpdate
from gateway.registry.clearml import ClearMLRegistry
store = ClearMLRegistry(sys.argv[1])
auto = AutoUpdate(store, clock=time.monotonic)
for _ in range(20):
    if not auto(store.task()):
        break
print("SECTIONS " + json.dumps({n: i["value"] for n, i in store.task()["configuration"].items()}))
"""

# What clearml-serving's own Triton side reads.
STOCK_READER = """
import json, sys
sys.modules["torch"] = None  # imported where there is one, for seconds, and not used
from clearml_serving.serving.model_request_processor import ModelRequestProcessor
found = ModelRequestProcessor(task_id=sys.argv[1]).get_synced_endpoints()
print("STOCK " + json.dumps({k: [e.model_id, e.version, e.engine_type, e.input_name] for k, e in found.items()}))
"""


class Client:
    """Runs programs as a client of one control plane."""

    def __init__(self, environment, directory):
        self.environment = environment
        self.directory = directory

    def start(self, *argv):
        return subprocess.Popen(
            [sys.executable, *argv], env=self.environment, cwd=self.directory, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def end(self, process):
        text, _ = process.communicate(timeout=120)
        assert process.returncode == 0, text
        return text

    def __call__(self, *argv):
        return self.end(self.start(*argv))

    def cli(self, *arguments):
        return self(*PROGRAM, *arguments)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A control plane and a client of it."""
    with control_plane(tmp_path_factory.mktemp("state")) as server:
        directory = tmp_path_factory.mktemp("client")
        environment = server.client_environment(os.environ, directory)
        environment["PYTHONPATH"] = str(Path(__file__).parents[2])
        yield Client(environment, directory)


def upload(client, service, name, content):
    """Publish a model; returns its id."""
    (client.directory / "model.onnx").write_text(content)
    text = client.cli("--id", service, "model", "upload", "--name", name, "--project", "auto", "--path", "model.onnx",
                      "--publish", "--framework", "onnx")  # fmt: skip
    return re.findall(r"new Model ID=([0-9a-f]{32})", text)[-1]


def versions(output):
    """Url to model id, from what a writer printed."""
    texts = json.loads(output.rsplit("SECTIONS ", 1)[1])
    return {key: entry["model_id"] for key, entry in sections.parse(texts["model_monitoring_eps"]).items()}


def test_published_models_become_versions_that_any_number_of_writers_agree_on(client):
    """Three writers at once after every publication; the stock reader understands what they wrote."""
    service = re.search(r"id=([0-9a-f]{32})", client.cli("create", "--name", "auto"))[1]
    first = upload(client, service, "my model", "1")
    client.cli("--id", service, "model", "auto-update", "--engine", "triton", "--endpoint", "grp/m",
               "--name", "my model", "--project", "auto", "--published", "--max-versions", "2", *TENSORS)  # fmt: skip
    outputs = [client.end(p) for p in [client.start("-c", WRITER, service) for _ in range(3)]]
    assert [{"grp/m/1": first}] * 3 == [versions(o) for o in outputs]

    second = upload(client, service, "my model", "2")
    other = upload(client, service, "another", "3")
    for process in [client.start("-c", WRITER, service) for _ in range(3)]:
        client.end(process)
    third = upload(client, service, "my model", "4")
    outputs = [client.end(p) for p in [client.start("-c", WRITER, service) for _ in range(3)]]
    assert [{"grp/m/2": second, "grp/m/3": third}] * 3 == [versions(o) for o in outputs]
    assert other not in outputs[0].rsplit("SECTIONS ", 1)[1]

    stock = json.loads(client("-c", STOCK_READER, service).rsplit("STOCK ", 1)[1])
    assert {"grp/m/2": [second, "2", "triton", ["x"]], "grp/m/3": [third, "3", "triton", ["x"]]} == stock
    # The stock CLI lives with the sections and keeps them.
    client.cli("--id", service, "model", "add", "--engine", "triton", "--endpoint", "fixed", "--model-id", first,
               *TENSORS)  # fmt: skip
    assert {"grp/m/2": second, "grp/m/3": third} == versions(client("-c", WRITER, service))

    # Archived in the web application: its number is not given again.
    archive = ("from gateway.registry.clearml import ClearMLRegistry; import sys;"
               "ClearMLRegistry(sys.argv[1]).call('models', 'archive_many', {'ids': [sys.argv[2]]})")  # fmt: skip
    client("-c", archive, service, third)
    fourth = upload(client, service, "my model", "5")
    assert {"grp/m/2": second, "grp/m/4": fourth} == versions(client("-c", WRITER, service))

    # A folder that holds nothing, and a file that is gone: published, and no version.
    (client.directory / "empty").mkdir()
    client.cli("--id", service, "model", "upload", "--name", "my model", "--project", "auto", "--path", "empty",
               "--publish", "--framework", "onnx")  # fmt: skip
    gone = ("from gateway.registry.clearml import ClearMLRegistry; import sys; r = ClearMLRegistry(sys.argv[1]);"
            "uri = r.model(sys.argv[2])['uri']; name = r.model(sys.argv[2])['name'];"
            "new = r.call('models', 'create', {'name': name, 'uri': uri + '-gone', 'project':"
            "r.model(sys.argv[2])['project']});"
            "r.call('models', 'set_ready', {'model': new['id'], 'publish_task': False})")  # fmt: skip
    client("-c", gone, service, fourth)
    assert {"grp/m/2": second, "grp/m/4": fourth} == versions(client("-c", WRITER, service))

    client.cli("--id", service, "model", "remove", "--endpoint", "grp/m")
    assert {} == versions(client("-c", WRITER, service))
