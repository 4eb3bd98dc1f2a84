"""Whether limits of work are in force, and how much of a limit each class of priority may fill."""

from __future__ import annotations

from math import inf
from typing import Final

CEILINGS: Final = (17 / 16, 1.0, 0.5)
"""The share of a limit that each class of priority may fill, by rank."""
PRESSED_S: Final = 5.0
"""Limits of work stay in force for 5 s after they were last needed."""


class Pressure:
    """Whether limits of work (``batching.limit``) are in force.

    ``rule``: ``auto`` (while more work arrives than is done, or requests are refused), ``always`` or ``off``. The
    process has one ``Pressure``, and each endpoint version has one ``below`` it, for its own work. That of the process
    is on while one below it is.
    """

    __slots__ = ("_above", "is_on", "may_change", "until")

    def __init__(self, rule: str = "off", above: Pressure | None = None) -> None:
        self.may_change = rule == "auto"
        self.is_on = rule == "always"
        self.until = inf
        """Loop time at which it ends, unless it is pressed again."""
        self._above = above

    def below(self) -> Pressure:
        """Return the pressure of one endpoint version, with the same rule."""
        return Pressure("auto" if self.may_change else "always" if self.is_on else "off", self)

    def press(self, now: float) -> None:
        """Put limits into force: more work arrives than is done, or a request was refused because of overload."""
        if self.may_change:
            self.until = now + PRESSED_S
            self.is_on = True
            if self._above is not None:
                self._above.press(now)

    def look(self, now: float) -> bool:
        """Lift limits that were not needed for 5 s; return whether they are in force."""
        if self.may_change and now >= self.until:
            self.is_on = False
        return self.is_on


NO_PRESSURE: Final = Pressure()
