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


@pytest.mark.parametrize("code", [UNDOES, IGNORES], ids=["undoes", "ignores"])
async def test_an_interrupted_command_undoes_what_it_has_done_or_is_ended_by_a_second_ctrl_c(
    there: Path, code: str
) -> None:
    """It is awaited for that; no process is left."""
    running = asyncio.create_task(relay.run_ours([str(there), code], os.environ))
    async with asyncio.timeout(LIMIT_S):
        await soon(lambda: there.exists() and there.read_text() != "")
        process = psutil.Process(int(there.read_text()))
        running.cancel()
        if code == IGNORES:
            await asyncio.sleep(0)
            assert not running.done()
            running.cancel()
        await asyncio.wait({running})
        await soon(lambda: not process.is_running())
    assert running.cancelled()
    assert (there.read_text() == "removed again") == (code == UNDOES)


async def test_its_output_is_read_and_its_failure_is_not_said_again(there: Path) -> None:
    """The error has no message: the command has printed its own."""
    assert "7\n" == await relay.run_ours([str(there), "print(7)"], os.environ, reads=True)
    with pytest.raises(DeployError, match=r"^$"):
        await relay.run_ours([str(there), "sys.exit(1)"], os.environ)
