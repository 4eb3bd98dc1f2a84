"""Counts labels that callers send back: predicted and true labels by version, and right answers by score.

The number of series is bounded whatever callers send: further labels of a version, and further versions of an endpoint,
are counted as ``other``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.metrics import catalog
from gateway.metrics.accumulator import Accumulator
from gateway.metrics.drift import OTHER

MAX_LABELS: Final = 15
"""Labels per version with counts of their own; each pair of predicted and true label is a series."""
MAX_VERSIONS: Final = 50
"""Versions per endpoint with counts of their own."""
NO_SCORE: Final = "none"
BINS: Final = tuple(f"{bound:g}" for bound in catalog.RATIO_BUCKETS)
"""Names of the score bins: their upper bounds."""
RIGHT: Final = "right"
WRONG: Final = "wrong"


@dataclass(frozen=True, slots=True)
class Labelled:
    """An answer whose true label is known. ``score`` is that of ``predicted``, from 0 to 1; None if unknown."""

    endpoint: str
    version: str
    predicted: str
    label: str
    score: float | None = None
    known: Sequence[str] = ()
    """The version's labels, if known."""


class FeedbackCounts:
    """Counts labelled answers. For use by one event loop."""

    def __init__(self, numbers: Accumulator) -> None:
        self._numbers = numbers
        self._values: dict[tuple[str, str], set[str]] = {}

    def add(self, one: Labelled) -> None:
        """Count one answer."""
        pair = (one.endpoint, one.version)
        if pair not in self._values and sum(name == one.endpoint for name, _ in self._values) >= MAX_VERSIONS:
            pair = (one.endpoint, OTHER)
        values = self._values.setdefault(pair, set(one.known[:MAX_LABELS]))
        shown = []
        for value in (one.predicted, one.label):
            if value not in values and len(values) < MAX_LABELS:
                values.add(value)
            shown.append(value if value in values else OTHER)
        self._numbers.count(catalog.FEEDBACK, *pair, *shown).value += 1
        bound = NO_SCORE if one.score is None else BINS[bisect_left(catalog.RATIO_BUCKETS, one.score)]
        outcome = RIGHT if one.predicted == one.label else WRONG
        self._numbers.count(catalog.FEEDBACK_ANSWERS, *pair, bound, outcome).value += 1
