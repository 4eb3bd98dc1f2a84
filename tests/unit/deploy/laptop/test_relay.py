"""A command of ours in its own process: its progress is shown, and it is interrupted and awaited."""

from __future__ import annotations

import asyncio
import os
import sys

import psutil
import pytest

from deploy.laptop.relay import relayed
from deploy.tools.errors import DeployError
from tests.unit.deploy.laptop.screen import Screen
from tests.waiting import LIMIT_S, soon

BEGIN = """
import signal, sys
from deploy.cli.terminal import Terminal
screen = Terminal(sys.stderr)
"""
UNDOES = """
try:
    screen.say(f"started {os.getpid()}")
    signal.pause()
except KeyboardInterrupt:
    screen.say("removed again: m")
    sys.exit(130)
"""
IGNORES = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
screen.say(f"started {os.getpid()}")
while True:
    signal.pause()
"""


class Watched(Screen):
    """Tells when something was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()
        self.lively: list[str] = []

    def say(self, text: str) -> None:
        """Record a line, and tell."""
        super().say(text)
        self.changed.set()

    def live(self, text: str, *, topic: str = "") -> None:
        """Record the changing line."""
        self.lively.append(text)


def argv(code: str) -> list[str]:
    """Return a command line that runs this code."""
    return [sys.executable, "-c", f"import os{BEGIN}{code}"]


async def test_what_an_interrupted_command_still_says_is_shown() -> None:
    """It says what it has removed, or that nothing was registered."""
    screen = Watched()
    running = asyncio.create_task(relayed(argv(UNDOES), os.environ, screen))
    async with asyncio.timeout(LIMIT_S):
        await screen.changed.wait()
        running.cancel()
        await asyncio.wait({running})
    assert "removed again: m" == screen.said[-1]
    assert running.cancelled()


async def test_a_second_ctrl_c_ends_a_command_that_does_not_end() -> None:
    """The first one is ignored by it; after the second one no process is left."""
    screen = Watched()
    running = asyncio.create_task(relayed(argv(IGNORES), os.environ, screen))
    async with asyncio.timeout(LIMIT_S):
        await screen.changed.wait()
        process = psutil.Process(int(screen.said[0].split()[-1]))
        running.cancel()
        await asyncio.sleep(0)
        assert not running.done()
        running.cancel()
        await asyncio.wait({running})
        await soon(lambda: not process.is_running())
    assert running.cancelled()


async def test_progress_and_failures_are_the_same_without_utf_8() -> None:
    """The changing line ends with an ellipsis, which ASCII does not have."""
    screen = Watched()
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code = "screen.live('working', topic='t'); sys.stderr.write('triton-gateway: it broke\\n'); sys.exit(1)"
    with pytest.raises(DeployError, match=r"^it broke$"):
        await relayed(argv(code), environ, screen)
    assert ["working"] == screen.lively
