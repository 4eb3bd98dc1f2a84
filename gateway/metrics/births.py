"""Decides when the series of a rare failure appears on ``/metrics``: with the first failure, at 0 for a minute.

Prometheus computes rates from increases: a series that appears with its first failures shows no increase. Frequent
kinds of failure therefore have a series at 0 from the start. For the others this would be seven series per version that
nearly always say 0. Such a series appears with the first failure and shows 0 until every scraper has read it, then its
count. Series of canaries are all there from the start, because canaries are watched for failures. This applies only to
what ``/metrics`` shows at the level ``brief``; counting and all other readers are unaffected.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from gateway.errors import BackendUnavailable, DeadlineExceeded, Overloaded
from gateway.metrics.accumulator import Series
from gateway.metrics.catalog import REQUESTS
from gateway.trace import CANARY

EVERYDAY: Final = (Overloaded.kind, DeadlineExceeded.kind, BackendUnavailable.kind)
"""Shown from the start: autoscalers read them, and a lost Triton shows up as them."""
HELD_S: Final = 65.0
"""Longer than any usual scrape interval."""


class Births:
    """Remembers when each rare failure was first seen; workers that share a folder use the first one's time."""

    def __init__(
        self, failures: Iterable[str], folder: Path | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        """``failures``: outcomes with a series before they occur; ``folder``: shared by the workers."""
        self._rare = frozenset(failures) - set(EVERYDAY)
        self._folder = folder
        self._now = now
        self._born: dict[Series, float] = {}

    def shown(self, series: Series, value: float) -> float | None:
        """Return the value to show for a counter; None if its series must not appear yet."""
        if series.metric != REQUESTS.name:
            return value
        _, version, route, outcome = series.labels
        # Without a version, the request was refused before routing; such a series appears with its first count.
        if outcome not in self._rare or not version or route == CANARY:
            return value
        if not value:
            return None
        born = self._born.get(series)
        if born is None:
            born = self._born[series] = self._first_look(series)
        return value if self._now() - born >= HELD_S else 0.0

    def _first_look(self, series: Series) -> float:
        """Record the time of the first sight, unless another worker has; creating a symlink is atomic."""
        now = self._now()
        if self._folder is None:
            return now
        path = self._folder / f"{hashlib.sha256(repr(series).encode()).hexdigest()[:32]}.born"
        try:
            with contextlib.suppress(FileExistsError):
                path.symlink_to(repr(now))
            return float(path.readlink().name)
        except OSError:
            return now - HELD_S  # no shared time (a full disk): show the count at once
