"""Auto-update with the unmodified clearml-serving CLI, the real SDK and the embedded control plane."""

from __future__ import annotations

import json

import pytest

from gateway import hocon
from tests import warm
from tests.control_planes import control_plane
from tests.stock import TENSORS, Client

pytestmark = pytest.mark.integration

# Looks once, in a process of its own like every controller; prints what it sees when nothing changes any more.
WRITER = """
import json, sys, time
from deploy.controller.auto_update import AutoUpdate
from gateway.registry.clearml import ClearMLRegistry
store = ClearMLRegistry(sys.argv[1])
loaded = lambda: {(u, e.model_id) for u, e in store.spec().endpoints.items()}
auto = AutoUpdate(store, loaded, clock=time.monotonic, every_s=0, settle_s=0)
for _ in range(20):
    if not auto(store.task()):
        break
print("SECTIONS " + json.dumps(store.task().sections))
"""

# What clearml-serving's own Triton side reads.
STOCK_READER = """
import json, sys
from clearml_serving.serving.model_request_processor import ModelRequestProcessor
found = ModelRequestProcessor(task_id=sys.argv[1]).get_synced_endpoints()
print("STOCK " + json.dumps({k: [e.model_id, e.version, e.engine_type, e.input_name] for k, e in found.items()}))
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Of a control plane, with a serving Task."""
    with control_plane(tmp_path_factory.mktemp("state")) as server:
        made = Client(server, tmp_path_factory.mktemp("client"))
        made.create("auto")
        yield made


def upload(client, name, content):
    """Publish a model; returns its id."""
    (client.folder / "model.onnx").write_text(content)
    return client.upload(name, "model.onnx", project="auto")


def versions(output):
    """Url to model id, from what a writer printed."""
    texts = json.loads(output.rsplit("SECTIONS ", 1)[1])
    return {key: entry["model_id"] for key, entry in hocon.parse(texts["model_monitoring_eps"]).items()}


def test_published_models_become_versions(client):
    """A controller of its own after every publication; the stock reader understands what it wrote."""
    service = client.task
    first = upload(client, "my model", "1")
    client.stock("model", "auto-update", "--engine", "triton", "--endpoint", "grp/m",
                 "--name", "my model", "--project", "auto", "--published", "--max-versions", "2", *TENSORS)  # fmt: skip
    assert {"grp/m/1": first} == versions(client.run(*warm.program(WRITER), service))

    second = upload(client, "my model", "2")
    other = upload(client, "another", "3")
    client.run(*warm.program(WRITER), service)
    third = upload(client, "my model", "4")
    output = client.run(*warm.program(WRITER), service)
    assert {"grp/m/2": second, "grp/m/3": third} == versions(output)
    assert other not in output.rsplit("SECTIONS ", 1)[1]

    stock = json.loads(client.run(*warm.program(STOCK_READER), service).rsplit("STOCK ", 1)[1])
    assert {"grp/m/2": [second, "2", "triton", ["x"]], "grp/m/3": [third, "3", "triton", ["x"]]} == stock
    # The stock CLI lives with the sections and keeps them.
    client.add("fixed", "--model-id", first)
    assert {"grp/m/2": second, "grp/m/3": third} == versions(client.run(*warm.program(WRITER), service))

    # Archived in the web application: its number is not given again.
    archive = ("from gateway.registry.clearml import ClearMLRegistry; import sys;"
               "ClearMLRegistry(sys.argv[1]).call('models', 'archive_many', {'ids': [sys.argv[2]]})")  # fmt: skip
    client.run(*warm.program(archive), service, third)
    fourth = upload(client, "my model", "5")
    assert {"grp/m/2": second, "grp/m/4": fourth} == versions(client.run(*warm.program(WRITER), service))

    # A folder that holds nothing, and a file that is gone: published, and no version.
    (client.folder / "empty").mkdir()
    client.upload("my model", "empty", project="auto")
    gone = ("from gateway.registry.clearml import ClearMLRegistry; import sys; r = ClearMLRegistry(sys.argv[1]);"
            "uri = r.model(sys.argv[2]).uri; name = r.model(sys.argv[2]).name;"
            "new = r.call('models', 'create', {'name': name, 'uri': uri + '-gone', 'project':"
            "r.model(sys.argv[2]).project});"
            "r.call('models', 'set_ready', {'model': new['id'], 'publish_task': False})")  # fmt: skip
    client.run(*warm.program(gone), service, fourth)
    assert {"grp/m/2": second, "grp/m/4": fourth} == versions(client.run(*warm.program(WRITER), service))

    client.stock("model", "remove", "--endpoint", "grp/m")
    assert {} == versions(client.run(*warm.program(WRITER), service))
