"""Starts a process as a family of its own, and ends a whole family; what a family is says ``process_family``.

Called by ``supervisor.py`` and, for one-off commands, by ``clearml_serving.py``. Never decides when to start or restart
anything.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from deploy.tools.process_family import MARK, leader_of, members, signal_family

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

    The kernel sends it ``death_signal`` when this process is gone, even after a SIGKILL. It counts the *thread* that
    forked as the parent, so call this from the main thread. Raises ``OSError`` when there is no such program.
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


def _opened(log: Path) -> IO[bytes]:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("ab")
    except OSError:  # a full disk: what runs without a log is better than what does not run
        return Path(os.devnull).open("ab")


async def end_family(leader: int, mark: str, *, grace: float, hurry: asyncio.Event | None = None) -> bool:
    """End what is left of a family: SIGTERM, ``grace`` seconds (cut short by ``hurry``), SIGKILL.

    Returns False when SIGKILL was needed. On return no member is alive.
    """
    if not members(leader, mark):
        return True
    signal_family(leader, mark, signal.SIGTERM)
    if await _gone(leader, mark, within=grace, hurry=hurry):
        return True
    for _ in range(100):
        # again and again: a member may have started another between the look and the signal
        signal_family(leader, mark, signal.SIGKILL)
        if await _gone(leader, mark, within=0.1):
            break
    return False


async def _gone(leader: int, mark: str, *, within: float, hurry: asyncio.Event | None = None) -> bool:
    """Wait until no member is alive; False when ``within`` has passed or ``hurry`` is set first."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + within
    while members(leader, mark):
        if clock() >= deadline or (hurry is not None and hurry.is_set()):
            return False
        await asyncio.sleep(_LOOK_AGAIN_S)
    return True
