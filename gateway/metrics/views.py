"""What is shown of a snapshot of the numbers: ``/metrics``, statistics, and the page's last minutes and hour.

A question is one of the methods. With several workers their parent holds these views, and each worker passes
questions on (``workers``).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from gateway.metrics import exposition, statistics
from gateway.metrics.accumulator import Snapshot
from gateway.metrics.recent import Judged, Recent


class Views:
    """Answers questions from snapshots, one at a time. ``failures``: see ``Recent``."""

    def __init__(self, failures: Collection[str], *, shows_process: bool = False) -> None:
        """``shows_process``: whether CPU and memory of this process are the gateway's."""
        self._recent = Recent(failures)
        self._process = exposition.process_metrics() if shows_process else None

    def sample(self, snapshot: Snapshot) -> None:
        """Remember the numbers for the page; to be called about every ``recent.STEP_S``."""
        self._recent.sample(time.monotonic(), snapshot)

    def metrics(self, snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
        """Return the text of ``/metrics`` in the form that ``accept`` asks for, and its content type."""
        return exposition.respond(accept, exposition.Numbers(snapshot, self._process))

    def statistics(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        """Return the statistics of the Open Inference Protocol; see ``statistics``."""
        return statistics.of_snapshot(snapshot)

    def lately(self, snapshot: Snapshot, judged: Judged, endpoints: Sequence[str]) -> dict[str, Any]:
        """Return ``last_minute``, ``drift`` and the ``curves`` of ``endpoints`` for ``/v1/status``; see ``Recent``."""
        now = time.monotonic()
        return {
            "last_minute": self._recent.rows(now, snapshot), "drift": self._recent.drift(snapshot, judged),
            "curves": {name: self._recent.curves(name, now) for name in endpoints},
        }  # fmt: skip
