"""A fake of the terminal that records its lines."""

from __future__ import annotations

from collections.abc import Callable


class Screen:
    """Records the lines that stay."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        """Record a line with the time."""
        self.said.append(text)

    def show(self, text: str) -> None:
        """Record a line unchanged."""
        self.said.append(text)

    def live(self, text: str, *, topic: str = "", left: Callable[[], str] = str) -> None:
        """Ignore the changing line."""

    def clear(self) -> None:
        """There is none."""

    def elapsed(self) -> float:
        """No time passes."""
        return 0.0
