"""A terminal nobody looks at."""

from __future__ import annotations


class Screen:
    """Remembers what is to stay on it."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        """A line with the time."""
        self.said.append(text)

    def show(self, text: str) -> None:
        """A line as it is."""
        self.said.append(text)

    def live(self, text: str, *, topic: str = "") -> None:
        """What the next line replaces."""

    def elapsed(self) -> float:
        """No time passes."""
        return 0.0
