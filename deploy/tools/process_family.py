"""A family: a process with everything it started. Says how its leader is started, finds its members and signals them;
starting is ``processes``'.

A process group alone does not cover that: the embedded Triton is a session of its own below its launcher. So each
family also has a mark in its environment, which its members inherit.
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
"""A leader that no process has."""


def leader_of(argv: Sequence[str], death_signal: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return the command line that starts ``argv`` as a family's leader: the kernel sends it ``death_signal`` when this
    process is gone. Raises ``FileNotFoundError`` when there is no such program.
    """
    program = shutil.which(argv[0])
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "no such program", argv[0])
    return parent_death.ending_with_parent([program, *argv[1:]], death_signal)


def members(leader: int, mark: str = "") -> list[int]:
    """Return the living processes of a family: the leader's process group, and whoever carries the mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == leader or (mark and process.environ().get(MARK) == mark):
                found += [process.pid] if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else []
    return found


def carries(pid: int, mark: str) -> bool:
    """Say whether a living process belongs to the family ``mark``: its id alone may meanwhile be another's."""
    with contextlib.suppress(psutil.Error):
        return bool(mark) and psutil.Process(pid).environ().get(MARK) == mark
    return False


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal (SIGSTOP) or a debugger, and does nothing at all."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return False


def cpu_seconds(leader: int, mark: str) -> float:
    """Return the CPU time the living members of a family have used so far."""
    used = 0.0
    for pid in members(leader, mark):
        with contextlib.suppress(psutil.Error):
            used += sum(psutil.Process(pid).cpu_times()[:2])
    return used


def signal_family(leader: int, mark: str, number: signal.Signals) -> None:
    """Send a signal to every member."""
    for pid in members(leader, mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
