"""When those are let in who wait for the next call, while more come than can be answered: not before it needs them.

A limit of work alone lets in whoever comes as soon as a call has left: they wait for the whole of that call, and for
their own. The next call is as full with those who come last, and they wait for less. So the door opens shortly before
the next call is needed, as early as the last calls took to be filled, and a little earlier. If a call was not full by
then, it opens earlier, or is not shut at all.

Pure: times are given, in seconds.
"""

from __future__ import annotations

from math import inf
from typing import Final

_SPARE: Final = 0.1
"""A call should be full so much of the time of the one in front of it before it is needed, and so much of the time that
the door is open, and ``_SPARE_S``: arrivals and the end of that call are never quite when they are expected.
"""
_SPARE_S: Final = 5e-3
_EARLIER: Final = 1.5
"""After a call that was not full the door opens so many times as early."""


class Door:
    """The door of one batcher. ``lead``: so long before the next call is needed it opens; infinite: it is not shut."""

    __slots__ = ("_filled_at", "lead")

    def __init__(self) -> None:
        self.lead = inf
        self._filled_at = inf

    def filled(self, now: float) -> None:
        """Take note that as much waits as the next call needs."""
        if now < self._filled_at:
            self._filled_at = now

    def left(self, now: float, needed: float, seconds: float, *, is_full: bool) -> None:
        """Take note that a call has left at ``now``, which is needed at ``needed``: when the one in front of it ends,
        which takes ``seconds``. ``is_full``: it could have been no fuller.
        """
        least = _SPARE * (seconds + min(self.lead, seconds)) + _SPARE_S
        spare = min(needed - min(self._filled_at, now), seconds) - least
        self._filled_at = inf
        lead = min(self.lead, seconds)
        if is_full:
            lead = max(lead - (spare / 2 if spare > 0 else spare), least)
        else:
            lead *= _EARLIER
        self.lead = lead if lead < seconds else inf
