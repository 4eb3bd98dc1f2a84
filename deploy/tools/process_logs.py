"""Finds out why a process ended, from its exit code and its log, as one line.

Called by all code that starts processes: the supervisor, the stock CLI.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from pathlib import Path

_TAIL_BYTES = 64 << 10

_TELLS_WHY = re.compile(
    r"error|exception|fatal|critical|failed|failure|refused|denied|in use|no such|cannot|not found|\bE\d{4} ", re.I
)
_TRACEBACK_END = re.compile(r"^[\w.]+(Error|Exception|Exit|Interrupt|Unavailable|Refused|Failed|Warning)\b: ?")
_ONLY_A_NOTE = re.compile(r"^([IW]\d{4} |(debug|info|warning)\b)", re.I)
_LOG_FURNITURE = re.compile(
    r"^\s*(\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d[.,\d]*Z?\s*[-|]?\s*|^triton-gateway: |^E\d{4} [\d:.]+ \d+ "
)


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


def last_error_line(text: str, *, width: int = 240, otherwise_last: bool = True) -> str:
    """Return the line of a log that best explains why its process ended: the last one that looks like an error.

    Without such a line: the last line, or nothing if ``otherwise_last`` is False. Of a structured log only the message
    is shown; leading time stamps are left out.
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
