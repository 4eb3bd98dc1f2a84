"""Counts labels that callers send back: predicted and true labels by version.

The number of series is bounded whatever callers send: further labels of a version, and further versions of an endpoint,
are counted as ``other``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from gateway.metrics import catalog
from gateway.metrics.accumulator import Accumulator
from gateway.metrics.drift import OTHER

MAX_LABELS: Final = 15
"""Labels per version with counts of their own; each pair of predicted and true label is a series."""
MAX_VERSIONS: Final = 50
"""Versions per endpoint with counts of their own."""
ANOTHER: Final = "another"
"""The true label, if prediction and label are both ``other`` and differ: right is who has two equal ones."""


class FeedbackCounts:
    """Counts labelled answers. For use by one event loop."""

    def __init__(self, numbers: Accumulator) -> None:
        self._numbers = numbers
        self._values: dict[tuple[str, str], set[str]] = {}

    def add(self, endpoint: str, version: str, predicted: str, label: str, known: Iterable[str] = ()) -> None:
        """Count one answer whose true label is known; ``known`` are the version's labels, if known."""
        pair = (endpoint, version)
        if pair not in self._values and sum(name == endpoint for name, _ in self._values) >= MAX_VERSIONS:
            pair = (endpoint, OTHER)
        values = self._values.setdefault(pair, set(islice(known, MAX_LABELS)))
        shown = []
        for value in (predicted, label):
            if value not in values and len(values) < MAX_LABELS:
                values.add(value)
            shown.append(value if value in values else OTHER)
        if shown == [OTHER, OTHER] and predicted != label:
            shown[1] = ANOTHER
        self._numbers.count(catalog.FEEDBACK, *pair, *shown)
