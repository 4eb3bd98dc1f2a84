"""Process families: a process with all its descendants. Builds the leader's command, finds and signals the members.

``processes`` starts families. A process group is not enough: the embedded Triton runs in a session of its own below its
launcher. Each family therefore also has a mark in its environment, which its members inherit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
from collections.abc import Sequence

import psutil

from gateway import parent_death

MARK = "TRITON_GATEWAY_FAMILY"
"""The variable that holds a family's mark."""

NOBODY = -1
"""A process id that no process has."""


def leader_of(argv: Sequence[str], death_signal: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return the command line that starts ``argv`` as a family's leader.

    The kernel sends it ``death_signal`` when this process ends. Raises ``FileNotFoundError`` if there is no such
    program.
    """
    program = shutil.which(argv[0])
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "no such program", argv[0])
    return parent_death.ending_with_parent([program, *argv[1:]], death_signal)


def members(leader: int, mark: str = "") -> list[int]:
    """Return the living processes of a family: the leader's process group, and all processes with the mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == leader or (mark and process.environ().get(MARK) == mark):
                found += [process.pid] if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else []
    return found


def carries(pid: int, mark: str) -> bool:
    """Return True if a living process has the mark: its id alone may have been reused."""
    with contextlib.suppress(psutil.Error):
        return bool(mark) and psutil.Process(pid).environ().get(MARK) == mark
    return False


def is_stopped(pid: int) -> bool:
    """Return True if a process is stopped by a signal (SIGSTOP) or a debugger."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return False


def cpu_seconds(leader: int, mark: str) -> float:
    """Return the CPU time in seconds that the living members of a family have used so far."""
    used = 0.0
    for pid in members(leader, mark):
        with contextlib.suppress(psutil.Error):
            used += sum(psutil.Process(pid).cpu_times()[:2])
    return used


def signal_family(leader: int, mark: str, number: signal.Signals) -> None:
    """Send a signal to all members of a family."""
    for pid in members(leader, mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
