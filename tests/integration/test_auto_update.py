"""Auto-update with the unmodified clearml-serving CLI, the real SDK and the embedded control plane."""

from __future__ import annotations

import json
import time

import pytest

from deploy.controller.auto_update import AutoUpdate
from gateway import hocon
from gateway.registry.clearml import ClearMLRegistry
from tests import warm
from tests.stock import TENSORS, Client

pytestmark = pytest.mark.integration

# What clearml-serving's own Triton side reads.
STOCK_READER = """
import json, sys
from clearml_serving.serving.model_request_processor import ModelRequestProcessor
found = ModelRequestProcessor(task_id=sys.argv[1]).get_synced_endpoints()
print("STOCK " + json.dumps({k: [e.model_id, e.version, e.engine_type, e.input_name] for k, e in found.items()}))
"""


def test_published_models_become_versions(client: Client) -> None:
    """A controller of its own after every publication; the stock reader understands what it wrote."""
    client.create("auto")

    def upload(name: str, content: str) -> str:
        (client.folder / "model.onnx").write_text(content)
        return client.upload(name, "model.onnx", project="auto")

    def versions() -> dict[str, str]:
        """Url to model id, when a new controller changes nothing any more."""
        registry = ClearMLRegistry(client.task)
        auto = AutoUpdate(
            registry, lambda: {(url, one.model_id) for url, one in registry.spec().endpoints.items()},
            clock=time.monotonic, every_s=0, settle_s=0,
        )  # fmt: skip
        for _ in range(20):
            if not auto(registry.task()):
                break
        written = hocon.parse(registry.task().sections["model_monitoring_eps"])
        return {key: entry["model_id"] for key, entry in written.items()}

    first = upload("my model", "1")
    rule = ("--name", "my model", "--project", "auto", "--published", "--max-versions", "2", *TENSORS)
    client.stock("model", "auto-update", "--engine", "triton", "--endpoint", "grp/m", *rule)
    assert {"grp/m/1": first} == versions()
    second = upload("my model", "2")
    upload("another", "3")
    versions()
    third = upload("my model", "4")
    assert {"grp/m/2": second, "grp/m/3": third} == versions()

    stock = json.loads(client.run(*warm.program(STOCK_READER), client.task).rsplit("STOCK ", 1)[1])
    assert {"grp/m/2": [second, "2", "triton", ["x"]], "grp/m/3": [third, "3", "triton", ["x"]]} == stock
    # The stock CLI lives with the sections and keeps them.
    client.add("fixed", "--model-id", first)
    assert {"grp/m/2": second, "grp/m/3": third} == versions()

    # Archived in the web application: its number is not given again.
    client.server.call("models.archive_many", ids=[third])
    fourth = upload("my model", "5")
    assert {"grp/m/2": second, "grp/m/4": fourth} == versions()

    # A folder that holds nothing, and a file that is gone: published, and no version.
    (client.folder / "empty").mkdir()
    client.upload("my model", "empty", project="auto")
    model = client.server.call("models.get_by_id", model=fourth)["model"]
    gone = client.server.call("models.create", name="my model", uri=f"{model['uri']}-gone", project=model["project"])
    client.server.call("models.set_ready", model=gone["id"], publish_task=False)
    assert {"grp/m/2": second, "grp/m/4": fourth} == versions()

    client.stock("model", "remove", "--endpoint", "grp/m")
    assert {} == versions()
