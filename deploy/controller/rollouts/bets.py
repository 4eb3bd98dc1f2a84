"""The stakes of a sequential test by betting (an e-process), and sums of stakes in logarithms. Pure.

``gate`` explains how the test works and why it may be evaluated at any time. ``labels`` and ``pairs`` use the same
stakes to compare what versions answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

RATIOS: Final = (2.0, 3.0, 6.0, 15.0, 50.0)
"""The alternatives that are bet on: how many times the permitted ones the canary's odds of a failure are."""
_EPOCH: Final = 1000
"""Canary requests after which a new series of bets starts beside the old ones."""
_MAX_EPOCHS: Final = 40
"""At most so many series, to bound the size of the record."""


@dataclass(frozen=True, slots=True)
class Bets:
    """The stakes of one test: for each epoch and ratio, the logarithm of what a stake of 1 has become."""

    epochs: tuple[tuple[float, ...], ...] = ((0.0,) * len(RATIOS),)
    seen: int = 0
    ratios: tuple[float, ...] = RATIOS
    """The alternative of each bet: how many times the permitted ones the odds of a hit are."""

    def after(self, canary: int, canary_hits: int, stable: int, stable_hits: int, allowed: float = 1.0) -> Bets:
        """Return the stakes after an interval. Unchanged if one side had no requests.

        ``allowed``: the permitted ratio of the canary's odds of a hit to stable's.
        """
        if not canary or not stable:
            return self
        return self.moved(_likelier(canary, canary_hits, stable, stable_hits, np.array(self.ratios), allowed), canary)

    def moved(self, gains: Sequence[float], seen: int) -> Bets:
        """Return the stakes after ``seen`` more requests. ``gains``: growth of the logarithm of each stake."""
        epochs = tuple(tuple(log + gain for log, gain in zip(epoch, gains, strict=True)) for epoch in self.epochs)
        moved = replace(self, epochs=epochs, seen=self.seen + seen)
        return moved.renewed() if moved.seen >= _EPOCH else moved

    def renewed(self) -> Bets:
        """Return the stakes with a new epoch started."""
        if len(self.epochs) >= _MAX_EPOCHS:
            return replace(self, seen=0)
        return replace(self, epochs=(*self.epochs, (0.0,) * len(self.ratios)), seen=0)

    @property
    def log_evidence(self) -> float:
        """The logarithm of the total stake: epochs start with shares 1/2, 1/6, 1/12 …, the rest is not yet bet."""
        terms = [-math.log(len(self.epochs) + 1)]
        for index, epoch in enumerate(self.epochs):
            share = -math.log((index + 1) * (index + 2))
            terms.append(share + log_mean(epoch))
        return log_sum(terms)


def log_sum(logs: Sequence[float]) -> float:
    """Return the logarithm of the sum of the values whose logarithms are ``logs``."""
    most = max(logs)
    return most + math.log(math.fsum(math.exp(log - most) for log in logs))


def log_mean(logs: Sequence[float]) -> float:
    """Return the logarithm of the mean of the values whose logarithms are ``logs``."""
    return log_sum(logs) - math.log(len(logs))


def _likelier(
    canary: int, canary_hits: int, stable: int, stable_hits: int, odds: NDArray[np.float64], allowed: float
) -> list[float]:
    """Return log likelihood ratios: how much likelier each of ``odds`` (above 1) makes this split of the hits.

    Given the sum of hits, the canary's have Fisher's noncentral hypergeometric distribution. The ratio has a mean of at
    most 1 if the canary's odds of a hit are at most ``allowed`` times stable's.
    """
    total = canary_hits + stable_hits
    least, most = max(0, total - stable), min(canary, total)
    if least == most:  # only one split is possible
        return [0.0] * len(odds)
    hits = np.arange(least, most + 1, dtype=np.float64)
    steps = np.log((canary - hits[:-1]) * (total - hits[:-1]) / (hits[1:] * (stable - total + hits[1:])))
    weights = np.concatenate(([0.0], np.cumsum(steps)))
    terms = weights + np.log(np.concatenate(([1.0], odds)) * allowed)[:, None] * hits
    largest = terms.max(axis=1)
    totals = largest + np.log(np.exp(terms - largest[:, None]).sum(axis=1))
    return [float(gain) for gain in canary_hits * np.log(odds) - (totals[1:] - totals[0])]
