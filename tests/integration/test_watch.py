"""A run in several processes that loses one of them, or stands still, ends and says why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.integration, pytest.mark.long]

TESTS = Path(__file__).parents[1]
TIMEOUT_S = 20
"""Of each test. A run stands still if nothing has happened for twice as long, which a busy machine must not reach."""

QUICK = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_passes(number): ...
"""

DIES = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(4))
def test_dies_once(number, once=pathlib.Path(__file__).with_suffix(".once")):
    if number == 1 and not once.exists():
        once.touch()
        os.kill(os.getpid(), 9)
"""

STANDS_STILL = """
import signal, time

def test_stands_still():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(600)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Sixty quick files, under the rules of this suite."""
    unit = tmp_path / "tests" / "unit"
    unit.mkdir(parents=True)
    for name in ("conftest.py", "watch.py"):
        shutil.copy(TESTS / name, tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = --import-mode=importlib\ntimeout = {TIMEOUT_S}\n")
    for number in range(60):
        (unit / f"test_{number:02}.py").write_text(QUICK)
    return tmp_path


def run(project: Path) -> subprocess.CompletedProcess[str]:
    """The suite in two processes."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"],
        cwd=project, env={**os.environ, "PYTEST_ADDOPTS": ""}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
    )  # fmt: skip


def test_a_lost_process_is_one_failure_and_all_else_is_run(project: Path) -> None:
    """What it had finished is not handed out again, which would stall the others."""
    (project / "tests" / "unit" / "test_40.py").write_text(DIES)
    ended = run(project)
    assert 1 == ended.returncode, ended.stdout
    assert "ended: SIGKILL" in ended.stdout
    assert "1 failed, 181 passed" in ended.stdout


def test_a_run_that_stands_still_ends_and_names_the_test(project: Path) -> None:
    """With the line that it stands at."""
    (project / "tests" / "unit" / "test_40.py").write_text(STANDS_STILL)
    ended = run(project)
    assert 1 == ended.returncode, ended.stdout
    assert f"nothing has happened for {2 * TIMEOUT_S} s" in ended.stdout
    assert "tests/unit/test_40.py::test_stands_still" in ended.stdout
    assert 'test_40.py", line 6 in test_stands_still' in ended.stdout
