"""Shows the progress of a command as lines. They begin with the seconds since the start.

Must never raise: with a closed terminal, a command must still stop its child processes.
"""

from __future__ import annotations

import contextlib
import time
from typing import Final, TextIO

_QUIET_S: Final = 2.0
"""Seconds after the last line before it is said what a command waits for."""


class Terminal:
    """Progress on one stream: lines with the seconds since the start."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._began = time.monotonic()
        self._topic = ""
        self._spoke_at = 0.0

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """Show a line."""
        self.show(f"[{self.elapsed():6.1f} s] {text}")

    def show(self, text: str) -> None:
        """Show a line without the seconds, so that it can be copied."""
        self._topic, self._spoke_at = "", self.elapsed()
        # a closed terminal or pipe must not keep the children from being stopped
        with contextlib.suppress(OSError, ValueError):
            self._out.write(f"{text}\n")
            self._out.flush()

    def live(self, text: str, *, topic: str = "") -> None:
        """Show what goes on, if ``topic`` is a new one; without a topic, if nothing was shown for two seconds."""
        if (topic or text) != self._topic and (topic or self.elapsed() - self._spoke_at >= _QUIET_S):
            self.say(f"{text} …")
            self._topic = topic or text


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table, with columns as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (head, *rows)]
