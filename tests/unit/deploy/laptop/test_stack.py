"""The decisions of `up` before it starts anything, and its check that model sync works."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.controlplane import Credentials
from deploy.laptop.stack import Stack, UpOptions, _cli_environment, hub_folder, is_syncing, run
from deploy.laptop.state_dir import StateDir
from deploy.tools.clearml_serving import LEADS_ELSEWHERE
from deploy.tools.errors import DeployError
from deploy.tools.terminal import Terminal
from tests.waiting import LIMIT_S


class Screen(Terminal):
    """Keeps the lines that stay."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


async def test_ctrl_c_is_answered_at_once_and_a_second_one_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Undoing what was registered can take a while. The second one ends also that."""
    began, undoing = asyncio.Event(), asyncio.Event()

    async def slow(_: Stack) -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            undoing.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(Stack, "bring_up", slow)
    screen = Screen()
    running = asyncio.create_task(run(UpOptions(state=StateDir.at(tmp_path), environ={}), screen))
    async with asyncio.timeout(LIMIT_S):
        await began.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await undoing.wait()
        assert "stopping (Ctrl-C again: immediately)" == screen.said[-1]
        os.kill(os.getpid(), signal.SIGINT)
        assert 130 == await running
    assert "stopping immediately" == screen.said[-1]


def test_a_second_folder_gets_another_port_for_its_control_plane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at the next start. A port that was asked for, or that registered models name, is not replaced."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("deploy.laptop.stack.CONTROLPLANE_PORT", port)

        def chosen(**options: Any) -> int:
            return stack(tmp_path, {}, port=0, **options)._choose_ports(is_embedded=True).controlplane

        first = chosen()
        assert (first, True) == (chosen(), port != first)
        with pytest.raises(DeployError, match="embedded control plane"):
            chosen(controlplane_port=port)
        StateDir.at(tmp_path).remember(ports={"controlplane": port})
        with pytest.raises(DeployError, match="embedded control plane"):
            chosen()


REAL = {"CLEARML_API_HOST": "http://clearml", "CLEARML_API_ACCESS_KEY": "k", "CLEARML_API_SECRET_KEY": "s"}


def stack(tmp_path: Path, environ: dict[str, str], **options: Any) -> Stack:
    """A stack that is not started."""
    return Stack(UpOptions(state=StateDir.at(tmp_path), environ=environ, **options), Screen())


def test_the_embedded_server_is_used_unless_the_environment_names_another(tmp_path: Path) -> None:
    """Host and both keys together name one, half of it is a mistake; our own file, sourced by a shell, names ours."""
    assert stack(tmp_path, {})._is_embedded()
    assert not stack(tmp_path, REAL)._is_embedded()
    with pytest.raises(DeployError, match="CLEARML_API_SECRET_KEY"):
        stack(tmp_path, {k: v for k, v in REAL.items() if "SECRET" not in k})._is_embedded()
    ours = Credentials.load_or_create(StateDir.at(tmp_path).controlplane)
    assert stack(tmp_path, {**REAL, "CLEARML_API_ACCESS_KEY": ours.access_key})._is_embedded()


FOREIGN = {
    **dict.fromkeys(("CLEARML_API_HOST", "CLEARML_API_ACCESS_KEY", "TRAINS_API_HOST", "CLEARML_WEB_HOST"), "foreign"),
    **dict.fromkeys(("CLEARML_FILES_HOST", "CLEARML_CONFIG_FILE", *LEADS_ELSEWHERE), "foreign"),
}


def test_nothing_of_another_server_reaches_the_parts_or_the_sourced_file(tmp_path: Path) -> None:
    """Neither its address and keys, nor what leads the SDK away from the embedded control plane."""
    made = stack(tmp_path, {**FOREIGN, "CLEARML_SERVING_POLL_FREQ": "1"}, port=0)
    chosen = made._choose_ports(is_embedded=True)
    env = made._base_environment(chosen, is_embedded=True)
    assert "foreign" not in " ".join(value for name, value in env.items() if name.startswith(("CLEARML", "TRAINS")))
    assert "1" == env["CLEARML_SERVING_POLL_FREQ"]
    sourced = _cli_environment({**env, "CLEARML_SERVING_TASK_ID": "t"}, is_embedded=True)
    left = {**FOREIGN, **sourced}
    assert ["TRAINS_API_HOST"] == [name for name, value in left.items() if "foreign" in value]


def test_model_sync_works_while_it_touches_its_file(tmp_path: Path) -> None:
    """A missing or old one means that it does not."""
    alive = tmp_path / "sync-alive"
    found = [is_syncing(alive)]
    for time in (None, (1, 1)):
        alive.touch()
        os.utime(alive, time)
        found.append(is_syncing(alive))
    assert [False, True, False] == found


def test_a_model_of_the_hub_is_loaded_with_the_token_and_downloads_of_the_user(tmp_path: Path) -> None:
    """If there is such a folder; the other caches of the parts are in the state directory."""
    for given, found in (({"XDG_CACHE_HOME": "none"}, {}), ({"HF_HOME": str(tmp_path)}, {"HF_HOME": str(tmp_path)})):
        assert found == hub_folder(given)


def test_a_user_without_a_home_directory_has_no_configuration() -> None:
    """A container may run as any user id."""
    code = (
        "import os, sys; from deploy.laptop.state_dir import uses_no_clearml; import pwd\n"
        "def getpwuid(_): raise KeyError\n"
        "pwd.getpwuid = getpwuid; sys.exit(0 if uses_no_clearml({}) else 1)"
    )
    environ = {name: value for name, value in os.environ.items() if name != "HOME"}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)
