"""The unmodified clearml SDK and clearml-serving CLI against the embedded control plane, where the recorded exchanges
of tests/contract do not reach: training, artifacts, a restart, a kill.
"""

import asyncio
import hashlib
import http.client
import itertools
import json
import signal
import subprocess
import textwrap
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.laptop.registry_process import is_there
from deploy.tools.errors import DeployError
from tests.control_planes import RunningControlPlane, control_plane
from tests.stock import Client, ended
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.integration

TRAIN = """
    import hashlib, json, pathlib, sys
    from clearml import Model, OutputModel, Task
    task = Task.init(project_name="Training", task_name="train it", output_uri=True)
    task.add_tags(["nightly"])
    logger = task.get_logger()
    for step in range(3):
        logger.report_scalar("loss", "train", 1.0 / (step + 1), step)
    logger.report_single_value("accuracy", 0.91)
    logger.report_text("trained well")
    task.set_parameter("General/epochs", 3)
    task.connect_configuration({"layers": [1, 2]}, name="network")
    pathlib.Path("model.onnx").write_bytes(b"weights of the run")
    model = OutputModel(task=task, name="trained model", framework="ONNX", tags=["candidate"])
    model.update_weights("model.onnx", auto_delete_file=False)
    model.set_metadata("input_shape", "1x28x28", "str")
    pathlib.Path("data").mkdir()
    pathlib.Path("data/a.txt").write_text("a")
    task.upload_artifact("stats", artifact_object={"x": 1}, wait_on_upload=True)
    task.upload_artifact("folder", artifact_object="data", wait_on_upload=True)
    model.publish()
    task.flush(wait_for_uploads=True)
    task.close()
    print("RESULT", json.dumps({"task": task.id, "model": model.id}))
"""

READ = """
    import hashlib, json, pathlib, sys
    from clearml import Model, Task
    wanted = json.loads(sys.argv[1])
    task = Task.get_task(task_id=wanted["task"])
    query = {"project_name": "Training", "model_name": "trained model", "tags": ["candidate"]}
    found = Model.query_models(only_published=True, **query)
    path = found[0].get_local_copy(raise_on_error=True)
    folder = task.artifacts["folder"].get_local_copy(extract_archive=True)
    print("RESULT", json.dumps({
        "models": [model.id for model in found],
        "weights": pathlib.Path(path).read_bytes().decode(),
        "name": pathlib.Path(path).name,
        "metadata": found[0].get_metadata("input_shape"),
        "framework": found[0].framework,
        "tags": task.get_tags(),
        "status": task.get_status(),
        "stats": task.artifacts["stats"].get(),
        "hash": task.artifacts["stats"].hash,
        "file_hash": hashlib.sha256(
            pathlib.Path(task.artifacts["stats"].get_local_copy()).read_bytes()).hexdigest(),
        "folder": sorted(item.name for item in pathlib.Path(folder).iterdir()),
        "last": task.get_last_scalar_metrics()["loss"]["train"]["last"],
        "epochs": task.get_parameter("General/epochs"),
        "network": task.get_configuration_object_as_dict("network"),
        "by_tag": [item.id for item in Task.get_tasks(project_name="Training", tags=["nightly"])],
    }))
"""


def begun(server: RunningControlPlane, folder: Path, script: str, *arguments: str) -> "subprocess.Popen[str]":
    """A script that uses the SDK, in a process and a new folder of its own."""
    folder.mkdir()
    return Client(server, folder).start("-c", textwrap.dedent(script), *arguments)


def result(process: "subprocess.Popen[str]") -> Any:
    """What the script printed after RESULT."""
    printed = ended(process)
    (found,) = [line for line in printed.splitlines() if line.startswith("RESULT ")]
    return json.loads(found.removeprefix("RESULT "))


def test_training_script_is_recorded_and_read_back_by_another_process_after_a_restart(tmp_path: Path) -> None:
    """Last scalars, parameters, configuration, tags, artifacts with hashes, a published model: all of it."""
    with control_plane(tmp_path / "state") as server:
        trained = result(begun(server, tmp_path / "one", TRAIN))
        port = int(server.url.rpartition(":")[2])
    with control_plane(tmp_path / "state", port=port) as server:
        read = result(begun(server, tmp_path / "two", READ, json.dumps(trained)))
    hashed = read.pop("hash")
    assert read.pop("file_hash") == hashed
    assert read.pop("name").endswith("model.onnx")
    assert read.pop("last") == pytest.approx(1 / 3)
    assert read == {
        "models": [trained["model"]],
        "weights": "weights of the run",
        "metadata": "1x28x28",
        "framework": "ONNX",
        "tags": ["nightly"],
        "status": "completed",
        "stats": {"x": 1},
        "folder": ["a.txt"],
        "epochs": "3",
        "network": {"layers": [1, 2]},
        "by_tag": [trained["task"]],
    }


def test_what_was_acknowledged_survives_a_kill_in_the_middle_of_writes(tmp_path: Path) -> None:
    """SIGKILL while four clients write documents and files: every acknowledged write is there, files are whole."""
    state = tmp_path / "state"
    acknowledged: list[tuple[str, str]] = []
    with control_plane(state) as server:

        def write(number: int) -> None:
            keys = server.credentials
            for count in itertools.count():
                path = f"P/{number}/{count}.bin"
                content = f"{path} ".encode() * 2000
                try:
                    sent = httpx.post(f"{server.url}/files", files={path: (path, content)},
                                      auth=(keys.access_key, keys.secret_key))  # fmt: skip
                    assert 200 == sent.status_code, sent.text
                    model = server.call("models.create", name=f"model {path}", uri=f"{server.url}/files/{path}")
                except (OSError, http.client.HTTPException, httpx.TransportError):  # the kill may cut off an answer
                    return
                acknowledged.append((model["id"], hashlib.sha256(content).hexdigest()))

        writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for writer in writers:
            writer.start()
        until(lambda: len(acknowledged) >= 40)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(LIMIT_S)
        for writer in writers:
            writer.join()
    assert len(acknowledged) >= 40
    with control_plane(state) as server:
        for model_id, sha in acknowledged:
            uri = server.call("models.get_by_id", model=model_id)["model"]["uri"]
            stored = server.download(f"{server.url}/files/{uri.partition('/files/')[2]}")
            assert sha == hashlib.sha256(stored).hexdigest(), uri
    assert list((state / "files" / "tmp").iterdir()) == []


@pytest.mark.long
def test_a_serving_task_that_is_gone_is_told_from_a_server_that_refuses(client: Client) -> None:
    """`up` makes a new one for the first, and says the second."""
    client.create("serving")
    env, log = client.environment, client.folder / "log"
    assert asyncio.run(is_there(client.task, env=env, log=log))
    assert not asyncio.run(is_there("0" * 32, env=env, log=log))
    with pytest.raises(DeployError, match="cannot be read"):
        asyncio.run(is_there(client.task, env={**env, "CLEARML_API_SECRET_KEY": "wrong"}, log=log))
