"""Long work in a thread that leaves the event loop its turn. Imports nothing of ours.

A thread that computes keeps the interpreter's lock for 5 ms at a time, and a request needs the lock several times: ten
milliseconds of waiting for one change of the configuration, for as long as the change is read. Work that calls ``Pace``
often keeps the lock for a millisecond at most.
"""

from __future__ import annotations

import time
from typing import Final

_STEP_S: Final = 0.001
_PAUSE_S: Final = 0.0002


class Pace:
    """Called between small pieces of work, in a thread: sleeps a moment after every millisecond."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        """Sleep, where it is time to."""
        if time.perf_counter() - self._since >= _STEP_S:
            time.sleep(_PAUSE_S)
            self._since = time.perf_counter()


def unhurried() -> None:
    """Do nothing: what to call where nobody waits."""
