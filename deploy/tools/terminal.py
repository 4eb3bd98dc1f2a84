"""Shows the progress of a command: lines that stay, and one line that changes.

Used by every command that can take longer than two seconds. Lines begin with the seconds since the start. If the output
is not a terminal (a log, a pipe), the changing line is printed from time to time instead. Must never raise: with a
closed terminal, a command must still stop its child processes.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from typing import Final, TextIO

_QUIET_S: Final = 2.0
"""Seconds after the last line when a log gets the line that a terminal would show."""


class Terminal:
    """Progress on one stream: lines with the seconds since the start; on a terminal also one line that changes."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._began = time.monotonic()
        self._is_tty = out.isatty()
        self._live = ""
        self._spoke_at = 0.0

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """Show a line that stays."""
        self.show(f"[{self.elapsed():6.1f} s] {text}")

    def show(self, text: str) -> None:
        """Show a line without the seconds, so that it can be copied."""
        self._write(f"{self._erase()}{text}\n")
        self._live = ""

    def live(self, text: str, *, topic: str = "") -> None:
        """Replace the changing line. A log gets a line when ``topic`` changes, or every few seconds without one."""
        if self._is_tty:
            width = shutil.get_terminal_size().columns - 1
            self._live = text
            self._write(f"{self._erase()}{f'[{self.elapsed():6.1f} s] {text} …'[:width]}")
        elif (topic or text) != self._live and (topic or self.elapsed() - self._spoke_at >= _QUIET_S):
            self.say(f"{text} …")
            self._live = topic or text

    @contextlib.contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show ``text`` as the changing line while the context lasts."""
        self.live(text)
        try:
            yield
        finally:
            self.clear()

    def clear(self) -> None:
        """Remove the changing line, before something else is printed."""
        if self._is_tty and self._live:
            self._write(self._erase())
            self._live = ""

    def _erase(self) -> str:
        return "\r\x1b[2K" if self._is_tty else ""

    def _write(self, text: str) -> None:
        self._spoke_at = self.elapsed()
        # a closed terminal or pipe must not keep the children from being stopped
        with contextlib.suppress(OSError, ValueError):
            self._out.write(text)
            self._out.flush()


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table, with columns as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (head, *rows)]
