"""When failures that hardly ever happen get a series: with the first one, and at 0 for a minute.

Prometheus sees growth only: of a series that is born with its first burst it sees nothing. So what fails in everyday
life is there from the start, at 0. Everything else would be seven series for every version that say 0 for ever; such a
one begins when it is needed, and says 0 for so long that every scrape sees it. The count is whole after that. Canaries
are watched for just these, so all of theirs are there from the start. Only what ``/metrics`` shows at the level
``brief`` goes by this; what is counted, and every other reader, does not.
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
"""What autoscalers read, and what a lost Triton looks like: never held back."""
HELD_S: Final = 65.0
"""Longer than any usual scrape interval."""


class Births:
    """Remembers when a rare failure was looked at first; with several workers, all of them go by the first look."""

    def __init__(
        self, failures: Iterable[str], folder: Path | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        """``failures``: the kinds that have a series before the first one occurs; ``folder``: what workers share."""
        self._rare = frozenset(failures) - set(EVERYDAY)
        self._folder = folder
        self._now = now
        self._born: dict[Series, float] = {}

    def shown(self, series: Series, value: float) -> float | None:
        """Return what is to be shown of a counter; None: nothing, there is no series yet."""
        if series.metric != REQUESTS.name:
            return value
        _, version, route, outcome = series.labels
        # Without a version it is a refusal before anybody was asked, born with the first one as ever.
        if outcome not in self._rare or not version or route == CANARY:
            return value
        if not value:
            return None
        born = self._born.get(series)
        if born is None:
            born = self._born[series] = self._first_look(series)
        return value if self._now() - born >= HELD_S else 0.0

    def _first_look(self, series: Series) -> float:
        """Write down that it is now, unless another worker has; a link is made whole, and by one of them only."""
        now = self._now()
        if self._folder is None:
            return now
        path = self._folder / f"{hashlib.sha256(repr(series).encode()).hexdigest()[:32]}.born"
        try:
            with contextlib.suppress(FileExistsError):
                path.symlink_to(repr(now))
            return float(path.readlink().name)
        except OSError:
            return now - HELD_S  # a full disk: the count is worth more than its first rise
