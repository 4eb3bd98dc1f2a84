"""The unmodified clearml-serving command line, whose failures are read from what it prints; with stand-ins for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.tools.clearml_serving import ClearMLServing
from deploy.tools.errors import DeployError
from tests.waiting import LIMIT_S

TASK = "a" * 32


def stock(tmp_path: Path, script: str) -> ClearMLServing:
    """A `clearml-serving` that is the given script."""
    package = tmp_path / "clearml_serving"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(script)
    return ClearMLServing(env={**os.environ, "PYTHONPATH": str(tmp_path)}, log=tmp_path / "log", timeout=LIMIT_S)


async def test_new_ids_are_read_from_what_the_tool_prints(tmp_path: Path) -> None:
    """The last id counts; other lines do not matter."""
    cli = stock(tmp_path, f"print('noise'); print('New Serving Service created: id={TASK}')")
    assert await cli.create_service("name") == TASK


@pytest.mark.parametrize(
    "script",
    [
        "import sys; print('Error: no such thing'); sys.exit(1)",
        "print('clearml.Task - ERROR - Action failed <400/0: tasks.edit/v1.0 (no such thing)>')",
        "print('Exception encountered while uploading: no such thing')",
    ],
    ids=["exit code", "refused write with exit code 0", "failed upload with exit code 0"],
)
async def test_failure_of_the_tool_is_a_failure_whatever_its_exit_code(tmp_path: Path, script: str) -> None:
    """The stock tool exits 0 after many failures; its own words are the reason shown."""
    with pytest.raises(DeployError) as caught:
        await stock(tmp_path, script).run("model", "list")
    assert "`clearml-serving model list` failed" in caught.value.line()
    assert "no such thing" in caught.value.line()
    assert str(tmp_path / "log") in caught.value.line()


async def test_tool_that_hangs_is_ended(tmp_path: Path) -> None:
    """The stock tool retries an unreachable server in silence; here it gets a limit."""
    cli = ClearMLServing(env=stock(tmp_path, "import time; time.sleep(600)").env, log=tmp_path / "log", timeout=0.2)
    with pytest.raises(DeployError, match="did not finish"):
        await cli.run("list")
