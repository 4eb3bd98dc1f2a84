"""Finds out why a process ended, from its exit code and its log, as one line.

Called by all code that starts processes: the supervisor, the stock CLI.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

_TAIL_BYTES = 64 << 10
_WIDTH = 240

_TELLS_WHY = re.compile(
    r"error|exception|fatal|critical|failed|failure|refused|denied|in use|no such|cannot|not found|\bE\d{4} ", re.I
)
_ONLY_A_NOTE = re.compile(r"^[IW]\d{4} |\b(DEBUG|INFO|WARNING)\b")


def describe_exit(code: int) -> str:
    """Return how a process ended: ``exit code 3``, ``killed by SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def log_end(log: Path) -> int:
    """Return the current size of a log, to read later what was added; 0 if there is no log."""
    return log.stat().st_size if log.exists() else 0


def read_from(log: Path, offset: int) -> str:
    """Return the text appended to ``log`` after ``offset``, the last 64 KiB at most."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(offset, end - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_error_line(text: str, *, otherwise_last: bool = True) -> str:
    """Return the line of a log that best explains why its process ended: the last one that looks like an error.

    Without such a line: the last line, or nothing if ``otherwise_last`` is False.
    """
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines and otherwise_last else ""
    chosen = next((one for one in reversed(lines) if _TELLS_WHY.search(one) and not _ONLY_A_NOTE.search(one)), last)
    return chosen if len(chosen) <= _WIDTH else chosen[: _WIDTH - 1] + "…"
