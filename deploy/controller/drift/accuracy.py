"""How often each version is right, from the labels that callers send back. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from deploy.controller.counters import Numbers
from gateway import metrics

Z: Final = 1.959963984540054
"""Standard deviations of a 95 % interval."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The labelled answers of one version; ``at``: when the last label came (Unix seconds)."""

    right: float = 0.0
    labels: float = 0.0
    at: float = 0.0

    def and_(self, more: Labels, now: float) -> Labels:
        """Return these labels and ``more``, which came until ``now``."""
        return Labels(self.right + more.right, self.labels + more.labels, now)

    @property
    def accuracy(self) -> float:
        """The share of labelled answers that were right."""
        return self.right / self.labels

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the accuracy."""
        n, share, z2 = self.labels, self.accuracy, Z * Z
        middle = (share + z2 / (2 * n)) / (1 + z2 / n)
        half = Z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
        return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))

    def described(self) -> dict[str, float]:
        """Return plain values for programs, and for the gateways' page."""
        low, high = self.interval
        return {"value": round(self.accuracy, 6), "low": round(low, 6), "high": round(high, 6), "labels": self.labels}


def counted(numbers: Numbers) -> dict[tuple[str, str], Labels]:
    """Return the labels among these counters, by endpoint and version: right if predicted and label are the same."""
    right: dict[tuple[str, str], float] = defaultdict(float)
    every: dict[tuple[str, str], float] = defaultdict(float)
    for (name, *labels), value in numbers.items():
        if name == metrics.catalog.FEEDBACK.name and value > 0:
            endpoint, version, predicted, label = labels
            every[endpoint, version] += value
            right[endpoint, version] += value * (predicted == label)
    return {version: Labels(right[version], labels) for version, labels in every.items()}
