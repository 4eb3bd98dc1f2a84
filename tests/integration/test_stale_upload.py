"""The stock tool that writes back what it read of a model before its upload ended, as happens on a busy machine.

`clearml-serving model upload` uploads in a thread, which records the address of the data. The main thread reads the
model meanwhile, and can write that back once the upload has ended: the placeholder of an upload. Here the two threads
of the real SDK wait for each other, so that it happens every time (clearml 2.1.12, clearml-serving 1.3.5).
"""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from deploy.controlplane.testing import control_plane
from deploy.tools.clearml_serving import PROGRAM
from tests.e2e.test_deploy import WORDS
from tests.e2e.test_up_demo import command
from tests.stock import Client

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

STALE = """
import os, sys
happened = os.environ.get("TEST_STALE_UPLOAD", "")
if happened and "upload" in sys.orig_argv and not os.path.exists(happened):
    import threading
    from clearml.backend_interface.model import Model

    was_read, is_recorded = threading.Event(), threading.Event()
    reload, called = Model._reload, Model._upload_callback

    def read_before_it_ends(self):
        data = reload(self)
        if threading.current_thread() is threading.main_thread() and self.get_num_results():
            was_read.set()
            is_recorded.wait(60)
            open(happened, "w").close()
        return data

    def recorded_after_it_was_read(self, res, cb=None):
        if res:
            was_read.wait(60)
        called(self, res, cb)
        if res:
            is_recorded.set()

    Model._reload, Model._upload_callback = read_before_it_ends, recorded_after_it_was_read
"""


@pytest.fixture
def happened(tmp_path: Path) -> Path:
    """The file that is there once it has happened; it happens once."""
    return tmp_path / "happened"


@pytest.fixture
def variables(tmp_path: Path, happened: Path) -> dict[str, str]:
    """Of a user whose SDK reads and writes in this order."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(STALE)
    return {"PYTHONPATH": str(folder), "TEST_STALE_UPLOAD": str(happened)}


def test_the_stock_tool_can_lose_the_address_of_its_data(
    variables: dict[str, str], happened: Path, tmp_path: Path
) -> None:
    """And says that all went well."""
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.onnx").write_bytes(b"weights")
    with control_plane(tmp_path / "state") as server:
        client = Client(server, tmp_path, **variables)
        task = client.create("serving")
        named = ("--name", "a model", "--project", "models", "--path", str(weights), "--framework", "onnx")
        client.run(*PROGRAM, "--id", task, "model", "upload", *named, "--publish")
        (model,) = server.call("models.get_all")["models"]
    assert happened.exists()
    assert model["ready"] is True
    assert model["uri"].endswith("/uploading_file")


def test_deploy_uploads_once_more(variables: dict[str, str], happened: Path, tmp_path: Path) -> None:
    """The endpoint names a model that has data."""
    argv = [*command(), "deploy", str(WORDS), "--endpoint", "words", "--url", "http://127.0.0.1:9"]
    with control_plane(tmp_path / "state") as server:
        client = Client(server, tmp_path, **variables)
        task = client.create("serving")
        environment = {**client.environment, "CLEARML_SERVING_TASK_ID": task}
        said = ""
        with subprocess.Popen(argv, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            for line in running.stderr:
                said += line
                if "waiting for words/1" in line:
                    running.send_signal(signal.SIGINT)
            running.wait(240)
        (model,) = server.call("models.get_all")["models"]
        endpoints = server.call("tasks.get_by_id", task=task)["task"]["configuration"]["endpoints"]["value"]
    assert happened.exists(), said
    assert "uploading once more" in said
    assert not re.search("uploading_file|failed_uploading", model["uri"])
    assert model["id"] in endpoints
