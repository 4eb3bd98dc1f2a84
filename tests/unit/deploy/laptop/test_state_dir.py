"""The state directory: remembered facts and refusals."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.laptop.state_dir import StateDir
from deploy.tools.errors import DeployError


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    """A prepared state directory."""
    made = StateDir.at(tmp_path / "state")
    made.prepare()
    return made


def test_second_holder_is_refused_and_told_who_the_first_is(state: StateDir) -> None:
    """Two `up` with one directory would overwrite each other's files."""
    code = (
        "import sys; from deploy.laptop.state_dir import StateDir\n"
        "with StateDir.at(sys.argv[1]).locked(): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, state.root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DeployError, match=f"pid {holder.pid}"), state.locked():
            pass
        holder.kill()
        holder.communicate()
    with state.locked():
        pass


def test_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    """The message names the path and the option."""
    (tmp_path / "file").touch()
    with pytest.raises(DeployError) as caught:
        StateDir.at(tmp_path / "file").prepare()
    assert str(tmp_path / "file") in caught.value.line()
    assert "--state-dir" in caught.value.line()


def test_facts_are_remembered_and_added_to(state: StateDir) -> None:
    """Remembering a fact keeps the others."""
    state.remember(task={"id": "t"})
    state.remember(ports={"gateway": 1})
    assert StateDir.at(state.root).recall() == {"task": {"id": "t"}, "ports": {"gateway": 1}}


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_damaged_facts_are_no_facts(state: StateDir, text: str) -> None:
    """With a damaged file, the facts are lost, but the start works."""
    state.facts.write_text(text)
    assert state.recall() == {}


def test_environment_file_can_be_sourced_by_its_owner_only(state: StateDir) -> None:
    """It contains a secret, and all values survive the shell."""
    state.write_env({"A": "it's $HOME", "B": "2"})
    assert stat.S_IMODE(state.env_file.stat().st_mode) == 0o600
    shell = subprocess.run(
        ["bash", "-c", f'. "{state.env_file}"; printf "%s|%s" "$A" "$B"'],
        env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shell.stdout == "it's $HOME|2"


def test_what_is_written_for_the_shell_is_read_again(tmp_path: Path) -> None:
    """Values with spaces and quotes too, and paths that are not UTF-8; no file means no variables."""
    state = StateDir.at(tmp_path)
    assert {} == state.read_env()
    variables = {"A": "it's one", "B": "x=y", "C": "", "D": os.fsdecode("Größe".encode("latin-1"))}
    state.write_env(variables)
    assert variables == state.read_env()
