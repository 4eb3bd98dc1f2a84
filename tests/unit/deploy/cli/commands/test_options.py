"""What the sub-commands share: how they are asked to stop, and which serving Task they find."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from deploy.cli.commands._options import registry_options
from deploy.laptop.state_dir import StateDir
from deploy.tools.errors import DeployError
from tests.sites import nobody
from tests.waiting import LIMIT_S

WAITS = """
import os
from deploy.cli.commands._options import stop_on_signal
stop = stop_on_signal()
print("waits", flush=True)
while not stop.wait(0.0001):
    pass
print("ends", flush=True)
os._exit(0)  # an interpreter that is being taken down has no handlers any more
"""


def test_any_number_of_signals_at_any_time_end_a_command() -> None:
    """Signals come while it waits and while it handles others: it ends in order, and does not wait for itself."""
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert "waits" == command.stdout.readline().strip()
        try:
            for number in range(400):
                command.send_signal((signal.SIGTERM, signal.SIGINT)[number % 2])
            assert 0 == command.wait(LIMIT_S)
            assert "ends" == command.stdout.readline().strip()
        finally:
            command.kill()


@click.command()
@registry_options
def reads(open_registry: Callable[[], object]) -> None:
    """A command that reads the serving Task."""
    open_registry()


def test_an_up_that_was_stopped_is_named_as_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file of variables stays; the server that it names is gone."""
    monkeypatch.chdir(tmp_path)
    for name in ("CLEARML_API_HOST", "TRITON_GATEWAY_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLEARML_CONFIG_FILE", str(tmp_path / "clearml.conf"))
    with nobody() as port:
        StateDir.at(tmp_path / ".triton-gateway").write_env({"CLEARML_API_HOST": f"http://127.0.0.1:{port}"})
        with pytest.raises(DeployError, match=f"is not running: nothing answers at http://127.0.0.1:{port}") as refused:
            CliRunner().invoke(reads, [], standalone_mode=False, catch_exceptions=False)
    assert "start it again" in refused.value.hint
