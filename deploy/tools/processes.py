"""Processes as the supervisor needs them: started as a family of their own, watched, ended together, described.

A family is a process with everything it started. A process group alone does not cover that: the embedded Triton is a
session of its own below its launcher. So each family also has a mark in its environment, which its members inherit.

Called by ``supervisor.py`` and, for one-off commands, by ``stock_cli.py``. Linux only (``/proc``, ``prctl``). Never
decides when to start or restart anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

# Runs in the child before the program takes its place (1 is PR_SET_PDEATHSIG). A program of its own and no preexec_fn:
# code between fork and exec of a process that has threads may deadlock.
_DIES_WITH_PARENT = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, int(sys.argv[2]), 0, 0, 0)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execv(sys.argv[3], sys.argv[3:])\n"
)

MARK = "TRITON_GATEWAY_FAMILY"
"""The variable that holds a family's mark."""

_LOOK_AGAIN_S = 0.05
_TAIL_BYTES = 64 << 10

_TELLS_WHY = re.compile(
    r"error|exception|fatal|critical|failed|failure|refused|denied|in use|no such|cannot|not found|\bE\d{4} ", re.I
)
_TRACEBACK_END = re.compile(r"^[\w.]+(Error|Exception|Exit|Interrupt|Unavailable|Refused|Failed|Warning)\b: ?")
_ONLY_A_NOTE = re.compile(r"^([IW]\d{4} |(debug|info|warning)\b)", re.I)
_LOG_FURNITURE = re.compile(
    r"^\s*(\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d[.,\d]*Z?\s*[-|]?\s*|^triton-gateway: |^E\d{4} [\d:.]+ \d+ "
)


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
    program = shutil.which(argv[0])
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "no such program", argv[0])
    with _opened(log) as out:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            "-c",
            _DIES_WITH_PARENT,
            str(os.getpid()),
            str(int(death_signal)),
            program,
            *argv[1:],
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


def start_time(pid: int) -> int | None:
    """Return the kernel's start time of a process, which with its id names it for ever; None when it is gone."""
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return int(fields[19]) if fields and fields[0] != "Z" else None


def members(leader: int, mark: str = "") -> list[int]:
    """Return the living processes of a family: the leader's process group, and whoever carries the mark."""
    assignment = f"{MARK}={mark}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(entry / "stat")
            if fields is None or fields[0] in "ZX":
                continue
            if int(fields[2]) == leader or (mark and assignment in _environment(entry)):
                found.append(int(entry.name))
    return found


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal (SIGSTOP) or a debugger, and does nothing at all."""
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return fields is not None and fields[0] in "Tt"


def cpu_seconds(leader: int, mark: str) -> float:
    """Return the CPU time the living members of a family have used so far."""
    stats = (_stat(Path(f"/proc/{pid}/stat")) for pid in members(leader, mark))
    return sum(int(fields[11]) + int(fields[12]) for fields in stats if fields) / os.sysconf("SC_CLK_TCK")


def signal_family(leader: int, mark: str, number: signal.Signals) -> None:
    """Send a signal to every member."""
    for pid in members(leader, mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


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


def describe_exit(code: int) -> str:
    """Say how a process ended: ``exit code 3``, ``killed by SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def log_end(log: Path) -> int:
    """Return the present size of a log, to read later what was added; 0 when there is none."""
    return log.stat().st_size if log.exists() else 0


def read_from(log: Path, offset: int) -> str:
    """Return what was appended to ``log`` after ``offset``, the last 64 KiB of it at most."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(offset, end - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_error_line(text: str, *, width: int = 240, otherwise_last: bool = True) -> str:
    """Return the line of a log that says best why its process ended: the last that reads like an error.

    Without one: the last line, or nothing with ``otherwise_last`` false. Lines of a structured log are shown by their
    message; time stamps in front are left out.
    """
    lines = [message for line in text.splitlines() if line.strip() and (message := _message(line))]
    chosen = next((line for line in reversed(lines) if _reads_like_an_error(line)), "")
    if not chosen and otherwise_last and lines:
        chosen = lines[-1]
    return chosen if len(chosen) <= width else chosen[: width - 1] + "…"


def _reads_like_an_error(line: str) -> bool:
    if _ONLY_A_NOTE.match(line):
        return False
    return bool(_TRACEBACK_END.match(line) or _TELLS_WHY.search(line))


def _message(line: str) -> str:
    line = line.strip()
    if line.startswith("{"):
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and "message" in record:
                return " ".join(str(record["message"]).split())
    return " ".join(_LOG_FURNITURE.sub("", line).split())


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def _stat(path: Path) -> list[str] | None:
    try:
        # the command name in parentheses may itself hold spaces and parentheses
        return path.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
