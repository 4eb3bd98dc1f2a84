"""Decides when requests are admitted during an overload: shortly before the next call to Triton needs them. Pure.

With a limit of work alone, requests are admitted as soon as a call has left, and wait for that whole call and then for
their own. The next call is as full with requests that are admitted last, and these wait less. So the window opens
shortly before the next call is needed: as early as the last calls took to fill, and a little earlier. If a call was
not full by then, the window opens earlier for the next one, or stays open all the time.

Times are given, in seconds.
"""

from __future__ import annotations

from math import inf
from typing import Final

_SPARE: Final = 0.1
_SPARE_S: Final = 5e-3
"""A call should be full some time before it is needed, because arrivals and the end of the call in front are never
exactly when they are expected: 10 % of the call in front and of the window, plus 5 ms.
"""
_WIDEN: Final = 1.5
"""After a call that was not full, the window opens 1.5 times as early."""


class AdmissionWindow:
    """The window of one batcher. It opens ``lead`` seconds before the next call is needed; infinite: always open."""

    __slots__ = ("_filled_at", "lead")

    def __init__(self) -> None:
        self.lead = inf
        self._filled_at = inf

    def filled(self, now: float) -> None:
        """Record that the queue now holds as much as the next call needs."""
        if now < self._filled_at:
            self._filled_at = now

    def left(self, now: float, needed: float, seconds: float, *, is_full: bool) -> None:
        """Record that a call left at ``now``, and adjust the window for the next one.

        The call is ``needed`` when the one in front of it ends, which takes ``seconds``. ``is_full``: it had as many
        rows as it could.
        """
        least = _SPARE * (seconds + min(self.lead, seconds)) + _SPARE_S
        spare = min(needed - min(self._filled_at, now), seconds) - least
        self._filled_at = inf
        lead = min(self.lead, seconds)
        if is_full:
            lead = max(lead - (spare / 2 if spare > 0 else spare), least)
        else:
            lead *= _WIDEN
        self.lead = lead if lead < seconds else inf
