"""Which serving Task is followed, and that ClearML hears it: the real SDK and the stock CLI on a control plane."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.controlplane.testing import control_plane
from deploy.tools.clearml_serving import PROGRAM
from gateway.errors import RegistryRefused
from gateway.registry.clearml import ClearMLRegistry

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
WATCHDOG = "Forced stop (non-responsive)"


class Client:
    """Programs and registries of one control plane."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.environment = environment
        self.folder = folder

    def run(self, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A Python program to its end."""
        return subprocess.run(
            [sys.executable, *argv], env={**self.environment, **variables, "PYTHONPATH": str(ROOT)}, cwd=self.folder,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False,
        )  # fmt: skip

    def create(self, name: str) -> str:
        """A serving Task of the stock CLI; its id."""
        found = re.search(r"id=([0-9a-f]{32})", self.run(*PROGRAM, "create", "--name", name).stdout)
        assert found
        return found[1]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A control plane of this test's own; this process is a client of it too."""
    with control_plane(tmp_path / "state") as server:
        environment = server.client_environment(os.environ, tmp_path)
        for name in ("CLEARML_SERVING_TASK_ID", "TRITON_GATEWAY_SERVING_TASK_ID"):
            environment.pop(name, None)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield Client(environment, tmp_path)


def test_one_serving_task_is_followed_and_said_and_of_several_none(client: Client) -> None:
    """By the registry of gateway and model sync, and by every command that takes the serving Task."""
    first = client.create("payments")
    said: list[str] = []
    registry = ClearMLRegistry(say=said.append)
    assert first == registry.followed() == registry.task()["id"]
    assert [f"following 'payments' ({first}), the only serving Task that runs"] == said
    shown = client.run("-m", "deploy.admin.cli", "canary", "status", "--endpoint", "e")
    assert f"following 'payments' ({first})" in shown.stdout

    second = client.create("ads")
    assert first == registry.followed(), "who follows one goes on with it"
    with pytest.raises(RegistryRefused) as refusal:
        ClearMLRegistry().marker()
    both = f"'ads' ({second}), 'payments' ({first})"
    assert both in refusal.value.message
    for command in (["canary", "status", "--endpoint", "e"], ["lineage", "e"], ["doctor"]):
        done = client.run("-m", "deploy.admin.cli", *command)
        assert done.returncode == 1, done.stdout
        assert both in done.stdout
        assert "CLEARML_SERVING_TASK_ID" in done.stdout
        assert "Traceback" not in done.stdout
    named = client.run("-m", "deploy.admin.cli", "canary", "status", "--endpoint", "e", CLEARML_SERVING_TASK_ID=second)
    assert both not in named.stdout


def test_a_followed_task_is_pinged_and_opened_again_when_the_watchdog_stopped_it(client: Client) -> None:
    """Two hours of silence stop a Task on a real server: the stock `list` then no longer shows it."""
    task = client.create("silent")
    now = [0.0]
    registry = ClearMLRegistry(task, clock=lambda: now[0])
    registry.call("tasks", "started", {"task": task, "force": True})
    heard = []
    for second in range(0, 1000, 10):
        now[0] = float(second)
        registry.marker()
        heard.append(registry.task()["last_update"])
    assert 2 <= len(set(heard)) - 1 <= 3, "a ping in five to six minutes"

    registry.call("tasks", "stopped", {"task": task, "status_reason": WATCHDOG, "status_message": WATCHDOG})
    assert task not in client.run(*PROGRAM, "list").stdout
    # A gateway that starts now finds it, with its id and without; both serve it whatever its status.
    assert task == ClearMLRegistry().followed()
    assert task == registry.task()["id"]
    registry.marker()
    assert "in_progress" == registry.task()["status"]
    assert task in client.run(*PROGRAM, "list").stdout

    registry.call("tasks", "stopped", {"task": task, "status_message": "stopped by Ann"})
    registry.marker()
    assert "stopped" == registry.task()["status"], "what a person stopped stays stopped, and is followed"
    with pytest.raises(RegistryRefused, match=rf"no serving service is running; there is 'silent' \({task}, stopped"):
        ClearMLRegistry().followed()
