"""Keys beside the serving Task, from the command that makes one to the gateway process that answers by it.

Through the real clearml session and a control plane that is strict, as a ClearML server is.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deploy.controlplane.testing import control_plane
from deploy.tools.clearml_serving import PROGRAM
from tests.waiting import until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
ECHO = """
class Preprocess:
    def process(self, body, state, collect_custom_statistics_fn=None):
        return {"n": body["n"]}
"""


class Service:
    """A serving service with the endpoint `echo`, and a gateway process that follows it and knows its keys."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder, self._environ = folder, environ
        self.pepper = folder / "pepper"
        created = re.search(r"id=([0-9a-f]{32})", self._run(*PROGRAM, "create", "--name", "keys"))
        assert created
        self.task = created[1]
        (folder / "echo.py").write_text(ECHO)
        self._run(*PROGRAM, "--id", self.task, "model", "add", "--engine", "custom", "--endpoint", "echo",
                  "--preprocess", str(folder / "echo.py"))  # fmt: skip
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]

    def keys(self, *arguments: str) -> str:
        """Run the command in a process of its own, as a person does."""
        return self._run(
            "-m", "deploy.admin.cli", "keys", arguments[0], "--registry", "--pepper-file", str(self.pepper),
            "--serving-task-id", self.task,
            *arguments[1:],
        ).strip()  # fmt: skip

    def gateway(self) -> subprocess.Popen[bytes]:
        """Start a process that looks at the serving Task every second."""
        environ = {
            **self._environ, "CLEARML_SERVING_TASK_ID": self.task, "CLEARML_SERVING_POLL_FREQ": "1s",
            "TRITON_GATEWAY_PORT": str(self.port), "TRITON_GATEWAY_STATE_DIR": str(self._folder / "state"),
            "TRITON_GATEWAY_KEYS_FROM_REGISTRY": "true", "TRITON_GATEWAY_PEPPER_FILE": str(self.pepper),
            "TRITON_GATEWAY_HOOK_ISOLATION": "thread",
        }  # fmt: skip
        with (self._folder / "gateway.log").open("w") as log:
            return subprocess.Popen([sys.executable, "-m", "gateway"], env=environ, stdout=log, stderr=log)

    def ask(self, key: str) -> tuple[int, str]:
        """Status of one inference with a key, and why it was refused; 0 for no connection."""
        try:
            answer = httpx.post(
                f"http://127.0.0.1:{self.port}/serve/echo", json={"n": 1}, timeout=30,
                headers={"authorization": f"Bearer {key}"},
            )  # fmt: skip
        except httpx.TransportError:
            return 0, ""
        return answer.status_code, answer.headers.get("x-refused-because", "")

    def _run(self, *argv: str) -> str:
        done = subprocess.run(
            [sys.executable, *argv], capture_output=True, text=True, cwd=self._folder,
            env={**self._environ, "PYTHONPATH": str(ROOT)}, timeout=120, check=False,
        )  # fmt: skip
        assert 0 == done.returncode, done.stderr
        return done.stdout


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """See the class."""
    with control_plane(tmp_path / "controlplane", strict=True) as server:
        yield Service(tmp_path, {**server.client_environment(os.environ, tmp_path), "PYTHONPATH": str(ROOT)})


def test_a_key_of_the_registry_works_until_it_is_revoked(service: Service) -> None:
    """Made by one process and revoked by another while a gateway runs; another key goes on, after a restart too."""
    first = service.keys("create", "--tenant", "acme")
    other = service.keys("create", "--tenant", "other")
    process = service.gateway()
    try:
        until(lambda: service.ask(first)[0] == 200, within=90)
        assert 200 == service.ask(other)[0]
        assert (401, "unknown_key") == service.ask(first[:-1])
        service.keys("revoke", first.split("_")[1])
        until(lambda: service.ask(first) == (401, "revoked"), within=60)
        assert 200 == service.ask(other)[0]
        third = service.keys("create", "--tenant", "acme")
        until(lambda: service.ask(third)[0] == 200, within=60)
        process.terminate()
        process.wait(60)
        process = service.gateway()
        until(lambda: service.ask(third)[0] == 200, within=90)
        assert (401, "revoked") == service.ask(first)
    finally:
        process.kill()
        process.wait(30)
    for file in (service.pepper, *service.pepper.parent.glob("state/**/callers.json")):
        assert 0o600 == file.stat().st_mode & 0o777
