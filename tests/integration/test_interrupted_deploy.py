"""Ctrl-C in `deploy` while ClearML does what was asked: it ends at once, and says what may be left.

Between the command and the embedded control plane stands a proxy that lets one call through, interrupts the command and
never answers, so each run is ended in exactly that moment. An export: tests/integration/optimize/test_command.py.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.control_planes import RunningControlPlane, control_plane
from tests.e2e.test_deploy import WORDS
from tests.e2e.test_up_demo import command
from tests.sites import Asked, passed_on, site
from tests.stock import Client
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.integration


class Proxy:
    """Passes calls on; the first one called ``stage`` is passed on too, and never answered: instead the command is
    interrupted.
    """

    def __init__(self, target: str) -> None:
        self.target, self.url, self.stage = target, "", ""
        self.reached, self.over = threading.Event(), threading.Event()

    def answer(self, asked: Asked) -> tuple[int, Any]:
        """What the server answers."""
        answered = passed_on(asked, self.target)
        if asked.path.rpartition("/")[2] == self.stage:
            self.stage = ""
            self.reached.set()
            self.over.wait()
        return answered

    def interrupted(self, argv: list[str], stage: str, **how: Any) -> tuple[int, str]:
        """Run a command until it has made that call; its exit code, and what it said."""
        self.reached.clear()
        self.stage = stage
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, **how) as running:
            try:
                until(lambda: self.reached.is_set() or running.poll() is not None)
                running.send_signal(signal.SIGINT)
                _, said = running.communicate(timeout=LIMIT_S)
            finally:
                running.kill()
        return running.returncode, said


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningControlPlane]:
    """The embedded control plane."""
    with control_plane(tmp_path_factory.mktemp("controlplane")) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(server: RunningControlPlane) -> Iterator[Proxy]:
    """What stands before it."""
    running = Proxy(server.url)
    with site(running.answer) as running.url:
        yield running
        running.over.set()


@pytest.fixture(scope="module")
def environment(server: RunningControlPlane, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a user whose ClearML server is behind the proxy, with a serving Task."""
    client = Client(replace(server, url=proxy.url), tmp_path_factory.mktemp("home"))
    return {**client.environment, "CLEARML_SERVING_TASK_ID": client.create("serving")}


def endpoints(server: RunningControlPlane, environment: Mapping[str, str]) -> Any:
    """The Task's text of them."""
    task = server.call("tasks.get_by_id", task=environment["CLEARML_SERVING_TASK_ID"])["task"]
    return task.get("configuration", {}).get("endpoints", {}).get("value")


@pytest.mark.parametrize(
    "call",
    ["tasks.get_by_id", "models.get_all", "files", "models.create", pytest.param("tasks.edit", marks=pytest.mark.long)],
)
def test_ctrl_c_before_the_endpoint_is_there_ends_it_with_a_line(
    server: RunningControlPlane, proxy: Proxy, environment: dict[str, str], tmp_path: Path, call: str
) -> None:
    """Whatever ClearML does at that moment. Once the endpoint is being added, the command that removes it is named."""
    argv = [*command(), "deploy", str(WORDS), "--endpoint", "words", "--url", "http://127.0.0.1:9"]
    before = endpoints(server, environment)
    code, said = proxy.interrupted(argv, call, env=environment, cwd=tmp_path)
    assert 130 == code, said
    assert "] stopped" in said
    assert f"ClearML server: {environment['CLEARML_API_HOST']}" in said
    assert "Traceback" not in said
    assert ("model remove --endpoint words/1" in said) == (call == "tasks.edit")
    if call != "tasks.edit":
        assert before == endpoints(server, environment)
