"""Starts a process as the leader of a family, and ends whole families (``process_family``).

Called by ``supervisor.py`` and, for single commands, by ``clearml_serving.py``. Never decides when to start or restart
a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from deploy.tools.process_family import MARK, leader_of, members, signal_family
from deploy.tools.process_logs import log_end, read_from

_LOOK_AGAIN_S = 0.05


async def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    mark: str = "",
    death_signal: signal.Signals = signal.SIGTERM,
) -> asyncio.subprocess.Process:
    """Start ``argv`` as leader of its own session and process group, with both outputs appended to ``log``.

    The kernel sends it ``death_signal`` when this process ends, even by SIGKILL. The kernel regards the *thread* that
    forked as the parent, so call this from the main thread. Raises ``OSError`` if there is no such program.
    """
    command = leader_of(argv, death_signal)
    with _opened(log) as out:
        return await asyncio.create_subprocess_exec(
            *command,
            env={**env, MARK: mark},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


async def output_of(
    argv: Sequence[str], *, env: Mapping[str, str], log: Path, timeout: float
) -> tuple[int | None, str]:  # fmt: skip
    """Run ``argv`` to its end, and return its exit code and what it appended to ``log``. None: it was ended, too slow.

    No process of its family is left, also if this is cancelled.
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
            with contextlib.suppress(ProcessLookupError):
                signal_family(process.pid, "", signal.SIGKILL)
            await process.wait()
    return code, read_from(log, offset)


def _opened(log: Path) -> IO[bytes]:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("ab")
    except OSError:  # a full disk: running without a log is better than not running
        return Path(os.devnull).open("ab")


async def end_family(leader: int, mark: str, *, grace: float, hurry: asyncio.Event | None = None) -> bool:
    """End the remaining members of a family: SIGTERM, ``grace`` seconds (ended early by ``hurry``), SIGKILL.

    Returns False if SIGKILL was needed. No member is alive afterwards.
    """
    if not members(leader, mark):
        return True
    signal_family(leader, mark, signal.SIGTERM)
    if await _gone(leader, mark, within=grace, hurry=hurry):
        return True
    for _ in range(100):
        # repeatedly: a member may have started another process between the search and the signal
        signal_family(leader, mark, signal.SIGKILL)
        if await _gone(leader, mark, within=0.1):
            break
    return False


async def _gone(leader: int, mark: str, *, within: float, hurry: asyncio.Event | None = None) -> bool:
    """Wait until no member is alive. Return False if ``within`` seconds pass or ``hurry`` is set first."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + within
    while members(leader, mark):
        if clock() >= deadline or (hurry is not None and hurry.is_set()):
            return False
        await asyncio.sleep(_LOOK_AGAIN_S)
    return True
