"""A command of ours in its own process: it speaks for itself, and is interrupted and awaited."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from deploy.laptop import relay
from deploy.tools.errors import DeployError
from tests.waiting import LIMIT_S, soon

UNDOES = """
try:
    there.write_text(str(os.getpid()))
    signal.pause()
except KeyboardInterrupt:
    there.write_text("removed again")
    sys.exit(130)
"""
IGNORES = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
there.write_text(str(os.getpid()))
while True:
    signal.pause()
"""


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a command in place of ours writes; its arguments are this file and its code."""
    begin = "import os, pathlib, signal, sys; there = pathlib.Path(sys.argv[1]); exec(sys.argv[2])"
    monkeypatch.setattr(relay, "PROGRAM", ("-c", begin))
    return tmp_path / "there"


async def test_an_interrupted_command_undoes_what_it_has_done(there: Path) -> None:
    """It is awaited for that."""
    running = asyncio.create_task(relay.run_ours([str(there), UNDOES], os.environ))
    async with asyncio.timeout(LIMIT_S):
        await soon(lambda: there.exists() and there.read_text() != "")
        running.cancel()
        await asyncio.wait({running})
    assert "removed again" == there.read_text()
    assert running.cancelled()


async def test_a_second_ctrl_c_ends_a_command_that_does_not_end(there: Path) -> None:
    """The first one is ignored by it; after the second one no process is left."""
    running = asyncio.create_task(relay.run_ours([str(there), IGNORES], os.environ))
    async with asyncio.timeout(LIMIT_S):
        await soon(lambda: there.exists() and there.read_text() != "")
        process = psutil.Process(int(there.read_text()))
        running.cancel()
        await asyncio.sleep(0)
        assert not running.done()
        running.cancel()
        await asyncio.wait({running})
        await soon(lambda: not process.is_running())
    assert running.cancelled()


async def test_its_output_is_read_and_its_failure_is_not_said_again(there: Path) -> None:
    """The error has no message: the command has printed its own."""
    assert "7\n" == await relay.run_ours([str(there), "print(7)"], os.environ, reads=True)
    with pytest.raises(DeployError, match=r"^$"):
        await relay.run_ours([str(there), "sys.exit(1)"], os.environ)
