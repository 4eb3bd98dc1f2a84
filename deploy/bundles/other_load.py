"""How much of the machine other programs used while speeds were measured: beside them, speeds mean little.

PyTorch suffers more than others if it must wait for a core, so a busy machine makes candidates look many times as fast
as they are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

import psutil

NOTICED: Final = 0.1
"""Share of the machine's cores from which on other load is told."""


class OtherLoad:
    """Counts from its creation on. ``read`` returns CPU seconds of the whole machine, and of this process."""

    def __init__(
        self, read: Callable[[], tuple[float, float]] | None = None, clock: Callable[[], float] = time.monotonic,
        cores: int = 0,
    ) -> None:  # fmt: skip
        self._read = read or _cpu_seconds
        self._clock = clock
        self._cores = cores or os.cpu_count() or 1
        self._began = (*self._read(), clock())

    def share(self) -> float:
        """Return the share of all cores that others have used, from 0 to 1."""
        everyone, own, now = (*self._read(), self._clock())
        others = (everyone - self._began[0]) - (own - self._began[1])
        return min(1.0, max(0.0, others / max(1e-9, (now - self._began[2]) * self._cores)))


def sentence(share: float) -> str:
    """Return what to say of speeds that were measured beside this load; empty if there was little."""
    if share < NOTICED:
        return ""
    return (
        f"The speeds were measured while other programs used {share:.0%} of this machine's cores, so they are rough: "
        "measure them again on a quiet machine."
    )


def _cpu_seconds() -> tuple[float, float]:
    times = psutil.cpu_times()
    spent = sum(times) - times.idle - getattr(times, "iowait", 0.0)
    spent -= getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # contained in user and nice
    return spent, sum(os.times()[:4])
