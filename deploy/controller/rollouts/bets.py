"""The stakes of a sequential test by betting (an e-process), and sums of stakes in logarithms. Pure.

``gate`` explains how the test works and why it may be evaluated at any time; ``wagers`` says what is bet on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

_HALVED: Final = 2000
"""Requests after which half of what was kept aside at first has been bet."""


@dataclass(frozen=True, slots=True)
class Bets:
    """The stakes of one test, which began with 1: the logarithm of what is kept aside, and of what is on each bet.

    A part of what is kept aside is bet with every request, the less the later, so that a canary that turns bad late
    still meets fresh money.
    """

    logs: tuple[float, ...]
    seen: int = 0

    @classmethod
    def of(cls, bets: int) -> Bets:
        """Return fresh stakes: one half is kept aside, the other is divided among the bets."""
        return cls((math.log(0.5), *[math.log(0.5 / bets)] * bets))

    def after(self, gains: Sequence[float], seen: int) -> Bets:
        """Return the stakes after ``seen`` more requests. ``gains``: growth of the logarithm of each bet."""
        kept, *bets = self.logs
        part = seen / (self.seen + seen + _HALVED)
        more = kept + math.log(part / len(bets))
        moved = [log_sum((log + gain, more)) for log, gain in zip(bets, gains, strict=True)]
        return Bets((kept + math.log(1 - part), *moved), self.seen + seen)

    @property
    def log_evidence(self) -> float:
        """The logarithm of the total stake."""
        return log_sum(self.logs)


def log_sum(logs: Sequence[float]) -> float:
    """Return the logarithm of the sum of the values whose logarithms are ``logs``."""
    most = max(logs)
    return most + math.log(math.fsum(math.exp(log - most) for log in logs))


def log_mean(logs: Sequence[float]) -> float:
    """Return the logarithm of the mean of the values whose logarithms are ``logs``."""
    return log_sum(logs) - math.log(len(logs))


def likelier(
    canary: int, canary_hits: int, stable: int, stable_hits: int, odds: Sequence[float], allowed: float = 1.0
) -> list[float]:
    """Return log likelihood ratios: how much likelier each of ``odds`` (above 1) makes this split of the hits.

    ``allowed``: the permitted ratio of the canary's odds of a hit to stable's. Given the sum of hits, the canary's have
    Fisher's noncentral hypergeometric distribution. The ratio has a mean of at most 1 if the canary's odds of a hit are
    at most ``allowed`` times stable's.
    """
    total = canary_hits + stable_hits
    least, most = max(0, total - stable), min(canary, total)
    if least == most:  # only one split is possible
        return [0.0] * len(odds)
    hits = np.arange(least, most + 1, dtype=np.float64)
    steps = np.log((canary - hits[:-1]) * (total - hits[:-1]) / (hits[1:] * (stable - total + hits[1:])))
    weights = np.concatenate(([0.0], np.cumsum(steps)))
    terms = weights + np.log(np.array([1.0, *odds]) * allowed)[:, None] * hits
    largest = terms.max(axis=1)
    totals = largest + np.log(np.exp(terms - largest[:, None]).sum(axis=1))
    return [float(gain) for gain in canary_hits * np.log(odds) - (totals[1:] - totals[0])]
