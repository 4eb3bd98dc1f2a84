"""Two folders of one name uploaded by the stock CLI: the second overwrites the first, and is refused under its id.

The control plane runs strict here: its file server keeps one file per address, as ClearML's does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.controlplane.testing import control_plane
from deploy.tools import ports
from deploy.tools.clearml_serving import PROGRAM
from tests.waiting import until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
HOOK = """
import pathlib
class Preprocess:
    def load(self, local_file_name):
        self.text = (pathlib.Path(local_file_name) / "says.txt").read_text()
    def process(self, data, state, collect=None):
        return {"says": self.text}
"""


class World:
    """A strict control plane with one serving Task."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.folder = folder
        self.environment = {**environment, "PYTHONPATH": str(ROOT)}
        (folder / "hook.py").write_text(HOOK)
        self.task = self.stock(r"id=([0-9a-f]{32})", "create", "--name", "overwriting")
        self.environment["CLEARML_SERVING_TASK_ID"] = self.task

    def stock(self, pattern: str, *arguments: str) -> str:
        """The stock CLI to its end; what ``pattern`` finds in its output."""
        done = subprocess.run(
            [sys.executable, *PROGRAM, *arguments], env=self.environment, cwd=self.folder, text=True,
            capture_output=True, timeout=120, check=True,
        )  # fmt: skip
        found = re.search(pattern, done.stdout)
        assert found, done.stdout
        return found[1] if found.groups() else found[0]

    def upload(self, parent: str, says: str) -> str:
        """Publish the folder ``PARENT/bundle``; the model's id."""
        bundle = self.folder / parent / "bundle"
        bundle.mkdir(parents=True)
        (bundle / "says.txt").write_text(says)
        return self.stock(
            r"new Model ID=(\w+)", "--id", self.task, "model", "upload", "--name", parent, "--project", "p", "--path",
            str(bundle), "--framework", "onnx", "--publish",
        )  # fmt: skip

    def add(self, endpoint: str, model: str) -> None:
        """Serve a model by the hook that says what is in it."""
        self.stock(
            "Updating serving service", "--id", self.task, "model", "add", "--engine", "custom", "--endpoint", endpoint,
            "--model-id", model, "--preprocess", "hook.py",
        )  # fmt: skip

    @contextmanager
    def gateway(self, state: str) -> Iterator[str]:
        """A gateway process of its own; its address."""
        port = ports.choose("127.0.0.1", 0, remembered=0, avoid=set())
        settings = {
            "TRITON_GATEWAY_PORT": str(port), "TRITON_GATEWAY_STATE_DIR": str(self.folder / state),
            "CLEARML_SERVING_POLL_FREQ": "500ms",
        }  # fmt: skip
        with (self.folder / f"{state}.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "gateway"], env={**self.environment, **settings}, cwd=self.folder, stdout=log,
                stderr=log,
            )  # fmt: skip
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def ask(url: str, body: Any = None) -> tuple[int, Any]:
    """Status and content; 0 while nothing listens."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
    except OSError:
        return 0, None


def failed(gateway: str) -> list[Any]:
    """What a gateway has given up for now."""
    return [one for one in (ask(f"{gateway}/v1/status")[1] or {}).get("pending", ()) if one["state"] == "failed"]


def test_a_second_upload_of_the_same_folder_name_is_never_served_under_the_first_id(tmp_path: Path) -> None:
    """Who serves the first goes on, a new replica refuses it by name, the page's status and doctor say so."""
    with control_plane(tmp_path / "plane", strict=True) as server:
        world = World(server.client_environment(os.environ, tmp_path), tmp_path)
        first = world.upload("one", "first")
        world.add("e", first)
        with world.gateway("a") as running:
            until(lambda: ask(f"{running}/serve/e", {}) == (200, {"says": "first"}))
            second = world.upload("two", "second")
            faults = until(lambda: (ask(f"{running}/v1/status")[1] or {}).get("faults"))
            assert f"model {first}" == faults[0]["subject"]
            assert f"two ({second})" in faults[0]["message"]
            assert (200, {"says": "first"}) == ask(f"{running}/serve/e", {})

            with world.gateway("b") as fresh:
                pending = until(lambda: failed(fresh))
                assert f"model one ({first}) was registered with sha256" in pending[0]["reason"]
                assert "another upload has overwritten it" in pending[0]["reason"]
                assert 503 == ask(f"{fresh}/serve/e", {})[0]
            until(lambda: len(ask(f"{running}/v1/status")[1]["faults"]) > 1)
            assert (200, {"says": "first"}) == ask(f"{running}/serve/e", {})

        with world.gateway("a") as restarted:  # with its files
            until(lambda: ask(f"{restarted}/serve/e", {}) == (200, {"says": "first"}))
        doctor = subprocess.run(
            [sys.executable, "-m", "deploy.admin.cli", "doctor", "--state-dir", str(tmp_path / "d")],
            env=world.environment, cwd=tmp_path, text=True, capture_output=True, timeout=120, check=False,
        ).stdout  # fmt: skip
        assert "MISSING  serving Task" in doctor
        assert "another upload" in doctor

        shutil.rmtree(tmp_path / "two")
        mended = world.upload("first-again", "first")  # still the folder name: it overwrites, too
        assert mended != first
        renamed = tmp_path / "first-again" / "bundle"
        renamed.rename(tmp_path / "bundle-of-its-own")
        own = world.stock(
            r"new Model ID=(\w+)", "--id", world.task, "model", "upload", "--name", "own", "--project", "p", "--path",
            str(tmp_path / "bundle-of-its-own"), "--framework", "onnx", "--publish",
        )  # fmt: skip
        world.add("e", own)
        with world.gateway("c") as last:
            until(lambda: ask(f"{last}/serve/e", {}) == (200, {"says": "first"}))
            until(lambda: ask(f"{last}/v1/status")[1]["faults"] == [])
