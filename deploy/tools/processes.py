"""Starts a process as the leader of a group of its own, and kills whole groups.

Called by ``supervisor`` and, for single commands, by ``clearml_serving`` and others. Never decides when to start or
restart a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from deploy.tools.process_logs import log_end, read_from
from gateway import parent_death


def leader_of(argv: Sequence[str], death_signal: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return the command line that starts ``argv`` so that it ends with this process, however that ends.

    The kernel sends it ``death_signal`` then. Raises ``FileNotFoundError`` if there is no such program.
    """
    program = shutil.which(argv[0])
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "no such program", argv[0])
    return parent_death.ending_with_parent([program, *argv[1:]], death_signal)


async def spawn(
    argv: Sequence[str], *, env: Mapping[str, str], log: Path, death_signal: signal.Signals = signal.SIGTERM
) -> asyncio.subprocess.Process:
    """Start ``argv`` as leader of its own session and process group, with both outputs appended to ``log``.

    The kernel sends it ``death_signal`` when this process ends, even by SIGKILL. The kernel regards the *thread* that
    forked as the parent, so call this from the main thread. Raises ``OSError`` if there is no such program.
    """
    command = leader_of(argv, death_signal)
    with _opened(log) as out:
        return await asyncio.create_subprocess_exec(
            *command, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )


async def output_of(
    argv: Sequence[str], *, env: Mapping[str, str], log: Path, timeout: float
) -> tuple[int | None, str]:  # fmt: skip
    """Run ``argv`` to its end, and return its exit code and what it appended to ``log``. None: it was ended, too slow.

    No process of its group is left, also if this is cancelled.
    """
    offset = log_end(log)
    process = await spawn(argv, env=env, log=log, death_signal=signal.SIGKILL)
    code = None
    try:
        async with asyncio.timeout(timeout):
            code = await process.wait()
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            kill_group(process.pid)
            await process.wait()
    return code, read_from(log, offset)


def kill_group(leader: int) -> None:
    """Kill the processes of a group that are left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _opened(log: Path) -> IO[bytes]:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("ab")
    except OSError:  # a full disk: running without a log is better than not running
        return Path(os.devnull).open("ab")
