"""The unmodified clearml SDK against the embedded control plane: training, artifacts, restarts, crashes, races."""

# ruff: noqa: D103 - a test's name states its rule

import hashlib
import http.client
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.control_planes import RunningControlPlane, control_plane, lasting_port
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


class Sdk:
    """Runs scripts that use the SDK, each in a process and a directory of its own."""

    def __init__(self, server: RunningControlPlane, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.runs = 0

    def start(self, script: str, *arguments: str) -> "subprocess.Popen[str]":
        self.runs += 1
        place = self.directory / f"run{self.runs}"
        place.mkdir()
        (place / "script.py").write_text(textwrap.dedent(script))
        return subprocess.Popen(
            [sys.executable, "script.py", *arguments],
            cwd=place,
            env=self.server.client_environment(os.environ, place),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, process: "subprocess.Popen[str]") -> Any:
        """What the script printed after RESULT."""
        try:
            text, _ = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
        assert process.returncode == 0, text
        results = [line for line in text.splitlines() if line.startswith("RESULT ")]
        assert len(results) == 1, text
        return json.loads(results[0].removeprefix("RESULT "))

    def run(self, script: str, *arguments: str) -> Any:
        return self.finish(self.start(script, *arguments))


def opener_for(server: RunningControlPlane) -> urllib.request.OpenerDirector:
    """Sends access keys instead of a token."""
    keys = server.credentials
    manager = urllib.request.HTTPPasswordMgrWithPriorAuth()
    manager.add_password(None, server.url, keys.access_key, keys.secret_key, is_authenticated=True)
    return urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(manager))


def post(server: RunningControlPlane, name: str, body: dict[str, Any]) -> dict[str, Any]:
    """One call."""
    request = urllib.request.Request(f"{server.url}/{name}", data=json.dumps(body).encode())
    with opener_for(server).open(request, timeout=LIMIT_S) as answer:
        data: dict[str, Any] = json.loads(answer.read())["data"]
    return data


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sdk]:
    with control_plane(tmp_path_factory.mktemp("state")) as server:
        yield Sdk(server, tmp_path_factory.mktemp("scripts"))


def test_training_script_is_recorded_and_read_back_by_another_process_after_a_restart(tmp_path: Path) -> None:
    """Last scalars, parameters, configuration, tags, artifacts with hashes, a published model: all of it."""
    port = lasting_port()
    with control_plane(tmp_path / "state", port=port) as server:
        (tmp_path / "one").mkdir()
        trained = Sdk(server, tmp_path / "one").run(TRAIN)
    with control_plane(tmp_path / "state", port=port) as server:
        (tmp_path / "two").mkdir()
        read = Sdk(server, tmp_path / "two").run(READ, json.dumps(trained))
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


@pytest.mark.long
def test_script_may_publish_a_model_while_the_sdk_uploads_it(tmp_path: Path) -> None:
    """`update_weights_package` uploads in the background; publishing at once is allowed, as on a real server."""
    with control_plane(tmp_path / "state") as server:
        (tmp_path / "scripts").mkdir()
        published = Sdk(server, tmp_path / "scripts").run("""
            import json, pathlib
            from clearml import Model, OutputModel, Task
            task = Task.init(project_name="Background", task_name="publishes at once", output_uri=True)
            pathlib.Path("weights").mkdir()
            pathlib.Path("weights/model.onnx").write_bytes(b"x" * 2_000_000)
            for number in range(4):
                model = OutputModel(task=task, name=f"model {number}", framework="ONNX")
                model.update_weights_package(weights_path="weights", auto_delete_file=False)
                model.publish()
            task.flush(wait_for_uploads=True)
            task.close()
            found = Model.query_models(project_name="Background", only_published=True)
            print("RESULT", json.dumps(sorted([m.name, m.url.rpartition("/")[2]] for m in found)))
        """)
    assert published == [[f"model {number}", "model_package.zip"] for number in range(4)]


def test_what_was_acknowledged_survives_a_kill_in_the_middle_of_writes(tmp_path: Path) -> None:
    """SIGKILL while four clients write documents and files: every acknowledged write is there, files are whole."""
    state = tmp_path / "state"
    acknowledged: list[tuple[str, str]] = []
    with control_plane(state) as server:
        stop = threading.Event()

        def write(number: int) -> None:
            opener = opener_for(server)
            count = 0
            while not stop.is_set():
                count += 1
                path = f"P/{number}/{count}.bin"
                content = f"{path} ".encode() * 2000
                body = (
                    b'--x\r\nContent-Disposition: form-data; name="'
                    + path.encode()
                    + b'"\r\n\r\n'
                    + content
                    + b"\r\n--x--\r\n"
                )
                upload = urllib.request.Request(f"{server.url}/files", data=body)
                upload.add_header("Content-Type", "multipart/form-data; boundary=x")
                try:
                    opener.open(upload, timeout=LIMIT_S).close()
                    model = post(
                        server, "models.create", {"name": f"model {path}", "uri": f"{server.url}/files/{path}"}
                    )
                except (OSError, http.client.HTTPException):  # the kill may cut off an answer
                    return
                acknowledged.append((model["id"], hashlib.sha256(content).hexdigest()))

        writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for writer in writers:
            writer.start()
        until(lambda: len(acknowledged) >= 40)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(LIMIT_S)
        stop.set()
        for writer in writers:
            writer.join(LIMIT_S)
    assert len(acknowledged) >= 40
    with control_plane(state) as server:
        opener = opener_for(server)
        wrong = []
        for model_id, sha in acknowledged:
            uri = post(server, "models.get_by_id", {"model": model_id})["model"]["uri"]
            with opener.open(f"{server.url}/files/{uri.partition('/files/')[2]}", timeout=LIMIT_S) as answer:
                if hashlib.sha256(answer.read()).hexdigest() != sha:
                    wrong.append(uri)
        assert wrong == []
    assert list((state / "files" / "tmp").iterdir()) == []


def test_client_waits_out_a_restart_of_the_control_plane(tmp_path: Path) -> None:
    """The SDK retries by itself; a token outlives the server that has issued it."""
    state, scripts = tmp_path / "state", tmp_path / "scripts"
    scripts.mkdir()
    script = """
        import json, pathlib, time
        from clearml import Task
        task = Task.create(project_name="Restart", task_name="patient")
        pathlib.Path("ready").touch()
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
        task.set_parameter("General/after", "restart")
        task.reload()
        print("RESULT", json.dumps(task.get_parameter("General/after")))
    """
    port = lasting_port()
    with control_plane(state, port=port) as server:
        process = Sdk(server, scripts).start(script)
        until((scripts / "run1" / "ready").exists)
    with control_plane(state, port=port) as server:
        (scripts / "run1" / "go").touch()
        assert Sdk(server, scripts).finish(process) == "restart"
