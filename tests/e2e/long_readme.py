"""The README is typed as it stands, in a bare shell: a copy of the tracked files, no PATH to the product.

Only what `make up` would download is there already: the environment is this test's own. `.ci/run pages` runs it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from deploy.tools import ports
from tests.docs.blocks import ROOT, blocks
from tests.waiting import LIMIT_S, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

TYPED: Final = [command for b in blocks() if b.page == "README.md" and b.kind == "console" for command in b.commands()]
STARTS: Final = "make up"


def copied(to: Path) -> Path:
    """Copy the tracked files, with their times, so that make finds the environment as new as it is."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy2(ROOT / name, target)
    (to / ".venv").symlink_to(sys.prefix)
    return to


def test_the_readme_does_what_it_shows(tmp_path: Path) -> None:
    """Line after line, in two shells. A figure is any figure; a line may fail only if the README shows how."""
    place, home = copied(tmp_path / "triton-gateway"), tmp_path / "home"
    home.mkdir()
    taken: set[int] = set()
    port, other = (ports.choose("127.0.0.1", 0, remembered=0, avoid=taken) for _ in range(2))
    bare = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    assert [STARTS] == [command.line for command in TYPED if command.line.startswith("make")]
    out = tmp_path / "out"
    with out.open("w") as shown:
        first = subprocess.Popen(
            ["make", "up", f"ARGS=--port {port} --controlplane-port {other}"], cwd=place, env=bare,
            stdin=subprocess.DEVNULL, stdout=shown, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        until(lambda: " ready in " in out.read_text() or first.poll() is not None)
        assert first.poll() is None, out.read_text()
        typed = ""
        for command in TYPED:
            if command.line == STARTS:
                continue
            line = command.line.replace("localhost:8080", f"127.0.0.1:{port}")
            # a shell keeps what was typed before: variables and PATH; it types the lines so far again, silently
            shell = ["bash", "--noprofile", "--norc", "-c", f"{typed}\n{line}"]

            def once(shell: list[str] = shell) -> tuple[int, str]:
                done = subprocess.run(
                    shell, cwd=place, env=bare, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, timeout=LIMIT_S,
                )  # fmt: skip
                return done.returncode, done.stdout

            code, printed = command.typed(once)
            assert command.agrees(printed), f"{line}\n{printed}\nis not\n{command.shown}"
            assert code == 0, f"{line}\n{printed}"
            if re.match(r"\. ", line):
                typed = f"{typed}\n{line}".strip()
    finally:
        os.killpg(first.pid, signal.SIGINT)  # as a terminal does for Ctrl-C
        first.wait(timeout=LIMIT_S)
