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


def test_facts_are_remembered_and_added_to(state: StateDir) -> None:
    """Remembering a fact keeps the others. With a damaged file they are lost, but the start works."""
    state.remember(task={"id": "t"})
    state.remember(ports={"gateway": 1})
    assert StateDir.at(state.root).recall() == {"task": {"id": "t"}, "ports": {"gateway": 1}}
    for text in ("", "{", "[]"):
        state.facts.write_text(text)
        assert state.recall() == {}


def test_environment_file_can_be_sourced_by_its_owner_only_and_is_read_again(state: StateDir) -> None:
    """It contains a secret, and all values survive the shell: paths that are not UTF-8, too."""
    assert {} == state.read_env()
    variables = {"A": "it's $HOME", "B": "x=y", "C": "", "D": os.fsdecode("Größe".encode("latin-1"))}
    state.write_env(variables)
    assert variables == state.read_env()
    assert stat.S_IMODE(state.env_file.stat().st_mode) == 0o600
    shell = subprocess.run(
        ["bash", "-c", f'. "{state.env_file}"; printf "%s|%s|%s|%s" "$A" "$B" "$C" "$D"'],
        env={"PATH": "/usr/bin:/bin"}, capture_output=True, check=True,
    )  # fmt: skip
    assert "|".join(variables.values()) == os.fsdecode(shell.stdout)
