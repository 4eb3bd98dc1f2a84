"""Runs one of our own commands in a separate process, which shows its progress on this terminal itself."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from deploy.tools import processes
from deploy.tools.errors import DeployError

PROGRAM = ("-P", "-m", "deploy.cli.main")
"""Python's arguments that run ``triton-gateway``."""
_ENDS_WITHIN_S: Final = 60.0
"""Seconds that an interrupted command gets to remove its temporary files."""


async def run_ours(arguments: Sequence[str], env: Mapping[str, str], *, reads: bool = False) -> str:
    """Run ``triton-gateway`` with these arguments; return its stdout if this ``reads`` it, else an empty text.

    Raises ``DeployError`` without a message if it fails: it has said why. On cancellation the command is interrupted
    and awaited. A second cancellation kills it. The command is also interrupted when this process is killed.
    """
    argv = processes.leader_of([sys.executable, *PROGRAM, *arguments], signal.SIGINT)
    process = await asyncio.create_subprocess_exec(
        *argv, env={**env, "PYTHONUNBUFFERED": "1"}, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE if reads else None, start_new_session=True,
    )  # fmt: skip
    ending = asyncio.create_task(process.communicate())
    try:
        output, _ = await asyncio.shield(ending)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        await asyncio.wait({ending}, timeout=_ENDS_WITHIN_S)
        raise
    finally:
        if not ending.done():
            processes.kill_group(process.pid)
            await asyncio.wait({ending})
    if process.returncode:
        raise DeployError("")
    return (output or b"").decode(errors="replace")
